"""Our launcher's own flag, and a plugin that stays out of everybody else's server."""

import os
import subprocess
import sys

import pytest

from equipoise.quant.sglang import plugin
from equipoise.quant.sglang.arguments import split_control, split_layout


def test_without_a_control_sglangs_arguments_pass_unchanged() -> None:
    argv = ["--model-path=/m", "--kv-cache-dtype", "fp8_e4m3"]
    assert split_control(argv) == (argv, None)


@pytest.mark.parametrize("flag", [["--kv-control", "clip2"], ["--kv-control=clip2"]])
@pytest.mark.parametrize(
    ("given", "name"),
    [
        (["--model-path=/m"], "/m"),
        (["--model-path", "/m"], "/m"),
        (["--model-path=/m", "--served-model-name=x"], "x"),
        (["--model-path=/m", "--served-model-name", "x"], "x"),
    ],
)
def test_a_control_is_taken_out_and_put_into_the_served_name(
    flag: list[str], given: list[str], name: str
) -> None:
    rest, control = split_control([*flag, *given, "--port=1"])
    assert control == "clip2"
    assert rest == [*given, "--port=1", f"--served-model-name={name}+kv-control=clip2"]


@pytest.mark.parametrize("dtype", [["--kv-cache-dtype=fp8_e4m3"], ["--kv-cache-dtype", "fp8_e5m2"]])
def test_a_control_and_an_fp8_cache_are_refused_together(dtype: list[str]) -> None:
    with pytest.raises(SystemExit, match="cannot be combined with --kv-cache-dtype fp8"):
        split_control(["--kv-control=clip2", "--model-path=/m", *dtype])


@pytest.mark.parametrize("argv", [["--kv-control=int3"], ["--kv-control"]])
def test_an_unknown_or_missing_control_name_lists_the_known_ones(argv: list[str]) -> None:
    with pytest.raises(SystemExit, match="int4-tensor, int4-token, clip2"):
        split_control(argv)


@pytest.mark.parametrize("flag", [["--kv-layout", "ds656"], ["--kv-layout=ds656"]])
@pytest.mark.parametrize("dtype", [["--kv-cache-dtype", "fp8_e4m3"], ["--kv-cache-dtype=fp8_e4m3"]])
def test_a_layout_is_taken_out_and_put_into_the_served_name(flag: list[str], dtype: list[str]) -> None:
    rest, layout = split_layout([*flag, "--model-path=/m", "--served-model-name=x", *dtype])
    assert layout == "ds656"
    assert rest == [
        "--model-path=/m",
        "--served-model-name=x",
        *dtype,
        "--served-model-name=x+kv-layout=ds656",
    ]
    assert split_layout(rest) == (rest, None)


@pytest.mark.parametrize("dtype", [[], ["--kv-cache-dtype=bf16"], ["--kv-cache-dtype", "fp8_e5m2"]])
def test_a_layout_needs_an_e4m3_cache(dtype: list[str]) -> None:
    with pytest.raises(SystemExit, match="give --kv-cache-dtype fp8_e4m3"):
        split_layout(["--kv-layout=ds656", "--model-path=/m", *dtype])


@pytest.mark.parametrize("argv", [["--kv-layout=ds655"], ["--kv-layout"]])
def test_an_unknown_or_missing_layout_name_lists_the_known_ones(argv: list[str]) -> None:
    with pytest.raises(SystemExit, match="fp8_per_head, fp8_per_token_head, ds656, ds656_pow2"):
        split_layout(argv)


def test_a_control_and_a_layout_are_refused_together() -> None:
    for dtype in ("bf16", "fp8_e4m3"):
        argv = ["--kv-control=clip2", "--kv-layout=ds656", "--model-path=/m", f"--kv-cache-dtype={dtype}"]
        with pytest.raises(SystemExit, match="cannot be combined"):
            split_layout(split_control(argv)[0])


def test_the_plugin_refuses_an_unknown_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugin.ENABLE_ENV, "1")
    monkeypatch.setenv(plugin.LAYOUT_ENV, "ds655")
    monkeypatch.setattr(plugin.importlib.metadata, "version", lambda _: plugin.SGLANG_VERSION)
    with pytest.raises(SystemExit, match="unknown KV layout 'ds655': choose one of fp8_per_head"):
        plugin.register()


def test_the_plugin_is_inert_unless_our_launcher_asks_for_it() -> None:
    code = (
        "import sys; from equipoise.quant.sglang.plugin import register; register(); "
        "print([m for m in ('torch', 'sglang', 'equipoise.quant.sglang.hooks') if m in sys.modules])"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("EQUIPOISE")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_another_version_of_sglang_ends_the_process_and_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugin.ENABLE_ENV, "1")
    monkeypatch.setattr(plugin.importlib.metadata, "version", lambda _: "0.6.0")
    # Not an Exception: SGLang logs a plugin's exceptions and goes on without it.
    with pytest.raises(SystemExit, match=r"written for sglang 0\.5\.23, this is 0\.6\.0"):
        plugin.register()


def test_a_missing_hook_target_ends_the_process_and_is_named() -> None:
    with pytest.raises(SystemExit, match=r"hooks json\.no_such_function"):
        plugin.require("json.no_such_function")


def test_the_sgl_kernel_stand_in_is_not_importable_outside_the_server() -> None:
    done = subprocess.run([sys.executable, "-c", "import sgl_kernel"], capture_output=True, text=True)
    assert "ModuleNotFoundError" in done.stderr

"""Launch commands of the KV variants: what is on the command line, and what is refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.quant.kv_layouts import KV_LAYOUT_KINDS
from equipoise.quant.variants import (
    KV_CONTROL_NAMES,
    KV_VARIANTS,
    LaunchCommand,
    ServeOptions,
    build_launch_command,
    find_variant,
    resolve_server_python,
)


def build(variant: str, device: str = "cpu", **options: object) -> LaunchCommand:
    return build_launch_command(
        "/models/m",
        find_variant(variant),
        port=4321,
        device=device,  # type: ignore[arg-type]
        python="/env/bin/python",
        options=ServeOptions(**options),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("name", KV_VARIANTS)
def test_a_cpu_command_carries_dtype_control_and_device(name: str) -> None:
    command, variant = build(name), KV_VARIANTS[name]
    assert command.argv[:3] == ("/env/bin/python", "-m", "equipoise.quant.sglang.launch")
    assert {"--model-path=/models/m", "--device=cpu", "--port=4321"} <= set(command.argv)
    assert f"--kv-cache-dtype={variant.kv_cache_dtype}" in command.argv
    controls = [a for a in command.argv if a.startswith("--kv-control")]
    assert controls == ([f"--kv-control={variant.control}"] if variant.control else [])
    layouts = [a for a in command.argv if a.startswith("--kv-layout")]
    assert layouts == ([f"--kv-layout={variant.layout}"] if variant.layout else [])
    assert command.url == "http://127.0.0.1:4321"


def test_arms_of_a_cpu_run_differ_in_nothing_but_the_kv_cache() -> None:
    baseline = build("bf16")
    for name in KV_VARIANTS:
        other = build(name)
        assert other.env == baseline.env
        different = set(other.argv) ^ set(baseline.argv)
        assert all(a.startswith(("--kv-cache-dtype=", "--kv-control=", "--kv-layout=")) for a in different)


def test_a_cpu_command_sets_what_the_server_needs() -> None:
    command = build("bf16", threads=2)
    expected = {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_PLUGINS": "equipoise_cpu", "OMP_NUM_THREADS": "2"}
    assert expected.items() <= command.env.items()
    assert command.env["PYTHONSAFEPATH"] == "1"
    assert "--attention-backend=torch_native" in command.argv
    assert any(a.startswith("--max-total-tokens=") for a in command.argv)


def test_a_gpu_command_is_sglangs_own_without_anything_of_ours() -> None:
    command = build("fp8_e4m3", "cuda")
    assert command.argv == (
        "/env/bin/python",
        "-m",
        "sglang.launch_server",
        "--model-path=/models/m",
        "--device=cuda",
        "--host=127.0.0.1",
        "--port=4321",
        "--kv-cache-dtype=fp8_e4m3",
    )
    assert not any("SGLANG" in name or "MALLOC" in name for name in command.env)


@pytest.mark.parametrize("name", [n for n, v in KV_VARIANTS.items() if v.control])
def test_a_control_is_refused_on_a_gpu(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} plants a fault .* cannot run on a GPU"):
        build(name, "cuda")


def test_every_control_has_a_variant_and_a_label_that_shows_it() -> None:
    controls = {v.control: v for v in KV_VARIANTS.values() if v.control}
    assert set(controls) == set(KV_CONTROL_NAMES)
    assert all(f"+kv-control={name}" in v.arm for name, v in controls.items())
    assert KV_VARIANTS["fp8_e4m3"].arm == "w=bf16,kv=fp8_e4m3"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("fp8_per_head", "one k_scale and one v_scale a layer"),
        ("fp8_per_token_head", "no such cache: fp8_e4m3 is the nearest"),
        ("fp8_ds656", "for DSA models .* --kv-cache-dtype fp8_e4m3"),
        ("fp8_ds656_pow2", "writes fp32 scales that are not rounded"),
    ],
)
def test_a_layout_is_refused_on_a_gpu_with_what_sglang_has_there(name: str, what: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is a layout of the CPU server .*{what}"):
        build(name, "cuda")


def test_every_layout_has_a_variant_and_a_label_that_shows_it() -> None:
    layouts = {v.layout: v for v in KV_VARIANTS.values() if v.layout}
    assert set(layouts) == set(KV_LAYOUT_KINDS)
    assert {v.kv_cache_dtype for v in layouts.values()} == {"fp8_e4m3"}
    assert KV_VARIANTS["fp8_ds656"].arm == "w=bf16,kv=fp8_e4m3+kv-layout=ds656"
    assert len({v.arm for v in KV_VARIANTS.values()}) == len(KV_VARIANTS)


def test_options_reach_the_command_line_and_extra_arguments_come_last() -> None:
    command = build(
        "bf16",
        served_model_name="m",
        max_total_tokens=1000,
        max_running_requests=3,
        extra_args=("--log-level=warning",),
    )
    assert {"--served-model-name=m", "--max-total-tokens=1000", "--max-running-requests=3"} <= set(
        command.argv
    )
    assert command.argv[-1] == "--log-level=warning"


def test_an_unknown_variant_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'x': choose one of bf16, fp8_e4m3, fp8_e5m2"):
        find_variant("x")


@pytest.mark.parametrize(
    ("given", "meant"),
    [("ds656", "fp8_ds656"), ("fp8_ds565_pow2", "fp8_ds656_pow2"), ("fp8-per-head", "fp8_per_head")],
)
def test_a_slip_of_the_pen_is_answered_with_the_nearest_name(given: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"did you mean {meant}\? choose one of"):
        find_variant(given)


@pytest.mark.parametrize("port", [0, 65536])
def test_an_impossible_port_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match=str(port)):
        build_launch_command("/m", find_variant("bf16"), port=port, device="cpu", python="p")


def test_the_server_python_comes_from_the_variable_then_the_checkout_then_the_remedy(tmp_path: Path) -> None:
    beside = tmp_path / ".venv-sglang" / "bin" / "python"
    with pytest.raises(FileNotFoundError, match="make setup"):
        resolve_server_python({}, checkout=tmp_path)
    beside.parent.mkdir(parents=True)
    beside.touch()
    assert resolve_server_python({}, checkout=tmp_path) == str(beside)
    assert (
        resolve_server_python({"EQUIPOISE_SGLANG_PYTHON": sys.executable}, checkout=tmp_path)
        == sys.executable
    )
    with pytest.raises(FileNotFoundError, match="/nowhere/python, which does not exist"):
        resolve_server_python({"EQUIPOISE_SGLANG_PYTHON": "/nowhere/python"}, checkout=tmp_path)


def test_importing_variants_needs_neither_torch_nor_sglang() -> None:
    code = "import sys, equipoise.quant.variants; print({'torch', 'sglang'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

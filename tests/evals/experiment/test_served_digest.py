"""The digest of what is served: the same wherever it lies and listens, another for anything else."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise.evals.errors import UsageError
from equipoise.evals.experiment.checkpoint_digest import SMALL_BYTES, checkpoint_digest
from equipoise.evals.experiment.served_digest import Served, served
from equipoise.evals.experiment.serving import ServerSpec
from equipoise.evals.plan import ArmSpec
from equipoise.evals.types import ArmRole
from equipoise.quant.variants import ServeOptions, build_launch_command, find_variant


def safetensors(tensors: dict[str, bytes], *, pad: int = 0) -> bytes:
    """A safetensors file of int8 vectors; ``pad`` zeros of one more come first."""
    header, at = {"pad": {"dtype": "I8", "shape": [pad], "data_offsets": [0, pad]}}, pad
    for name, data in tensors.items():
        header[name] = {"dtype": "I8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"\0" * pad + b"".join(tensors.values())


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "x"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("about")
    (folder / "model.safetensors").write_bytes(
        safetensors({"layers.0.weight": bytes(1000), "layers.0.self_attn.k_scale": b"\1\2\3\4"})
    )
    return folder


def test_a_checkpoint_that_was_moved_or_documented_keeps_its_digest(checkpoint: Path) -> None:
    before = checkpoint_digest(checkpoint)
    (checkpoint / "README.md").write_text("more about it")
    (checkpoint / ".cache").mkdir()
    (checkpoint / "equipoise_conversion.json").write_text('{"when": 1}')
    moved = checkpoint.with_name("elsewhere")
    shutil.move(checkpoint, moved)
    os.utime(moved / "model.safetensors", (1, 1))
    assert checkpoint_digest(moved) == before
    linked = checkpoint.with_name("linked")  # as the hub's cache lays its files out
    linked.mkdir()
    for file in moved.iterdir():
        (linked / file.name).symlink_to(file)
    assert checkpoint_digest(linked) == before


CHANGES: dict[str, Callable[[Path], object]] = {
    "config": lambda f: (f / "config.json").write_text('{"model_type": "y"}'),
    "a weight": lambda f: flip(f / "model.safetensors", -500),
    "a scale": lambda f: flip(f / "model.safetensors", -1),
    "a new file": lambda f: (f / "chat_template.jinja").write_text("{{ x }}"),
    "a file's name": lambda f: (f / "tokenizer.json").rename(f / "tokenizer_config.json"),
    "a file gone": lambda f: (f / "tokenizer.json").unlink(),
}


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_changes_in_a_checkpoint_changes_its_digest(checkpoint: Path, what: str) -> None:
    before = checkpoint_digest(checkpoint)
    CHANGES[what](checkpoint)
    assert checkpoint_digest(checkpoint) != before


@pytest.fixture
def large(checkpoint: Path) -> Path:
    """Over the sizes that are read whole: the scale lies where no sample meets it."""
    weights = {"a.weight": b"\0" * 3_000_000, "a.k_scale": b"\1\2\3\4", "b.weight": b"\0" * 2_000_000}
    (checkpoint / "model.safetensors").write_bytes(safetensors(weights, pad=SMALL_BYTES))
    return checkpoint


def test_of_a_large_checkpoint_every_kv_scale_and_the_header_count(large: Path) -> None:
    path = large / "model.safetensors"
    raw = path.read_bytes()
    scale = len(raw) - 2_000_000 - 4

    def digest(at: int) -> str:
        data = bytearray(raw)
        data[at] ^= 1
        path.write_bytes(data)
        return checkpoint_digest(large, full_bytes=1 << 20)

    path.write_bytes(raw)
    before = checkpoint_digest(large, full_bytes=1 << 20)
    assert digest(scale) != before
    assert digest(raw.index(b"a.weight")) != before
    assert digest(-1) != before  # the last sample
    # A weight between the samples is not read: the documented limit, on the side of counting it as the same.
    assert digest(scale - 100_000) == before
    assert checkpoint_digest(large) != before  # read whole, it is another kind of digest


def test_hundreds_of_gigabytes_are_not_read(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = json.dumps({"w": {"dtype": "I8", "shape": [1], "data_offsets": [0, 600 << 30]}}).encode()
    path = checkpoint / "model.safetensors"
    with path.open("wb") as f:
        f.write(len(header).to_bytes(8, "little") + header)
        f.truncate((600 << 30) + 8 + len(header))  # sparse
    read = 0
    opened = Path.open

    def counting(self: Path, *args: Any) -> Any:
        f = opened(self, *args)
        whole = f.read

        class Counting:
            def __getattr__(self, name: str) -> Any:
                return getattr(f, name)

            def __enter__(self) -> "Counting":
                return self

            def __exit__(self, *exc: object) -> None:
                f.close()

            def read(self, size: int) -> bytes:
                nonlocal read
                data: bytes = whole(size)
                read += len(data)
                return data

        return Counting()

    monkeypatch.setattr(Path, "open", counting)
    assert checkpoint_digest(checkpoint)
    assert 0 < read < 1 << 20


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff" * 8,
        (9).to_bytes(8, "little") + b"not json!",
        (2).to_bytes(8, "little") + b"[]",
        safetensors({})[:8] + b'{"k_scale":{"data_offsets":[0,99999999999]}}',
        (44).to_bytes(8, "little") + b'{"k_scale":{"data_offsets":[0,99999999999]}}',
        (28).to_bytes(8, "little") + b'{"k_scale":{"data_offsets":1}}',
    ],
)
def test_a_large_file_that_is_no_safetensors_file_is_an_error_that_names_it(
    checkpoint: Path, raw: bytes
) -> None:
    (checkpoint / "model.safetensors").write_bytes(raw + b" " * (SMALL_BYTES + 1))
    with pytest.raises(UsageError, match=r"model\.safetensors"):
        checkpoint_digest(checkpoint, full_bytes=0)


# -- arms ----------------------------------------------------------------------------------------


def arm(**source: str) -> ArmSpec:
    return ArmSpec(name="B", role=ArmRole.CANDIDATE, **source)  # type: ignore[arg-type]


def launched(
    checkpoint: Path | str, variant: str = "fp8_e4m3", *, port: int = 30000, **options: Any
) -> Served | None:
    chosen = find_variant(variant)
    launch = build_launch_command(
        str(checkpoint),
        chosen,
        port=port,
        device="cpu",
        python=sys.executable,
        options=ServeOptions(**options),
    )
    spec = ServerSpec(model="m", variant=chosen, launch=launch, arms=(arm(variant=variant),))
    return served("m", arm(variant=variant), spec, None, {})


def digest(found: Served | None) -> str:
    assert found is not None
    return found.digest


def test_where_and_how_large_a_server_of_ours_is_does_not_count(checkpoint: Path) -> None:
    before = digest(launched(checkpoint))
    assert before.startswith("served:")
    moved = checkpoint.with_name("elsewhere")
    shutil.move(checkpoint, moved)
    sizes = {"max_total_tokens": 1234, "max_running_requests": 5, "threads": 2, "served_model_name": "n"}
    assert digest(launched(moved, port=31000, host="0.0.0.0", **sizes)) == before


def test_what_a_server_of_ours_stores_and_how_it_was_launched_counts(
    checkpoint: Path, tmp_path: Path
) -> None:
    scales = tmp_path / "kv.json"
    scales.write_text("1")
    given = f"--quantization-param-path={scales}"
    found = [
        digest(launched(checkpoint)),
        digest(launched(checkpoint, "fp8_e5m2")),
        digest(launched(checkpoint, "bf16")),
        digest(launched(checkpoint, "control-clip2")),
        digest(launched(checkpoint, extra_args=("--page-size=64",))),
        digest(launched(checkpoint, extra_args=(given,))),
    ]
    scales.write_text("2")
    found.append(digest(launched(checkpoint, extra_args=(given,))))
    flip(checkpoint / "model.safetensors", -1)
    found.append(digest(launched(checkpoint)))
    assert len(set(found)) == len(found)


def test_no_path_of_this_machine_is_in_the_facts(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "kv.json").write_text("1")
    found = launched(checkpoint, extra_args=(f"--quantization-param-path={tmp_path / 'kv.json'}",))
    assert found is not None
    assert str(tmp_path) not in json.dumps(found.facts)


def test_a_hub_model_is_known_by_its_revision_once_it_is_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert launched("org/name") is None
    refs = tmp_path / "models--org--name" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("abc123")
    found = launched("org/name")
    assert found is not None
    assert found.facts["checkpoint"] == "hub:org/name@abc123"
    (refs / "main").write_text("def456")
    assert digest(launched("org/name")) != found.digest


FACTS = {
    "version": "0.5.23",
    "model_path": "/data/checkpoints/kimi-fp8",
    "kv_cache_dtype": "fp8_e4m3",
    "weight_version": "7",
    "attention_backend": "fa3",
    "host": "10.0.0.1",
    "port": 30000,
    "api_key": "s3cret",
    "mem_fraction_static": 0.8,
    "log_level": "info",
}


def endpoint(facts: dict[str, Any], url: str = "http://a:1", **more: str) -> Served | None:
    return served("m", arm(url=url, **more), None, facts, {})


def test_an_endpoint_is_known_by_what_it_serves_not_by_where_it_is() -> None:
    before = endpoint(FACTS)
    assert before is not None
    elsewhere = FACTS | {
        "host": "10.0.0.2",
        "port": 1,
        "api_key": "other",
        "model_path": "/mnt/kimi-fp8",
        "mem_fraction_static": 0.5,
        "log_level": "debug",
    }
    assert endpoint(elsewhere, url="http://b:2") == before
    assert not {"api_key", "host", "port"} & before.facts.keys()
    assert "s3cret" not in json.dumps(before.facts)


@pytest.mark.parametrize(
    "change",
    [
        {"version": "0.5.24"},
        {"kv_cache_dtype": "auto"},
        {"weight_version": "8"},
        {"model_path": "/data/checkpoints/kimi-fp8-b"},
        {"attention_backend": "flashinfer"},
        {"quantization": "fp8"},
    ],
)
def test_an_endpoint_that_serves_something_else_is_another(change: dict[str, Any]) -> None:
    assert digest(endpoint(FACTS | change)) != digest(endpoint(FACTS))


def test_of_an_openai_endpoint_the_name_of_the_model_counts() -> None:
    found = {n: digest(endpoint({"root": "/x/m"}, api="openai", served_model=n)) for n in ("a", "b")}
    assert found["a"] != found["b"]


def test_an_endpoint_that_was_not_asked_yet_is_not_known() -> None:
    assert served("m", arm(url="http://a:1"), None, None, {}) is None


def test_a_checkpoint_is_read_once_a_run(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from equipoise.evals.experiment import served_digest

    calls: list[Path] = []
    read = served_digest.checkpoint_digest
    monkeypatch.setattr(
        served_digest, "checkpoint_digest", lambda folder: calls.append(folder) or read(folder)
    )
    known: dict[str, str] = {}
    variant = find_variant("bf16")
    launch = build_launch_command(str(checkpoint), variant, port=1, device="cpu", python=sys.executable)
    spec = ServerSpec(model="m", variant=variant, launch=launch, arms=())
    for v in (spec, replace(spec, arms=(arm(variant="bf16"),))):
        served("m", arm(variant="bf16"), v, None, known)
    assert calls == [checkpoint]

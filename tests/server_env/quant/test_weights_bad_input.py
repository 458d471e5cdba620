"""What comes from elsewhere and is wrong: one clear line, the source untouched, nothing that looks whole."""

import json
import os
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from damaged_checkpoints import (
    Change,
    cut_shard,
    damaged,
    edit_config,
    escape,
    fingerprint,
    garble_header,
    only_pickles,
    sharded,
    unindexed,
)
from safetensors.torch import load_file, save_file

from equipoise.evals.cli import app
from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.checkpoint import read_shard
from equipoise.quant.weights.convert import convert
from equipoise.quant.weights.names import FORMAT_NAMES
from equipoise.quant.weights.shards import ShardReader

GLM = Path(str(files("equipoise.tasks") / "embedded" / "glm_tiny"))
PROJECTION = "model.layers.0.self_attn.q_proj.weight"


def quant(*arguments: object) -> Result:
    return CliRunner().invoke(app.main, ["quant", *map(str, arguments), "--workers", "1"])


def refused(result: Result, said: str) -> None:
    assert result.exit_code == 2, (result.exception, result.output)
    assert said in result.output
    assert "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit)


def edit_tensor(value: torch.Tensor) -> Change:
    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        save_file(tensors | {PROJECTION: value}, folder / "model.safetensors", metadata={"format": "pt"})

    return change


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The embedded GLM in three shards: BF16, and in formats that are read back."""
    folder = tmp_path_factory.mktemp("stored")
    found = {"bf16": sharded(GLM, folder / "bf16")}
    for name in ("fp8-block", "int4-g32", "bf16-lossless"):
        found[name] = folder / name
        convert(found["bf16"], found[name], format_name=name, workers=1)
    return found


FILES: dict[str, tuple[Change, str]] = {
    "truncated": (cut_shard, "model-00002-of-00003.safetensors"),
    "corrupt header": (garble_header, "model-00001-of-00003.safetensors"),
    "missing shard": (lambda f: (f / "model-00003-of-00003.safetensors").unlink(), "model-00003-of-00003"),
    "empty shard": (lambda f: os.truncate(f / "model-00003-of-00003.safetensors", 0), "model-00003-of-00003"),
    "an index that leaves": (escape, "not a plain file name"),
    "pickle": (only_pickles, "pickles"),
    "a shard too many": (unindexed, "not in its index"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json"),
    "a config that is no JSON": (lambda f: (f / "config.json").write_text("{"), "not readable JSON"),
}


@pytest.mark.parametrize("case", FILES)
@pytest.mark.parametrize("format_name", ["fp8-block", "int4-g32", "bf16-lossless"])
def test_a_damaged_checkpoint_is_not_decoded(stored, case, format_name, tmp_path):
    change, said = FILES[case]
    source = damaged(stored[format_name], tmp_path / "source", change)
    before = fingerprint(source)
    refused(quant("dequantize", source, tmp_path / "back"), said)
    assert fingerprint(source) == before
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("case", FILES)
def test_a_damaged_checkpoint_is_not_made_lossless(stored, case, tmp_path):
    change, said = FILES[case]
    source = damaged(stored["bf16"], tmp_path / "source", change)
    before = fingerprint(source)
    refused(quant("convert", source, tmp_path / "made", "--format", "bf16-lossless"), said)
    assert fingerprint(source) == before
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("case", ["truncated", "corrupt header", "missing shard", "pickle", "no config"])
def test_verify_says_what_it_cannot_read(stored, case, tmp_path):
    change, said = FILES[case]
    target = damaged(stored["fp8-block"], tmp_path / "target", change)
    refused(quant("verify", stored["bf16"], target), said)


def test_a_flipped_bit_of_a_lossless_block_stops_the_decoding(stored, tmp_path):
    source = damaged(stored["bf16-lossless"], tmp_path / "source", lambda f: None)
    shard = source / "model-00001-of-00003.safetensors"
    data = bytearray(shard.read_bytes())
    data[-2000] ^= 1
    shard.write_bytes(data)
    refused(quant("dequantize", source, tmp_path / "back"), shard.name)
    assert not (tmp_path / "back").exists()
    assert not (tmp_path / "back.partial" / shard.name).exists()
    assert not (tmp_path / "back.partial" / "config.json").exists()


TENSORS: dict[str, tuple[torch.Tensor, str]] = {
    "float64": (torch.zeros(256, 128, dtype=torch.float64), "is F64, where one of BF16, F16, F32 is due"),
    "int32": (torch.zeros(256, 128, dtype=torch.int32), "is I32, where one of BF16, F16, F32 is due"),
    "no rows": (torch.zeros(0, 128, dtype=torch.bfloat16), "has the shape [0, 128], which holds no value"),
    "no columns": (torch.zeros(256, 0, dtype=torch.bfloat16), "has the shape [256, 0], which holds no value"),
}


@pytest.mark.parametrize("case", TENSORS)
@pytest.mark.parametrize("format_name", [f for f in FORMAT_NAMES if f != "bf16-lossless"])
def test_a_weight_of_the_wrong_kind_is_named(case, format_name, tmp_path):
    value, said = TENSORS[case]
    source = damaged(GLM, tmp_path / "source", edit_tensor(value))
    refused(quant("convert", source, tmp_path / "made", "--format", format_name), f"{PROJECTION} {said}")
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "billions of layers": ({"num_hidden_layers": 2**31 - 1}, "num_hidden_layers is 2147483647, not a count"),
    "billions of experts": ({"n_routed_experts": 2**31 - 1}, "n_routed_experts is 2147483647, not a count"),
    "billions of MTP layers": ({"num_nextn_predict_layers": 2**31 - 1}, "not a count"),
    "layers in words": ({"num_hidden_layers": "3"}, "num_hidden_layers is '3', not a count"),
    "a text model that is a list": ({"text_config": [1]}, ""),
    "no family": ({"model_type": None}, "model_type None has no rules here"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_hostile_config_costs_neither_a_traceback_nor_memory(case, tmp_path):
    changes, said = CONFIGS[case]
    source = damaged(GLM, tmp_path / "source", edit_config(**changes))
    result = quant("convert", source, tmp_path / "made", "--format", "nvfp4")
    if said:
        refused(result, said)
    else:  # read as if it were not there
        assert result.exit_code == 0, result.output


QUANTIZATIONS: dict[str, tuple[Any, str]] = {
    "no groups": ({"quant_method": "compressed-tensors", "config_groups": []}, "with 0 config_groups"),
    "a group that is none": (
        {"quant_method": "compressed-tensors", "config_groups": {"a": 1}},
        "without a description of its weights",
    ),
    "weights that are none": (
        {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": 3}}},
        "without a description of its weights",
    ),
    "a method that is a list": ({"quant_method": ["fp8"]}, "which cannot be read here"),
    "modelopt in words": ({"quant_method": "modelopt", "quantization": "x"}, "modelopt None"),
    "lossless that is none": ({"quant_method": "bf16-lossless"}, "is not a lossless file of ours"),
    "a word": ("fp8", "declares no quantization"),
}


@pytest.mark.parametrize("case", QUANTIZATIONS)
def test_a_quantization_that_cannot_be_is_refused_by_name(case, tmp_path):
    declared, said = QUANTIZATIONS[case]
    source = damaged(GLM, tmp_path / "source", edit_config(quantization_config=declared))
    refused(quant("dequantize", source, tmp_path / "back"), said)
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_packed_shapes_that_the_format_cannot_have_are_named(stored, tmp_path):
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    source = damaged(stored["int4-g32"], tmp_path / "source", lambda f: None)
    for shard in source.glob("*.safetensors"):
        tensors = load_file(shard)
        if f"{name}_packed" in tensors:
            tensors[f"{name}_packed"] = tensors[f"{name}_packed"][:, :15].contiguous()
        if f"{name}_shape" in tensors:
            tensors[f"{name}_shape"] = torch.tensor([32, 120], dtype=torch.int32)
        save_file(tensors, shard, metadata={"format": "pt"})
    refused(quant("dequantize", source, tmp_path / "back"), f"{name}_packed is [32, 120]: int4-g32 needs")


def test_a_file_that_shrinks_while_it_is_read_is_told(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"x": torch.ones(1000, 10)}, path)
    info = read_shard(path).tensors["x"]
    os.truncate(path, path.stat().st_size - 40)
    with ShardReader(tmp_path) as reader, pytest.raises(CheckpointError, match="became shorter"):
        reader.read_rows(info, 0, 1000)


def test_a_target_inside_the_source_is_refused(tmp_path):
    source = damaged(GLM, tmp_path / "source", lambda f: None)
    before = fingerprint(source)
    for target in (source / "made", source / ".." / "source" / "made"):
        with pytest.raises(UsageError, match="inside the source"):
            convert(source, target, format_name="fp8-block", workers=1)
    assert fingerprint(source) == before
    assert not (source / "made.partial").exists()


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder where nothing can be made")
def test_a_target_that_cannot_be_made_is_told():
    refused(quant("convert", GLM, "/proc/self/made", "--format", "fp8-block"), "cannot write /proc/self/made")


# ---- a disk that fills up ----

FULL = """
import json, sys
from pathlib import Path
from click.testing import CliRunner
from equipoise.evals.cli import app
from equipoise.evals.errors import CheckpointError
from equipoise.quant.checkpoint import Checkpoint
from equipoise.quant.weights import engine, jobs

source, disk, when = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
target, filler = disk / "made", disk / "filler"

def fill():
    with filler.open("wb", buffering=0) as f:
        try:
            while True:
                f.write(bytes(4096))
        except OSError:
            pass

def fill_before(owner, name, call):
    real, calls = getattr(owner, name), [0]
    def wrapped(*a, **k):
        calls[0] += 1
        if calls[0] == call:
            fill()
        return real(*a, **k)
    setattr(owner, name, wrapped)

if when == "a shard":
    fill_before(jobs.ConvertJob, "run", 2)
elif when == "a slab":
    jobs.ShardWriter._reserve = lambda self, size: None  # as on a file system without fallocate
    fill_before(jobs.ShardWriter, "append", 40)
else:
    fill_before(engine.Target, "complete", 1)

def run(*words):
    done = CliRunner().invoke(app.main, ["quant", *map(str, words), "--workers", "1"])
    return done.exit_code, done.output

first = run("convert", source, target, "--format", "fp8-block")
partial = disk / "made.partial"
try:
    Checkpoint.open(partial)
    looks_whole = True
except CheckpointError:
    looks_whole = False
left = sorted(p.name for p in partial.glob("*.tmp"))
there = target.exists()
filler.unlink()
again = run("convert", source, target, "--format", "fp8-block", "--resume")
print(json.dumps([first, looks_whole, left, there, again, run("verify", source, target)]))
"""


@pytest.fixture(scope="module")
def namespace() -> list[str]:
    """A command's prefix that gives it mounts of its own."""
    words = ["unshare", "--user", "--map-root-user", "--mount"]
    tried = shutil.which("unshare") and subprocess.run(
        [*words, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
    )
    if not tried or tried.returncode:
        pytest.skip("needs user namespaces, to mount a small disk")
    return words


@pytest.mark.parametrize("when", ["a shard", "a slab", "the small files"])
def test_a_disk_that_fills_up_leaves_nothing_that_looks_whole_and_the_run_goes_on(
    stored, namespace, when, tmp_path
):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = 'mount -t tmpfs -o size=8m none "$1" && exec "${@:2}"'
    script = [sys.executable, "-P", "-c", FULL, str(stored["bf16"]), str(disk), when]
    done = subprocess.run(
        [*namespace, "bash", "-c", mounted, "-", str(disk), *script],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    first, looks_whole, left, there, again, verified = json.loads(done.stdout)
    assert first[0] == 2, first
    for word in ("cannot write", "No space left on device", "--resume"):
        assert word in first[1]
    assert (looks_whole, left, there) == (False, [], False)
    assert again[0] == 0, again
    assert verified[0] == 0, verified

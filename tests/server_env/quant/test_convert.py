"""Conversions from end to end: verified, resumable, whole or not at all, in bounded memory."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from damaged_checkpoints import (
    cut_shard,
    damaged,
    edit_config,
    escape,
    fingerprint,
    garble_header,
    only_pickles,
    retype,
    sharded,
    unindexed,
)
from safetensors.torch import load_file, save_file

from equipoise.evals.cli import app
from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.checkpoint import Checkpoint
from equipoise.quant.weights.convert import convert, dequantize
from equipoise.quant.weights.names import QUANTIZED_FORMATS
from equipoise.quant.weights.shards import ShardWriter, plan_layout
from equipoise.quant.weights.verify import verify

EMBEDDED = Path(str(files("equipoise.tasks") / "embedded"))
GLM = EMBEDDED / "glm_tiny"
EXPERT = "model.layers.1.mlp.experts.3.up_proj.weight"


def quant(*arguments):
    return CliRunner().invoke(app.main, ["quant", *map(str, arguments)])


@pytest.fixture(scope="module")
def glm3(tmp_path_factory) -> Path:
    return sharded(GLM, tmp_path_factory.mktemp("glm3") / "model")


@pytest.mark.parametrize("format_name", QUANTIZED_FORMATS)
@pytest.mark.parametrize("model", ["kimi_tiny", "glm_tiny"])
def test_an_embedded_model_converts_to_every_format_and_back_verified(model, format_name, tmp_path):
    before = fingerprint(EMBEDDED / model)
    made, back = tmp_path / "made", tmp_path / "back"
    assert quant("convert", f"embedded:{model}", made, "--format", format_name, "--workers", 1).exit_code == 0
    result = quant("verify", f"embedded:{model}", made, "--workers", 1)
    assert result.exit_code == 0 and "verified" in result.output, result.output
    assert quant("dequantize", made, back, "--workers", 1).exit_code == 0
    result = quant("verify", made, back, "--workers", 1)
    assert result.exit_code == 0, result.output
    assert Checkpoint.open(back).tensors.keys() == Checkpoint.open(EMBEDDED / model).tensors.keys()
    assert fingerprint(EMBEDDED / model) == before
    assert not (tmp_path / "made.partial").exists()


def test_shards_index_and_small_files_follow_the_source(glm3, tmp_path):
    result = convert(glm3, tmp_path / "made", format_name="fp8-block", workers=2)
    made = Checkpoint.open(tmp_path / "made")
    assert made.shards.keys() == Checkpoint.open(glm3).shards.keys() and made.has_index
    assert made.index_metadata["total_size"] == made.weight_bytes
    assert {"tokenizer.json", "chat_template.jinja", "equipoise_conversion.json"} <= {
        p.name for p in (tmp_path / "made").iterdir()
    }
    report = json.loads((tmp_path / "made" / "equipoise_conversion.json").read_text())
    assert report["counts"]["n"] == result.counts.n == 638976
    assert {s["file"] for s in report["shards"]} == made.shards.keys()
    one = tmp_path / "one"
    convert(GLM, one, format_name="fp8-block", workers=1)
    flat = load_file(one / "model.safetensors")
    for file in made.shards:
        for name, tensor in load_file(tmp_path / "made" / file).items():
            assert torch.equal(tensor.view(torch.uint8), flat[name].view(torch.uint8)), name


def test_merged_projections_share_their_nvfp4_tensor_scale_across_shards(glm3, tmp_path):
    convert(glm3, tmp_path / "made", format_name="nvfp4", workers=1)
    made = Checkpoint.open(tmp_path / "made")
    scales = {}
    for file in made.shards:
        scales |= {
            k: v.item()
            for k, v in load_file(tmp_path / "made" / file).items()
            if k.endswith("weight_scale_2")
        }
    base = "model.layers.1.mlp.experts.0."
    assert scales[base + "gate_proj.weight_scale_2"] == scales[base + "up_proj.weight_scale_2"]
    assert made.tensors[base + "gate_proj.weight"].shard != made.tensors[base + "up_proj.weight"].shard
    assert len(set(scales.values())) > 10


# ---- what verify finds ----


def corrupted(made: Path, name: str, change) -> None:
    tensors = load_file(made / "model.safetensors")
    tensors[name] = change(tensors[name].clone())
    save_file(tensors, made / "model.safetensors", metadata={"format": "pt"})


def flip_bit(t: torch.Tensor) -> torch.Tensor:
    t.view(torch.uint8).view(-1)[7] ^= 1
    return t


def move_code(t: torch.Tensor) -> torch.Tensor:
    raw = t.view(torch.uint8).view(-1)
    raw[11:40] ^= 0x04
    return t


def doubled(t: torch.Tensor) -> torch.Tensor:
    return t * 2


FAULTS = {
    "a norm changed in one bit": ("model.norm.weight", flip_bit, "differs from the source"),
    "the router changed": ("model.layers.1.mlp.gate.weight", flip_bit, "differs from the source"),
    "codes moved": (EXPERT, move_code, "times what fp8-block allows"),
    "a scale doubled": (EXPERT + "_scale_inv", doubled, "times what fp8-block allows"),
    "a scale twice as fine": (EXPERT + "_scale_inv", lambda t: t / 64, "times what fp8-block allows"),
    "a scale of 1": (EXPERT + "_scale_inv", torch.ones_like, "fp8-block"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_verify_finds_a_planted_fault_and_exits_1(fault, tmp_path):
    made = tmp_path / "made"
    convert(GLM, made, format_name="fp8-block", workers=1)
    name, change, expected = FAULTS[fault]
    corrupted(made, name, change)
    result = quant("verify", GLM, made, "--workers", 1, "--json")
    assert result.exit_code == 1, fault
    found = [t for t in json.loads(result.output)["tensors"] if t["problem"]]
    assert [t["name"] for t in found] == [name.removesuffix("_scale_inv")]
    assert expected in found[0]["problem"]


def test_verify_finds_what_is_missing_added_or_misdeclared(tmp_path):
    made = tmp_path / "made"
    convert(GLM, made, format_name="fp8-channel", workers=1)
    tensors = load_file(made / "model.safetensors")
    config = json.loads((made / "config.json").read_text())

    def problems(tensors=tensors, config=config) -> str:
        save_file(tensors, made / "model.safetensors", metadata={"format": "pt"})
        (made / "config.json").write_text(json.dumps(config))
        result = verify(GLM, made, workers=1)
        assert not result.passed
        return "\n".join(result.problems) + "\n".join(c.problem for c in result.checks)

    assert "model.norm.weight is missing" in problems(
        {k: v for k, v in tensors.items() if k != "model.norm.weight"}
    )
    assert "extra is in" in problems(tensors | {"extra": torch.ones(2)})
    q_proj = "model.layers.0.self_attn.q_proj.weight"
    plain = {k: v for k, v in tensors.items() if k != f"{q_proj}_scale"} | {
        q_proj: load_file(GLM / "model.safetensors")[q_proj]
    }
    assert "q_proj.weight is not quantized, but config.json does not say so" in problems(plain)
    ignoring = json.loads(json.dumps(config))
    ignoring["quantization_config"]["ignore"].append("model.layers.0.self_attn.q_proj")
    assert "q_proj.weight is quantized, but config.json says it is not" in problems(config=ignoring)
    assert "config.json: vocab_size is not the source's" in problems(config=config | {"vocab_size": 65})
    without = {k: v for k, v in tensors.items() if not k.endswith(f"{q_proj}_scale")}
    with pytest.raises(CheckpointError, match=r"q_proj\.weight_scale is missing"):
        problems(without)


def test_verify_refuses_a_head_or_router_that_was_quantized(tmp_path, monkeypatch):
    """A converter with the wrong rules: its files are consistent in themselves."""
    from equipoise.quant.weights import families, selection

    made = tmp_path / "made"
    with monkeypatch.context() as patch:
        patch.setattr(selection, "rules_for", lambda traits, name: families.rules_for(traits, name)[1:])
        patch.setattr(selection, "_LINEAR", selection.re.compile(".*"))
        convert(GLM, made, format_name="fp8-channel", workers=1)
    result = verify(GLM, made, workers=1)
    assert any("lm_head.weight is quantized, but must stay (output head)" in p for p in result.problems)


# ---- damaged and hostile sources ----


SOURCES = {
    "truncated": (cut_shard, "model-00002-of-00003.safetensors"),
    "corrupt": (garble_header, "model-00001-of-00003.safetensors"),
    "missing": (
        lambda f: (f / "model-00003-of-00003.safetensors").unlink(),
        "model-00003-of-00003.safetensors",
    ),
    "escaping": (escape, "not a plain file name"),
    "wrong dtype": (retype, "I16"),
    "pickle": (only_pickles, "pickles"),
    "unindexed": (unindexed, "not in its index"),
    "more layers": (edit_config(num_hidden_layers=4), "num_hidden_layers is 4"),
    "fewer experts": (edit_config(n_routed_experts=7), "number of experts is 7"),
    "other vocabulary": (edit_config(vocab_size=65), "vocab_size"),
    "unknown family": (edit_config(model_type="mystery"), "mystery"),
}


@pytest.mark.parametrize("case", SOURCES)
def test_a_damaged_source_is_refused_by_name_untouched_and_nothing_is_left(case, glm3, tmp_path):
    change, named = SOURCES[case]
    source = damaged(glm3, tmp_path / "source", change)
    before = fingerprint(source)
    result = quant("convert", source, tmp_path / "made", "--format", "fp8-block", "--workers", 1)
    assert result.exit_code == 2 and named in result.output, result.output
    assert "Traceback" not in result.output
    assert fingerprint(source) == before
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def drop_scale(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if k != EXPERT + "_scale_inv"}, folder / "model.safetensors")


def reshape_scale(folder: Path) -> None:
    corrupted(folder, EXPERT + "_scale_inv", lambda t: torch.ones(3, 3))


def retype_scale(folder: Path) -> None:
    corrupted(folder, EXPERT + "_scale_inv", lambda t: t.to(torch.int32))


def quantization(**changes):
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] |= changes
        (folder / "config.json").write_text(json.dumps(config))

    return change


QUANTIZED_SOURCES = {
    "a scale is missing": (drop_scale, "is missing"),
    "a scale of another shape": (reshape_scale, "should be [1, 1], not [3, 3]"),
    "a scale of another dtype": (retype_scale, "is I32, where F32 is due"),
    "other blocks": (quantization(weight_block_size=[64, 64]), "should be"),
    "blocks that are none": (quantization(weight_block_size=[0, "x"]), "weight_block_size"),
    "declared mxfp8": (quantization(quant_method="mxfp8"), "where U8 is due"),
    "declared int4": (quantization(quant_method="awq"), "'awq'"),
    "declared nothing": (edit_config(quantization_config=None), "declares no quantization"),
    "declared, but not so": (
        quantization(
            quant_method="compressed-tensors", format="pack-quantized",
            config_groups={
                "g": {"weights": {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32}}
            },
        ),
        "no tensor is quantized so",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", QUANTIZED_SOURCES)
def test_a_quantized_source_that_contradicts_its_config_is_refused(case, tmp_path):
    source = tmp_path / "source"
    convert(GLM, source, format_name="fp8-block", workers=1)
    change, named = QUANTIZED_SOURCES[case]
    change(source)
    result = quant("dequantize", source, tmp_path / "back", "--workers", 1)
    assert result.exit_code == 2 and named in result.output, result.output
    assert not (tmp_path / "back").exists() and not (tmp_path / "back.partial").exists()


def test_a_packed_weight_whose_shape_lies_is_refused(tmp_path):
    source = tmp_path / "source"
    convert(GLM, source, format_name="int4-g32", workers=1)
    corrupted(source, EXPERT.removesuffix("weight") + "weight_shape", lambda t: t * 1000)
    with pytest.raises(CheckpointError, match="weight_shape says"):
        dequantize(source, tmp_path / "back", workers=1)


def test_a_quantized_source_is_not_quantized_again(tmp_path):
    convert(GLM, tmp_path / "a", format_name="fp8-block", workers=1)
    with pytest.raises(CheckpointError, match="quantized already"):
        convert(tmp_path / "a", tmp_path / "b", format_name="int4-g32", workers=1)


def test_shapes_a_format_cannot_hold_are_named_before_anything_is_written(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(GLM, source)
    tensors = load_file(source / "model.safetensors")
    tensors[EXPERT] = torch.ones(32, 120, dtype=torch.bfloat16)
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"experts\.3\.up_proj\.weight.*multiple of 32, not 120"):
        convert(source, tmp_path / "made", format_name="int4-g32", workers=1)
    assert not (tmp_path / "made.partial").exists()


# ---- targets ----


def test_an_existing_target_is_never_overwritten(tmp_path):
    target = tmp_path / "made"
    for make in (target.mkdir, target.touch, lambda: target.symlink_to(tmp_path / "nowhere")):
        make()
        with pytest.raises(UsageError, match="nothing is overwritten"):
            convert(GLM, target, format_name="fp8-block", workers=1)
        target.rmdir() if target.is_dir() else target.unlink()
    with pytest.raises(UsageError, match="not a folder"):
        convert(GLM, tmp_path / "absent" / "made", format_name="fp8-block", workers=1)


def test_a_full_disk_is_told_and_leaves_no_shard_that_looks_whole(glm3, tmp_path):
    """A limit on the size of a file stands for the disk: writing fails in the same way."""
    code = (
        "import resource, sys\n"
        "from equipoise.evals.cli import app\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        f"sys.argv = ['equipoise', 'quant', 'convert', {str(glm3)!r}, {str(tmp_path / 'made')!r},"
        " '--format', 'fp8-block', '--workers', '1']\n"
        "app.main()\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "cannot write" in done.stderr and "--resume" in done.stderr, done.stderr
    assert not (tmp_path / "made").exists()
    partial = tmp_path / "made.partial"
    assert not list(partial.glob("*.safetensors")) and not (partial / "config.json").exists()
    with pytest.raises(CheckpointError):
        Checkpoint.open(partial)
    assert quant("convert", glm3, tmp_path / "made", "--format", "fp8-block").exit_code == 2
    assert (
        quant(
            "convert", glm3, tmp_path / "made", "--format", "fp8-block", "--resume", "--workers", 1
        ).exit_code
        == 0
    )
    assert verify(glm3, tmp_path / "made", workers=1).passed


def test_a_write_that_fails_between_two_slabs_leaves_nothing(tmp_path):
    layout = plan_layout("a.safetensors", [("x", "F32", (1000, 100)), ("y", "U8", (7,))])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        with ShardWriter(tmp_path / "a.safetensors", layout, reserve=False) as writer:
            for _ in range(4):
                writer.append("x", torch.ones(100, 100))
            with pytest.raises(CheckpointError, match=r"File too large.*free space"):
                writer.append("x", torch.ones(100, 100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_told_before_the_first_write(glm3, tmp_path, monkeypatch):
    from equipoise.quant.weights import engine

    monkeypatch.setattr(
        engine.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 1000)
    )
    with pytest.raises(UsageError, match="still to be written"):
        convert(glm3, tmp_path / "made", format_name="fp8-block", workers=1)
    assert not list((tmp_path / "made.partial").glob("*.safetensors*"))


# ---- interrupted and resumed ----

SLOW = """
import os, sys, time
from equipoise.quant.weights import jobs
from equipoise.quant.weights.convert import convert
run = jobs.ConvertJob.run
def slow(self, target, tick):
    record = run(self, target, tick)
    print("done", flush=True)
    time.sleep(0.5)
    return record
append = jobs.ShardWriter.append
def slow_append(self, name, tensor):
    append(self, name, tensor)
    time.sleep(0.02)
jobs.ConvertJob.run, jobs.ShardWriter.append = slow, slow_append
convert(sys.argv[1], sys.argv[2], format_name="int4-g32", workers=1)
"""


def test_a_killed_conversion_looks_like_nothing_and_is_taken_up_where_it_stood(glm3, tmp_path):
    made, partial = tmp_path / "made", tmp_path / "made.partial"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", SLOW, str(glm3), str(made)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "done\n"  # one of three shards
    deadline = time.monotonic() + 60
    while not list(partial.glob("*.tmp")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(partial.glob("*.tmp")), "killed while a shard was being written"
    assert not made.exists() and not (partial / "config.json").exists()
    first = next(partial.glob("*.safetensors"))
    inode = first.stat().st_ino
    result = convert(glm3, made, format_name="int4-g32", workers=1, resume=True)
    assert result.outcome.resumed == 1 and (made / first.name).stat().st_ino == inode
    assert not partial.exists() and not list(made.glob("*.tmp")) and not (made / ".equipoise").exists()
    assert verify(glm3, made, workers=1).passed
    convert(glm3, tmp_path / "straight", format_name="int4-g32", workers=1)
    assert fingerprint(made) == fingerprint(tmp_path / "straight")


def interrupted(source: Path, made: Path, monkeypatch) -> Path:
    """All shards done, killed before the end."""
    from equipoise.quant.weights import engine

    with monkeypatch.context() as patch:
        patch.setattr(engine.Target, "complete", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            convert(source, made, format_name="fp8-block", workers=1)
    return made.with_name(made.name + ".partial")


def test_a_shard_damaged_since_is_made_again(glm3, tmp_path, monkeypatch):
    partial = interrupted(glm3, tmp_path / "made", monkeypatch)
    victim = partial / "model-00002-of-00003.safetensors"
    with victim.open("r+b") as f:
        f.seek(victim.stat().st_size - 100)
        f.write(b"\x55" * 50)
    result = convert(glm3, tmp_path / "made", format_name="fp8-block", workers=1, resume=True)
    assert result.outcome.resumed == 2
    assert verify(glm3, tmp_path / "made", workers=1).passed


def test_a_partial_target_is_resumed_only_by_the_same_conversion(glm3, tmp_path, monkeypatch):
    made = tmp_path / "made"
    source = tmp_path / "source"
    shutil.copytree(glm3, source)
    interrupted(source, made, monkeypatch)
    with pytest.raises(UsageError, match="--resume, or remove"):
        convert(source, made, format_name="fp8-block", workers=1)
    for options in ({"format_name": "fp8-channel"}, {"format_name": "fp8-block", "ignore": ["o_proj"]}):
        with pytest.raises(UsageError, match="another source, format or version"):
            convert(source, made, workers=1, resume=True, **options)
    os.utime(source / "model-00001-of-00003.safetensors")  # the source was written again
    with pytest.raises(UsageError, match="another source"):
        convert(source, made, format_name="fp8-block", workers=1, resume=True)
    (tmp_path / "foreign.partial").mkdir()
    with pytest.raises(UsageError, match="not made by this command"):
        convert(source, tmp_path / "foreign", format_name="fp8-block", workers=1, resume=True)


def test_two_runs_cannot_write_one_target(glm3, tmp_path, monkeypatch):
    from equipoise.quant.weights.engine import Target

    partial = interrupted(glm3, tmp_path / "made", monkeypatch)
    plan = json.loads((partial / ".equipoise" / "plan.json").read_text())
    with (
        Target(path=tmp_path / "made", plan=plan).open(resume=True),
        pytest.raises(UsageError, match="another run"),
    ):
        convert(glm3, tmp_path / "made", format_name="fp8-block", workers=1, resume=True)


# ---- memory ----

MEASURE = """
import json, sys
from equipoise.quant.weights.convert import convert
if __name__ == "__main__":
    source, target, format_name, workers = sys.argv[1:]
    r = convert(source, target, format_name=format_name, workers=int(workers))
    print(json.dumps([r.outcome.idle_rss_bytes, r.outcome.peak_rss_bytes, r.outcome.seconds]))
"""


def synthetic(folder: Path, *, shards: int, rows: int, columns: int) -> Path:
    """A dense model of few large matrices; one tensor a file, 64 MB each."""
    folder.mkdir()
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": shards,
        "hidden_size": columns, "vocab_size": 16, "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    weight_map = {}
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(rows, columns, generator=generator) * 0.02).to(torch.bfloat16)
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        tensors = {f"model.layers.{i}.mlp.down_proj.weight": x}
        if i == 0:
            tensors["model.embed_tokens.weight"] = torch.ones(16, columns, dtype=torch.bfloat16)
        save_file(tensors, folder / file)
        weight_map |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_memory_above_idle_is_below_the_largest_tensor_let_alone_three_times(tmp_path):
    """The rule: above idle at most 3 times the largest tensor a worker. Slabs keep it far below once."""
    source = synthetic(tmp_path / "source", shards=4, rows=4096, columns=8192)  # 4 x 64 MB
    script = tmp_path / "measure.py"
    script.write_text(MEASURE)
    done = subprocess.run(
        [sys.executable, "-P", str(script), str(source), str(tmp_path / "made"), "nvfp4", "2"],
        capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True,
    )  # fmt: skip
    idle, peak, _ = json.loads(done.stdout)
    largest = Checkpoint.open(source).largest_tensor_bytes
    assert largest == 2 * 4096 * 8192
    assert 0 < peak - idle < largest
    assert idle > 50_000_000

"""Overlay controls: the source untouched, one known fault, everything else the same."""

import hashlib
import json
import os
import shutil
import stat
import struct
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from equipoise.evals.cli.app import main
from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.evals.experiment.arm_checkpoint import arm_checkpoint, require_same_model
from equipoise.evals.experiment.checkpoint_digest import checkpoint_digest
from equipoise.quant.checkpoint import Checkpoint
from equipoise.quant.control_strengths import named_strength
from equipoise.quant.controls import CONTROL_KINDS, ControlKind, ControlSpec, plan_control
from equipoise.quant.overlay import RECORD_NAME, planted_fault, write_overlay

EMBEDDED = Path(__file__).resolve().parents[2] / "tasks" / "embedded"


def tensors(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    out = {}
    for name, info in Checkpoint.open(folder).tensors.items():
        with (folder / info.shard).open("rb") as f:
            f.seek(info.begin)
            out[name] = (info.dtype, info.shape, f.read(info.nbytes))
    return out


def bf16(raw: bytes) -> np.ndarray:
    return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def state(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Of every file: size, time of writing, digest."""
    return {
        p.name: (p.stat().st_size, p.stat().st_mtime_ns, hashlib.sha256(p.read_bytes()).hexdigest())
        for p in folder.iterdir()
        if p.is_file()
    }


def overlay(model: str, out: Path, kind: ControlKind, strength: float, **options: object) -> Path:
    spec = ControlSpec(kind=kind, strength=strength, **options)  # type: ignore[arg-type]
    write_overlay(plan_control(Checkpoint.open(EMBEDDED / model), spec), out)
    return out


def write_shard(path: Path, entries: dict[str, tuple[str, list[int], bytes]]) -> None:
    header, data = {}, b""
    for name, (dtype, shape, raw) in entries.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def sharded(folder: Path, names_of: dict[str, list[str]], **extra: tuple[str, list[int], bytes]) -> Path:
    """The GLM-shaped model spread over shards, with its config; ``names_of`` by shard."""
    shutil.copytree(EMBEDDED / "glm_tiny", folder)
    found = tensors(folder)
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for shard, names in names_of.items():
        kept = {n: (dtype, list(shape), raw) for n, (dtype, shape, raw) in found.items()}
        entries = {n: (kept | extra)[n] for n in names}
        write_shard(folder / shard, entries)
        weight_map |= dict.fromkeys(names, shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize(
    ("model", "reached"), [("kimi_tiny", "kv_a_layernorm.weight"), ("glm_tiny", "k_norm.weight")]
)
@pytest.mark.parametrize(("kind", "strength"), [("noise-k", 0.3), ("scale-k", 1.4)])
def test_only_the_weights_that_make_k_change_and_by_the_stated_amount(
    tmp_path: Path, model: str, reached: str, kind: ControlKind, strength: float
) -> None:
    before_all = state(EMBEDDED / model)
    out = overlay(model, tmp_path / "control", kind, strength, layers=())
    before, after = tensors(EMBEDDED / model), tensors(out)
    assert before.keys() == after.keys()
    changed = [n for n in before if before[n] != after[n]]
    assert changed == [f"model.layers.{i}.self_attn.{reached}" for i in range(3)]
    for name in changed:
        old, new = bf16(before[name][2]), bf16(after[name][2])
        factors = new / old
        if kind == "scale-k":
            np.testing.assert_allclose(factors, strength, rtol=2**-8)  # bfloat16 rounding
        else:
            rms = np.sqrt(np.mean((factors - 1) ** 2))
            assert rms == pytest.approx(strength, rel=0.02)
            assert np.mean(factors - 1) == pytest.approx(0, abs=0.15)
    assert state(EMBEDDED / model) == before_all
    assert planted_fault(out) == f"{kind}-{strength:g}"


def test_the_noise_is_the_same_for_a_seed_and_another_for_another(tmp_path: Path) -> None:
    made = [
        overlay("glm_tiny", tmp_path / n, "noise-k", 0.3, layers=(), seed=s)
        for n, s in (("a", 1), ("b", 1), ("c", 2))
    ]
    digests = [checkpoint_digest(p) for p in made]
    assert digests[0] == digests[1] != digests[2]
    assert checkpoint_digest(EMBEDDED / "glm_tiny") not in digests


def test_rope_theta_changes_the_config_and_links_every_shard(tmp_path: Path) -> None:
    out = overlay("kimi_tiny", tmp_path / "control", "rope-theta", 3)
    assert (out / "model.safetensors").is_symlink()
    old, new = (json.loads((f / "config.json").read_text()) for f in (EMBEDDED / "kimi_tiny", out))
    assert new["rope_theta"] == new["rope_parameters"]["rope_theta"] == 3 * old["rope_theta"]
    new["rope_theta"] = old["rope_theta"]
    new["rope_parameters"] = old["rope_parameters"]
    assert new == old


def test_rope_theta_of_a_nested_language_model_is_found(tmp_path: Path) -> None:
    from equipoise.quant.controls import turned_config

    nested = {
        "text_config": {"rope_theta": 50_000.0, "rope_scaling": {"type": "yarn"}},
        "vision_config": {"rope_theta": 7},
    }
    turned = turned_config(nested, 2.0, source="config.json")
    assert turned["text_config"]["rope_theta"] == 100_000.0
    assert turned["vision_config"] == {"rope_theta": 7}
    with pytest.raises(CheckpointError, match="no rope_theta"):
        turned_config({"a": 1}, 2.0, source="config.json")


def test_of_several_shards_one_is_written_and_the_rest_are_linked(tmp_path: Path) -> None:
    names = list(tensors(EMBEDDED / "glm_tiny"))
    by_layer = {i: [n for n in names if f"layers.{i}." in n] for i in range(3)}
    rest = [n for n in names if "layers." not in n]
    source = sharded(
        tmp_path / "source", {"a.safetensors": by_layer[0] + rest, "b.safetensors": by_layer[1] + by_layer[2]}
    )
    plan = plan_control(Checkpoint.open(source), ControlSpec(kind="scale-k", strength=2))
    assert (plan.layers, plan.shards) == ((1, 2), ("b.safetensors",))
    before = state(source)
    written = write_overlay(plan, tmp_path / "control")
    out = written.path
    assert not (out / "b.safetensors").is_symlink()
    assert os.readlink(out / "a.safetensors") == str(source.resolve() / "a.safetensors")
    assert (out / "model.safetensors.index.json").read_bytes() == (
        source / "model.safetensors.index.json"
    ).read_bytes()
    old, new = tensors(source), tensors(out)
    assert {n for n in old if old[n] != new[n]} == {
        f"model.layers.{i}.self_attn.k_norm.weight" for i in (1, 2)
    }
    assert state(source) == before
    hard = write_overlay(plan, tmp_path / "hard", link="hard").path
    assert (hard / "a.safetensors").stat().st_ino == (source / "a.safetensors").stat().st_ino


def test_without_a_norm_of_k_its_projection_and_bias_are_scaled_per_row(tmp_path: Path) -> None:
    names = [n for n in tensors(EMBEDDED / "glm_tiny") if "k_norm" not in n]
    source = sharded(tmp_path / "source", {"a.safetensors": names})
    write_overlay(
        plan_control(Checkpoint.open(source), ControlSpec(kind="scale-k", strength=2)), tmp_path / "out"
    )
    old, new = tensors(source), tensors(tmp_path / "out")
    changed = {n.rpartition("self_attn.")[2] for n in old if old[n] != new[n]}
    assert changed == {"k_proj.weight", "k_proj.bias"}
    name = "model.layers.1.self_attn.k_proj.weight"
    np.testing.assert_array_equal(bf16(new[name][2]), 2 * bf16(old[name][2]))


def test_an_fp8_projection_is_scaled_through_its_row_scales_and_refused_without(tmp_path: Path) -> None:
    found = tensors(EMBEDDED / "glm_tiny")
    names = [n for n in found if "k_norm" not in n and "k_proj.weight" not in n]
    weights, scales = {}, {}
    for i in range(3):
        prefix = f"model.layers.{i}.self_attn.k_proj"
        weights[f"{prefix}.weight"] = ("F8_E4M3", [128, 128], bytes(128 * 128))
        scales[f"{prefix}.weight_scale"] = ("BF16", [128, 1], np.full(128, 0x3F80, "<u2").tobytes())
    source = sharded(tmp_path / "s", {"a.safetensors": [*names, *weights, *scales]}, **weights, **scales)
    write_overlay(
        plan_control(Checkpoint.open(source), ControlSpec(kind="scale-k", strength=2)), tmp_path / "out"
    )
    new = tensors(tmp_path / "out")["model.layers.0.self_attn.k_proj.weight_scale"][2]
    np.testing.assert_array_equal(bf16(new), 2.0)
    bare = sharded(tmp_path / "bare", {"a.safetensors": [*names, *weights]}, **weights)
    with pytest.raises(CheckpointError, match="F8_E4M3"):
        plan_control(Checkpoint.open(bare), ControlSpec(kind="scale-k", strength=2))


def test_nothing_is_written_over_and_nothing_is_left_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_control(Checkpoint.open(EMBEDDED / "glm_tiny"), ControlSpec(kind="scale-k", strength=2))
    (tmp_path / "there").mkdir()
    with pytest.raises(UsageError, match="exists"):
        write_overlay(plan, tmp_path / "there")
    with pytest.raises(UsageError, match="lies in the source"):
        write_overlay(plan, EMBEDDED / "glm_tiny" / "inside")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "shard")

    monkeypatch.setattr("equipoise.quant.overlay._overwrite", full)
    with pytest.raises(CheckpointError, match="No space left"):
        write_overlay(plan, tmp_path / "control")
    assert [p.name for p in tmp_path.iterdir()] == ["there"]


def test_pickles_hidden_files_and_folders_are_not_taken_along(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(EMBEDDED / "glm_tiny", source)
    for name in ("old.bin", ".secret"):
        (source / name).write_bytes(b"x")
    (source / "figures").mkdir()
    os.chmod(source / "config.json", stat.S_IRUSR)
    out = tmp_path / "out"
    write_overlay(plan_control(Checkpoint.open(source), ControlSpec(kind="rope-theta", strength=2)), out)
    assert not {"old.bin", ".secret", "figures"} & {p.name for p in out.iterdir()}


@pytest.mark.parametrize(
    ("kind", "strength", "layers", "said"),
    [
        ("scale-k", 1.0, None, "no fault"),
        ("noise-k", float("nan"), None, "not in"),
        ("noise-k", -1.0, None, "not in"),
        ("noise-k", 0.5, (7,), "0 to 2"),
        ("rope-theta", 2.0, (1,), "leave out --layers"),
    ],
)
def test_a_control_that_cannot_be_is_refused_by_name(
    kind: ControlKind, strength: float, layers: tuple[int, ...] | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        plan_control(
            Checkpoint.open(EMBEDDED / "glm_tiny"), ControlSpec(kind=kind, strength=strength, layers=layers)
        )


def test_a_strength_that_overflows_the_dtype_is_refused(tmp_path: Path) -> None:
    raw = np.full(64, 0x7F00, "<u2").tobytes()
    big = {f"model.layers.{i}.self_attn.k_norm.weight": ("BF16", [64], raw) for i in range(3)}
    source = tmp_path / "s"
    shutil.copytree(EMBEDDED / "glm_tiny", source)
    found = {n: (d, list(s), r) for n, (d, s, r) in tensors(source).items()} | big
    write_shard(source / "model.safetensors", found)
    plan = plan_control(Checkpoint.open(source), ControlSpec(kind="scale-k", strength=1e6))
    with pytest.raises(CheckpointError, match="overflows BF16"):
        write_overlay(plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_overlay_is_the_same_model_but_for_its_fault(tmp_path: Path) -> None:
    base = EMBEDDED / "kimi_tiny"
    for kind, strength in (("noise-k", 0.3), ("rope-theta", 3.0)):
        out = overlay("kimi_tiny", tmp_path / kind, kind, strength)  # type: ignore[arg-type]
        require_same_model(out, base)
        known = arm_checkpoint(str(out))
        assert known.suffix == f"+control={kind}-{strength:g}"
        assert known.weights == "bf16"


def test_the_command_makes_it_and_shows_the_launch_with_the_fault_in_the_name(tmp_path: Path) -> None:
    out = tmp_path / "gross"
    arguments = [
        "quant",
        "control",
        "embedded:kimi_tiny",
        "--kind",
        "noise-k",
        "--strength",
        "gross",
        "--out",
        str(out),
    ]
    done = CliRunner().invoke(main, [*arguments, "--variant", "kimi-k2.6@w=int4-g32,kv=bf16"])
    assert done.exit_code == 0, done.output
    label = json.loads((out / RECORD_NAME).read_text())["control"]
    command = done.stdout
    assert f"--served-model-name=kimi-k2.6+w=int4-g32,kv=bf16+control={label}" in command
    assert f"--weight-version=control={label}" in command
    assert f"--model-path={out}" in command
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 2
    assert "exists" in again.output
    served = CliRunner().invoke(main, ["serve", f"{out}@bf16", "--print", "--device", "cpu"])
    assert f"--served-model-name={out}+control={label}" in served.output


@pytest.mark.parametrize("model", ["kimi_tiny", "glm_tiny"])
@pytest.mark.parametrize("kind", CONTROL_KINDS)
def test_the_named_strengths_are_ones_that_were_measured_to_lose_as_much(
    model: str, kind: ControlKind
) -> None:
    table = (EMBEDDED.parents[1] / "tests" / "calibration" / "overlay_controls.md").read_text()
    cells = [
        [c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")
    ]
    measured = {(c[0], c[1], c[2]): float(c[4]) for c in cells[2:] if c[3] == "all"}
    lost = {
        name: -measured[model, kind, f"{named_strength(name, kind, latent=model == 'kimi_tiny'):g}"]
        for name in ("gross", "mild")
    }
    assert 0.08 <= lost["gross"] <= 0.15
    assert 0.04 <= lost["mild"] <= 0.07

"""Scales as a checkpoint: what is written, what SGLang makes of it, and what is never touched."""

import errno
import hashlib
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.calibration.delivery import (
    attention_prefixes,
    delivery_of,
    quantization_config,
    scale_json,
)
from equipoise.quant.calibration.output import REPORT_FILE, SCALE_FILE, describe, write
from equipoise.quant.calibration.overlay import write_overlay
from equipoise.quant.calibration.report import (
    CalibrationReport,
    LayerReport,
    PartReport,
    Population,
    Storage,
    WholeModel,
    to_json,
)
from equipoise.quant.checkpoint import INDEX_NAME, Checkpoint
from equipoise.quant.explain import explain
from equipoise.quant.geometry import load_geometry
from equipoise.quant.kv_layouts import HEAD_AMAX_FILE

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "vocab_size": 512, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}  # fmt: skip
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
GLM_4 = LLAMA | {
    "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "n_routed_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1,
}  # fmt: skip
KIMI: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
    "q_lora_rank": 64, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "vocab_size": 512, "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}  # fmt: skip
E4M3 = "--kv-cache-dtype=fp8_e4m3"


def shard(names: list[str]) -> bytes:
    header = {
        n: {"dtype": "BF16", "shape": [1], "data_offsets": [2 * i, 2 * i + 2]} for i, n in enumerate(names)
    }
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(2 * len(names))


def attention_names(prefix: str = "model.", layers: int = 3) -> list[str]:
    return [f"{prefix}layers.{i}.self_attn.{p}_proj.weight" for i in range(layers) for p in "kvo"]


def checkpoint(folder: Path, config: Mapping[str, Any], names: list[str] | None = None) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(shard(names or attention_names()))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def report(config: Mapping[str, Any], *, granularity: str = "tensor") -> CalibrationReport:
    geometry = load_geometry(config)
    storage = Storage(sqnr_db=31.5, cosine=0.9996, saturated_share=0.0, flushed_share=0.0)
    population = Population(
        rows=8, zero_rows=0, amax=7.0, percentiles={"99.99": 6.5}, stored=storage, at_unit_scale=storage
    )
    parts = ("latent", "rope") if geometry.is_latent else ("k", "v")

    def scales(layer: int, part: int) -> tuple[float, ...]:
        if geometry.is_latent:
            return (1.0,)
        value = (0.25, 0.0625)[part] * 2.0**-layer
        return (value, value / 2) if granularity == "head" else (value,)

    layers = tuple(
        LayerReport(
            layer=i,
            parts={
                part: PartReport(
                    scales=scales(i, j), method_scales=(0.02,), rest=population, sinks=population
                )
                for j, part in enumerate(parts)
            },
            attention_error=0.05,
            attention_error_at_unit_scale=0.06,
            kl_nats=0.01,
            kl_max_nats=float("inf"),
            top1_changed=3,
        )
        for i in range(geometry.num_layers)
    )
    whole = WholeModel(kl_nats=0.02, kl_max_nats=1.0, top1_changed=5)
    return CalibrationReport(
        model="m", architecture=geometry.architecture, attention=geometry.attention, method="amax",
        granularity=granularity, percentile=None, layout="fp8_flat", sink_tokens=4, compute="float32",
        data={"prompts": 1, "tokens": 8}, kl_prompts=1, kl_tokens=8, layers=layers, ranking=(0, 1, 2),
        calibrated=whole, at_unit_scale=whole, plan=None, versions={},
    )  # fmt: skip


def test_an_overlay_is_the_checkpoint_with_scales_and_the_source_is_untouched(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source", LLAMA)
    before = digests(source)
    out = tmp_path / "out"
    write(report(LLAMA), source, out)
    assert digests(source) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "source"]
    found = Checkpoint.open(out)
    assert set(found.tensors) == set(attention_names()) | {
        f"model.layers.{i}.self_attn.{p}_proj.{p}_scale" for i in range(3) for p in "kv"
    }
    assert not found.unindexed and not found.unlisted_files
    (link,) = [p for p in out.iterdir() if p.is_symlink()]
    assert link.resolve() == (source / "model.safetensors").resolve()
    assert (out / "tokenizer.json").read_text() == "{}"
    described = json.loads((out / REPORT_FILE).read_text())
    assert described["layers"][0]["parts"]["k"]["scales"] == [0.25]
    assert described["layers"][0]["kl_max_nats"] == "inf"


def test_sglang_takes_the_scales_of_a_llama_from_the_overlay(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source", LLAMA)
    output = write(report(LLAMA), source, tmp_path / "out")
    for arguments in ([E4M3], []):  # the declared scheme makes auto FP8
        told = explain(tmp_path / "out", arguments, "H200")
        assert told.exit_code == 0, [f.message for f in told.findings]
        assert told.kv_cache_dtype == "fp8_e4m3"
        (row,) = told.scales
        assert (row.layers, row.k, row.v) == ((0, 1, 2), (0.0625, 0.25), (0.015625, 0.0625))
        assert row.on_write and row.on_read and row.k_source.startswith("checkpoint model.layers.N.")
    assert output.served is True
    assert output.launch[0] == f"--model-path {tmp_path / 'out'} --kv-cache-dtype fp8_e4m3"


def test_the_json_file_goes_with_the_original_and_not_with_the_overlay(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source", LLAMA)
    write(report(LLAMA), source, tmp_path / "out", tp_size=2)
    flag = f"--quantization-param-path={tmp_path / 'out' / SCALE_FILE}"
    backend = "--attention-backend=trtllm_mha"
    alone = explain(source, [E4M3, flag, "--tp-size=2", backend], "B200")
    (row,) = alone.scales
    assert row.k == row.v == (0.0625, 0.25)
    assert alone.exit_code == 0, [f.message for f in alone.problems]
    for other in ("fa3", "triton", "flashinfer"):  # as the note says
        told = explain(source, [E4M3, flag, "--tp-size=2", f"--attention-backend={other}"], "H200")
        assert {f.rule for f in told.problems} == {f"json-{other}"}
    both = explain(tmp_path / "out", [E4M3, flag, "--tp-size=2", backend], "B200")
    assert any(f.rule == "json-parameter" and f.kind == "crash" for f in both.findings)


def test_qwen2_gets_the_only_names_that_it_loads(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source", QWEN2)
    write(report(QWEN2), source, tmp_path / "out")
    assert "model.layers.2.self_attn.attn.v_scale" in Checkpoint.open(tmp_path / "out").tensors
    told = explain(tmp_path / "out", [E4M3], "H200")
    assert told.exit_code == 0 and told.scales[0].k == (0.0625, 0.25)


@pytest.mark.parametrize(("config", "json_too"), [(GLM_4, False), (QWEN3, True)])
def test_scales_that_sglang_ignores_are_written_and_said_to_be_ignored(
    config: dict[str, Any], json_too: bool, tmp_path: Path
) -> None:
    source = checkpoint(tmp_path / "source", config)
    output = write(report(config), source, tmp_path / "out")
    assert output.served is False
    assert "never loads scale tensors" in output.notes[0]
    assert explain(tmp_path / "out", [E4M3], "H200").exit_code != 0
    assert (tmp_path / "out" / SCALE_FILE).exists() == json_too


def test_mla_gets_scales_of_exactly_one_and_the_reason(tmp_path: Path) -> None:
    names = [f"model.layers.{i}.self_attn.kv_b_proj.weight" for i in range(3)]
    source = checkpoint(tmp_path / "source", KIMI, names)
    output = write(report(KIMI), source, tmp_path / "out")
    raw = Checkpoint.open(tmp_path / "out")
    for i in range(3):
        for part in "kv":
            info = raw.tensors[f"model.layers.{i}.self_attn.attn_mqa.{part}_scale"]
            with (raw.path / info.shard).open("rb") as f:
                f.seek(info.begin)
                assert struct.unpack("<f", f.read(4)) == (1.0,)
    assert "writes this cache at scale 1" in output.notes[0]
    assert not (tmp_path / "out" / SCALE_FILE).exists()
    told = explain(tmp_path / "out", [], "H200")
    assert told.kv_cache_dtype == "fp8_e4m3"
    assert not any(f.kind in ("wrong", "crash") for f in told.findings), [f.message for f in told.findings]


def test_head_scales_are_for_the_cpu_server(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source", LLAMA)
    output = write(report(LLAMA, granularity="head"), source, tmp_path / "out")
    amax = json.loads((tmp_path / "out" / HEAD_AMAX_FILE).read_text())
    assert amax["layers"][1] == {"k": [56.0, 28.0], "v": [14.0, 7.0]}
    assert set(Checkpoint.open(tmp_path / "out").tensors) == set(attention_names())
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == LLAMA
    assert output.served is False


def test_shards_with_an_index_keep_their_names(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(LLAMA))
    names = attention_names()
    weight_map = {}
    for i, part in enumerate((names[:4], names[4:])):
        file = f"model-{i + 1:05d}-of-00002.safetensors"
        (source / file).write_bytes(shard(part))
        weight_map |= dict.fromkeys(part, file)
    (source / INDEX_NAME).write_text(json.dumps({"metadata": {"total_size": 18}, "weight_map": weight_map}))
    (source / "pytorch_model.bin").write_bytes(b"a pickle")
    (source / "stray.safetensors").write_bytes(shard(["x"]))
    write(report(LLAMA), source, tmp_path / "out")
    index = json.loads((tmp_path / "out" / INDEX_NAME).read_text())
    assert {k: v for k, v in index["weight_map"].items() if "scale" not in k} == weight_map
    assert index["metadata"]["total_size"] == 18 + 6 * 4
    assert not (tmp_path / "out" / "pytorch_model.bin").exists()
    assert not (tmp_path / "out" / "stray.safetensors").exists()


def test_nothing_is_overwritten_and_nothing_is_left_behind(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source", LLAMA)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(UsageError, match="exists; nothing is overwritten"):
        write(report(LLAMA), source, out)
    with pytest.raises(UsageError, match="never written to"):
        write(report(LLAMA), source, source / "inside")
    out.rmdir()
    with pytest.raises(ValueError, match="Out of range float"):
        write_overlay(source, out, scales={"a": 1.0}, files={"x.json": {"nan": float("nan")}})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source"]
    write_overlay(source, out, scales={"a": 1.0}, files={})
    with pytest.raises(CheckpointError, match="has a already"):
        write_overlay(out, tmp_path / "twice", scales={"a": 1.0}, files={})


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = checkpoint(tmp_path / "source", LLAMA)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device; nothing was left behind"):
        write(report(LLAMA), source, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source"]


def test_another_model_is_refused(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source", LLAMA)
    with pytest.raises(UsageError, match="a release of the same model"):
        write(report(QWEN2), source, tmp_path / "out")


def test_attention_names_are_the_checkpoints_own(tmp_path: Path) -> None:
    language = attention_names("language_model.model.", 4)  # with an MTP layer
    vision = attention_names("vision_tower.encoder.", 12)
    found = Checkpoint.open(checkpoint(tmp_path / "m", LLAMA, language + vision))
    assert attention_prefixes(found, 3) == tuple(
        f"language_model.model.layers.{i}.self_attn" for i in range(3)
    )
    with pytest.raises(CheckpointError, match="0 sets of 5 attention layers"):
        attention_prefixes(found, 5)


def test_declared_weights_keep_their_scheme() -> None:
    int4 = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {}}, "kv_cache_scheme": None}
    nested = quantization_config({"text_config": {"quantization_config": int4, "x": 1}, "y": 2})
    kept = nested["text_config"]["quantization_config"]
    assert kept["config_groups"] == {"group_0": {}} and kept["kv_cache_scheme"]["num_bits"] == 8
    assert int4["kv_cache_scheme"] is None  # the source's own is not edited
    assert (nested["text_config"]["x"], nested["y"]) == (1, 2)
    fp8 = quantization_config(
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    )
    assert fp8["quantization_config"]["kv_cache_quant_algo"] == "FP8"
    other = {"quantization_config": {"quant_method": "modelopt"}}
    assert quantization_config(other) == other


def test_the_json_file_has_every_rank_and_the_larger_scale() -> None:
    found = scale_json("llama", [(0.25, 0.5), (2.0, 0.125)], tp_size=2)
    layers = {"0": 0.5, "1": 2.0}
    assert found == {
        "model_type": "llama",
        "kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {"0": layers, "1": layers}},
    }


def test_an_unknown_architecture_is_said_to_be_unknown() -> None:
    geometry = load_geometry(LLAMA | {"architectures": ["SomeoneElsesForCausalLM"]})
    assert delivery_of(geometry).tensors_loaded is None


def test_token_tiles_leave_nothing_to_write(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source", LLAMA)
    tiles = report(LLAMA, granularity="token-tile")
    assert "nothing to calibrate" in describe(tiles, source, None).notes[0]
    with pytest.raises(UsageError, match="nothing to write"):
        write(tiles, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_json_has_no_value_that_a_parser_refuses() -> None:
    raw = json.dumps(
        to_json({"a": float("nan"), "b": [float("inf"), -float("inf")], 3: (1, "x")}), allow_nan=False
    )
    assert json.loads(raw) == {"a": None, "b": ["inf", "-inf"], "3": [1, "x"]}

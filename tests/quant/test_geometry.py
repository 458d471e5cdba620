"""Geometries: published configs, golden bytes per token, and files that lack or contradict something."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from published_configs import (
    GLM_46,
    GLM_47_FLASH,
    GLM_52,
    KIMI_K26,
    LLAMA_31_8B,
    QWEN2_7B,
    QWEN3_30B_A3B,
)

from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.geometry import (
    BUILTIN,
    FAMILIES,
    Geometry,
    find_builtin,
    kv_bytes_per_token,
    kv_bytes_per_token_per_gpu,
    kv_layer_bytes,
    kv_layout_for,
    kv_layouts_of,
    load_geometry,
)

EMBEDDED = Path(__file__).parents[2] / "tasks" / "embedded"
GLM_5 = {k: v for k, v in GLM_52.items() if not k.startswith(("indexer_types", "index_topk_", "index_skip"))}
GLM_5 |= {"max_position_embeddings": 202752}

GOLDEN = [
    ("kimi-k2", "bf16", 70_272),
    ("kimi-k2-thinking", "bf16", 70_272),
    ("kimi-k2.5", "fp8_flat", 35_136),
    ("kimi-k2.6", "fp8_flat", 35_136),
    ("kimi-k2.6", "ds656", 40_016),
    ("glm-4.6", "bf16", 376_832),
    ("glm-4.6", "fp8_flat", 188_416),
    ("glm-4.6", "fp8_per_head", 188_416),
    ("glm-4.5-air", "bf16", 188_416),
    ("glm-4.7-flash", "bf16", 54_144),
    ("glm-4.7-flash", "fp8_flat", 27_072),
    ("glm-5", "bf16", 100_152),
    ("glm-5", "ds656", 61_464),
    ("glm-5.1", "ds656", 61_464),
    ("glm-5.2", "bf16", 92_628),
    ("glm-5.2", "ds656", 53_940),
    ("smollm2-135m", "bf16", 23_040),
]


@pytest.mark.parametrize(("model", "layout", "expected"), GOLDEN)
def test_a_token_takes_the_published_bytes(model: str, layout: str, expected: int) -> None:
    assert kv_bytes_per_token(BUILTIN[model], layout) == expected


@pytest.mark.parametrize(
    ("config", "model"),
    [
        (KIMI_K26, "kimi-k2.6"),
        (GLM_46, "glm-4.6"),
        (GLM_47_FLASH, "glm-4.7-flash"),
        (GLM_5, "glm-5"),
        (GLM_52, "glm-5.2"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_published_config_gives_the_built_in_geometry(config: dict[str, Any], model: str) -> None:
    assert replace(load_geometry(config, name=model), source=BUILTIN[model].source) == BUILTIN[model]


@pytest.mark.parametrize(
    ("config", "bytes_per_token"),
    [
        (LLAMA_31_8B, 2 * 32 * 8 * 128 * 2),
        (QWEN2_7B, 2 * 28 * 4 * 128 * 2),
        (QWEN3_30B_A3B, 2 * 48 * 4 * 128 * 2),
    ],
)
def test_llama_and_qwen_cache_two_vectors_for_each_kv_head(
    config: dict[str, Any], bytes_per_token: int
) -> None:
    assert kv_bytes_per_token(load_geometry(config), "bf16") == bytes_per_token


@pytest.mark.parametrize(("name", "bf16"), [("kimi_tiny", 3 * 576 * 2), ("glm_tiny", 3 * 2 * 2 * 64 * 2)])
def test_the_embedded_models_load_from_their_folder(name: str, bf16: int) -> None:
    found = load_geometry(EMBEDDED / name)
    assert kv_bytes_per_token(found, "bf16") == bf16
    assert (found.name, found.source) == (name, str(EMBEDDED / name / "config.json"))
    assert load_geometry(EMBEDDED / name / "config.json") == found


@pytest.mark.parametrize("model", BUILTIN)
def test_every_built_in_model_names_its_source_and_has_all_layouts(model: str) -> None:
    found = BUILTIN[model]
    assert found.source.startswith("https://huggingface.co/") and "config.json" in found.source
    assert found.family in FAMILIES
    assert [kv_bytes_per_token(found, layout) > 0 for layout in kv_layouts_of(found)] == [True] * 3


def test_only_the_indexing_layers_of_glm_52_cache_indexer_keys() -> None:
    rows = {row.kind: row for row in kv_layer_bytes(BUILTIN["glm-5.2"], "ds656")}
    assert (rows["latent and RoPE key"].layers, rows["latent and RoPE key"].bytes_per_token) == (78, 656)
    assert (rows["indexer key"].layers, rows["indexer key"].bytes_per_token) == (21, 132)


@pytest.mark.parametrize(
    ("config", "indexing"),
    [
        ({"indexer_types": None, "index_topk_freq": 4, "index_skip_topk_offset": 3}, 21),
        ({"indexer_types": None, "index_topk_freq": None}, 78),
        ({"indexer_types": None, "index_topk_freq": 1}, 78),
        ({"indexer_types": None, "index_topk_pattern": "F" + "S" * 77}, 1),  # a pattern replaces the schedule
    ],
)
def test_indexing_layers_follow_the_schedule_where_no_list_is_given(
    config: dict[str, Any], indexing: int
) -> None:
    assert len(load_geometry(GLM_52 | config).index_layers) == indexing


@pytest.mark.parametrize(
    ("attention_tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)]
)  # above 8 GPUs, heads are repeated
def test_grouped_heads_are_divided_and_then_repeated(attention_tp: int, heads: int) -> None:
    found = kv_bytes_per_token_per_gpu(BUILTIN["glm-4.6"], "bf16", attention_tp)
    assert found == 376_832 // 8 * heads


def test_a_latent_is_whole_on_every_gpu() -> None:
    for model, layout in (("kimi-k2.6", "bf16"), ("glm-5", "ds656")):
        whole = kv_bytes_per_token(BUILTIN[model], layout)
        assert kv_bytes_per_token_per_gpu(BUILTIN[model], layout, 8) == whole


def test_heads_that_cannot_be_shared_are_refused() -> None:
    with pytest.raises(UsageError, match="8 KV heads, which 3 GPUs"):
        kv_bytes_per_token_per_gpu(BUILTIN["glm-4.6"], "bf16", 3)


@pytest.mark.parametrize(
    ("model", "dtype", "sm_major", "layout"),
    [
        ("kimi-k2.6", "fp8_e4m3", 9, "fp8_flat"),
        ("kimi-k2.6", "fp8_e4m3", 10, "fp8_flat"),
        ("glm-4.6", "fp8_e5m2", 9, "fp8_flat"),
        ("glm-5.1", "fp8_e4m3", 9, "ds656"),
        ("glm-5.1", "fp8_e4m3", 10, "fp8_flat"),
        ("glm-5.1", "bfloat16", 10, "bf16"),
    ],
)
def test_a_dtype_means_the_layout_that_sglang_uses(
    model: str, dtype: str, sm_major: int, layout: str
) -> None:
    assert kv_layout_for(BUILTIN[model], dtype, sm_major=sm_major) == layout


def test_dtypes_and_layouts_that_do_not_exist_are_refused() -> None:
    with pytest.raises(UsageError, match="KV dtype 'int4'"):
        kv_layout_for(BUILTIN["glm-4.6"], "int4")
    with pytest.raises(UsageError, match=r"refuses KV dtype fp8_e5m2 for glm-5 \(DSA\)"):
        kv_layout_for(BUILTIN["glm-5"], "fp8_e5m2")
    with pytest.raises(UsageError, match=r"'ds656' does not fit glm-4\.6"):
        kv_bytes_per_token(BUILTIN["glm-4.6"], "ds656")
    with pytest.raises(UsageError, match=r"'fp8_per_head' does not fit kimi-k2\.6"):
        kv_bytes_per_token(BUILTIN["kimi-k2.6"], "fp8_per_head")
    with pytest.raises(UsageError, match="kv_lora_rank 96"):
        kv_bytes_per_token(replace(BUILTIN["kimi-k2.6"], kv_lora_rank=96), "ds656")


@pytest.mark.parametrize("name", ["GLM-4.6", "zai-org/GLM-4.6", "glm-4.6"])
def test_a_built_in_model_is_found_by_its_hub_name(name: str) -> None:
    assert find_builtin(name) is BUILTIN["glm-4.6"]


def test_an_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'glm-9'.*kimi-k2\.6"):
        find_builtin("glm-9")


Change = Callable[[dict[str, Any]], None]


def without(key: str) -> Change:
    return lambda config: config.pop(key) and None


def to(**keys: Any) -> Change:
    return lambda config: config.update(keys)


BROKEN: list[tuple[dict[str, Any], Change, str]] = [
    (GLM_46, without("num_hidden_layers"), "num_hidden_layers is missing"),
    (GLM_46, without("head_dim"), "head_dim is missing"),
    (GLM_46, without("first_k_dense_replace"), "first_k_dense_replace is missing"),
    (GLM_46, without("moe_intermediate_size"), "moe_intermediate_size is missing"),
    (GLM_46, to(num_hidden_layers="92"), "num_hidden_layers is '92'"),
    (GLM_46, to(num_hidden_layers=True), "num_hidden_layers is True"),
    (GLM_46, to(num_hidden_layers=10**8), "num_hidden_layers is 100,000,000"),
    (GLM_46, to(hidden_size=0), "hidden_size is 0"),
    (GLM_46, to(hidden_size=10**12), "hidden_size is 1000000000000"),
    (GLM_46, to(num_key_value_heads=7), "does not divide 96"),
    (GLM_46, to(kv_lora_rank=512), "kv_lora_rank is set"),
    (GLM_46, to(num_experts_per_tok=161), "more than the 160 of n_routed_experts"),
    (GLM_46, to(first_k_dense_replace=93), "more than the 92 layers"),
    (GLM_46, to(model_type="mamba"), "model_type 'mamba'"),
    (GLM_46, without("model_type"), "model_type is missing"),
    (GLM_46, to(layer_types=["linear_attention"] * 92), "linear_attention"),
    (GLM_46, to(layer_types=["full_attention"]), "layer_types"),
    (GLM_46, to(tie_word_embeddings="no"), "tie_word_embeddings is 'no'"),
    (GLM_47_FLASH, without("kv_lora_rank"), "kv_lora_rank is missing"),
    (GLM_47_FLASH, without("q_lora_rank"), "q_lora_rank is missing"),
    (GLM_47_FLASH, without("v_head_dim"), "v_head_dim is missing"),
    (GLM_52, without("index_n_heads"), "index_n_heads is missing"),
    (GLM_52, without("index_topk"), "index_topk is missing"),
    (GLM_52, to(index_head_dim=96), "index_head_dim is 96"),
    (GLM_52, to(qk_head_dim=192), "qk_head_dim is 192, but"),
    (GLM_52, to(indexer_types=["full"] * 77), "list of 78"),
    (GLM_52, to(indexer_types=["full"] * 77 + [{}]), "list of 78"),
    (GLM_52, to(indexer_types=["shared"] + ["full"] * 77), "layer 0"),
    (GLM_52, to(indexer_types=["full"] * 78), "index_topk_freq means 21"),
    (GLM_52, to(mlp_layer_types=["dense"] * 78), "mlp_layer_types names 78"),
    (GLM_52, to(mlp_layer_types=[[]] * 78), "mlp_layer_types"),
    (LLAMA_31_8B, to(num_attention_heads=24), "does not divide hidden_size"),
    (LLAMA_31_8B, to(sliding_window=4096), "sliding_window is set"),
    (QWEN2_7B, to(use_sliding_window=True), "sliding_window is set"),
    (QWEN3_30B_A3B, to(mlp_only_layers=[48]), "mlp_only_layers"),
    (KIMI_K26, to(text_config=[]), "text_config is not an object"),
    (
        KIMI_K26,
        to(num_hidden_layers=60),
        r"num_hidden_layers is 60, but text_config\.num_hidden_layers is 61",
    ),
]


@pytest.mark.parametrize(("config", "change", "message"), BROKEN, ids=[m for _, _, m in BROKEN])
def test_a_config_that_lacks_or_contradicts_something_is_refused_by_key(
    tmp_path: Path, config: dict[str, Any], change: Change, message: str
) -> None:
    broken = deepcopy(config)
    change(broken)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(broken))
    with pytest.raises(CheckpointError, match=message) as caught:
        load_geometry(tmp_path)
    assert str(path) in str(caught.value)
    assert ";" in str(caught.value)  # what to do about it


def test_a_key_inside_text_config_is_named_as_such() -> None:
    config = deepcopy(KIMI_K26)
    del config["text_config"]["kv_lora_rank"]
    with pytest.raises(CheckpointError, match=r"text_config\.kv_lora_rank is missing"):
        load_geometry(config)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"a": 1, "a": 2}'])
def test_a_file_that_is_not_a_config_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_geometry(tmp_path)


def stored(**quantization: Any) -> str:
    return load_geometry(GLM_46 | {"quantization_config": quantization}).weights


def scheme(**weights: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


def test_the_weight_format_is_read_from_the_config() -> None:
    assert load_geometry(KIMI_K26).weights == "int4-g32"
    assert load_geometry(GLM_46).weights == "bf16"
    assert load_geometry(GLM_46 | {"dtype": "float32"}).weights == "other"
    assert stored(quant_method="fp8", weight_block_size=[128, 128]) == "fp8-block"
    assert stored(quant_method="fp8") == "other"
    assert stored(**scheme(type="float", num_bits=8, strategy="channel", symmetric=True)) == "fp8-channel"
    assert stored(**scheme(type="float", num_bits=8, strategy="block", symmetric=True)) == "fp8-block"
    four = {"type": "int", "num_bits": 4, "strategy": "group", "symmetric": True}
    assert stored(**scheme(**four, group_size=32)) == "int4-g32"
    assert stored(**scheme(**four, group_size=128)) == "other"
    assert stored(**scheme(**(four | {"symmetric": False}), group_size=32)) == "other"
    assert stored(quant_method="modelopt", quant_algo="NVFP4") == "nvfp4"
    assert stored(quant_method="awq") == "other"


def test_a_vision_tower_of_unknown_size_makes_the_weights_unknown() -> None:
    assert load_geometry(KIMI_K26).vision_parameters == 400_000_000
    other = load_geometry({"model_type": "x", "text_config": GLM_46, "vision_config": {"depth": 24}})
    assert (other.weights, other.vision_parameters) == ("other", 0)


def test_qwen_moe_layers_are_those_that_the_config_makes_sparse() -> None:
    def dense(**keys: Any) -> int:
        found: Geometry = load_geometry(QWEN3_30B_A3B | keys)
        return found.dense_layers

    assert (dense(), dense(mlp_only_layers=[0, 1]), dense(decoder_sparse_step=2)) == (0, 2, 24)

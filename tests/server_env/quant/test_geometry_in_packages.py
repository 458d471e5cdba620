"""Our geometries against the installed transformers and sglang: defaults, indexing layers, cell sizes."""

from types import SimpleNamespace
from typing import Any

import pytest

from equipoise.quant.geometry import BUILTIN, Geometry, kv_bytes_per_token, load_geometry
from equipoise.quant.geometry.indexer import scheduled_index_layers


def from_class(name: str, architecture: str, **changes: Any) -> Geometry:
    """The geometry of a config class's defaults, as transformers would write them to a config.json."""
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, name)(architectures=[architecture], dtype="bfloat16", **changes)
    return load_geometry(config.to_dict())


@pytest.mark.parametrize(
    ("name", "model", "changes"),
    [
        ("GlmMoeDsaConfig", "glm-5", {"num_nextn_predict_layers": 1}),
        ("Glm4MoeLiteConfig", "glm-4.7-flash", {"num_nextn_predict_layers": 1}),
        ("Glm4MoeConfig", "glm-4.5-air", {"head_dim": 128}),
    ],
)
def test_defaults_of_the_config_classes_are_the_built_in_geometries(
    name: str, model: str, changes: dict[str, Any]
) -> None:
    expected = BUILTIN[model]
    found = from_class(name, expected.architecture, **changes)
    for field in Geometry.__dataclass_fields__:
        if field not in ("name", "source", "num_mtp_layers"):
            assert getattr(found, field) == getattr(expected, field), field


@pytest.mark.parametrize(("freq", "offset"), [(1, None), (2, None), (4, 3), (3, 1), (5, 2)])
def test_sglang_indexes_in_the_layers_that_we_count(freq: int, offset: int | None) -> None:
    model_config = pytest.importorskip("sglang.srt.configs.model_config")
    config = SimpleNamespace(
        architectures=["GlmMoeDsaForCausalLM"],
        index_topk=2048,
        index_topk_freq=freq,
        index_skip_topk_offset=offset,
    )
    theirs = tuple(i for i in range(78) if not model_config.dsa_layer_skips_topk(config, i))
    ours = scheduled_index_layers(78, freq=freq, **({} if offset is None else {"offset": offset}))
    assert ours == theirs


def test_sglangs_indexer_row_has_132_bytes() -> None:
    pool = pytest.importorskip("sglang.srt.mem_cache.memory_pool").DSATokenToKVPool
    width = 128 + 128 // pool.quant_block_size * 4
    assert width * pool.index_k_with_scale_buffer_dtype.itemsize == 132
    glm = BUILTIN["glm-5"]
    assert kv_bytes_per_token(glm, "bf16") - 78 * 576 * 2 == 78 * width


@pytest.mark.parametrize(
    ("model", "dtype", "backend", "layout"),
    [
        ("kimi-k2.6", "bfloat16", "", "bf16"),
        ("kimi-k2.6", "float8_e4m3fn", "", "fp8_flat"),
        ("glm-5", "bfloat16", "flashmla_sparse", "bf16"),
        ("glm-5", "float8_e4m3fn", "flashmla_kv", "ds656"),
        ("glm-5", "float8_e4m3fn", "trtllm", "fp8_flat"),
    ],
)
def test_sglangs_latent_row_is_our_layout(
    monkeypatch: pytest.MonkeyPatch, model: str, dtype: str, backend: str, layout: str
) -> None:
    torch = pytest.importorskip("torch")
    module = pytest.importorskip("sglang.srt.mem_cache.kv_cache_configurator")
    kernel = SimpleNamespace(dsa_prefill_backend=backend, dsa_decode_backend=backend)
    monkeypatch.setattr(module, "get_exec", lambda: SimpleNamespace(kernel=kernel))
    monkeypatch.setattr(module, "get_disagg", lambda: SimpleNamespace(disaggregation_mode="null"))
    geometry = BUILTIN[model]
    hf_config = SimpleNamespace(
        architectures=["GlmMoeDsaForCausalLM" if geometry.attention == "dsa" else "DeepseekV3ForCausalLM"],
        index_topk=geometry.index_topk or None,
    )
    config = SimpleNamespace(
        hf_config=hf_config, kv_lora_rank=geometry.kv_lora_rank, qk_rope_head_dim=geometry.qk_rope_head_dim
    )
    chosen = getattr(torch, dtype)
    width = module.calculate_mla_kv_cache_dim(model_config=config, kv_cache_dtype=chosen)
    indexer = 132 * len(geometry.index_layers)
    assert width * chosen.itemsize * geometry.num_layers + indexer == kv_bytes_per_token(geometry, layout)

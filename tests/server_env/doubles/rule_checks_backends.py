"""Rules about attention backends and page size, run against the installed sglang."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from installed_sglang import PLATFORMS, View, isolated, model_config, on_platform
from rule_checks_launch import BF16, FP8, resolved

from equipoise.quant.explain.backends import DETERMINISTIC, forced_page_size
from equipoise.quant.geometry import BUILTIN


def _default_backend(gpu: str, *, mla: bool, **args: Any) -> str:
    from sglang.srt.arg_groups import model_override_base as base

    with on_platform(base, PLATFORMS[gpu]):
        return base.get_default_attn_backend(View(**args), mla, model_config("X"))


def backend_gqa() -> None:
    for gpu, topk in itertools.product(PLATFORMS, (None, 1, 4)):
        algorithm = None if topk is None else "EAGLE"
        words = () if topk is None else ("--speculative-algorithm=EAGLE", f"--speculative-eagle-topk={topk}")
        theirs = _default_backend(
            gpu, mla=False, speculative_eagle_topk=topk, speculative_algorithm=algorithm
        )
        assert theirs == resolved("glm-4.6", gpu, *words).prefill, (gpu, topk)
    theirs = _default_backend("B200", mla=False, speculative_algorithm="EAGLE")
    assert theirs == resolved("glm-4.6", "B200", "--speculative-algorithm=EAGLE").prefill == "flashinfer"


def backend_mla() -> None:
    for gpu in PLATFORMS:
        assert _default_backend(gpu, mla=True) == resolved("glm-4.7-flash", gpu).decode


def _deepseek(gpu: str, architecture: str, **args: Any) -> dict[str, Any]:
    from sglang.srt.arg_groups.model_overrides import deepseek_v2 as module

    text = {"index_topk": 2048} if architecture == "GlmMoeDsaForCausalLM" else {}
    config = model_config(architecture, **text)
    with on_platform(module, PLATFORMS[gpu], config):
        return module._deepseek_family_overrides(View(**args), config.hf_config)


def backend_deepseek_sm100() -> None:
    from sglang.srt.arg_groups.model_override_base import _MODEL_OVERRIDE_FNS

    for model in ("kimi-k2-thinking", "kimi-k2.6"):
        architecture = BUILTIN[model].architecture
        assert _deepseek("B200", architecture)["attention_backend"] == resolved(model, "B200").whole
        assert "attention_backend" not in _deepseek("H200", architecture)
        assert "attention_backend" not in _deepseek("B200", architecture, decode_attention_backend="flashmla")
    flash = _MODEL_OVERRIDE_FNS.get("Glm4MoeLiteForCausalLM", [])
    assert not any(f.__name__ == "_deepseek_family_overrides" for f in flash)


def backend_dsa() -> None:
    for gpu in PLATFORMS:
        theirs = _deepseek(gpu, "GlmMoeDsaForCausalLM", page_size=16)
        ours = resolved("glm-5", gpu, "--page-size=16")
        assert (
            (theirs["attention_backend"], theirs["page_size"]) == (ours.whole, ours.page_size) == ("dsa", 64)
        )


def dsa_kernels() -> None:
    from sglang.srt.arg_groups import overrides

    config = model_config("GlmMoeDsaForCausalLM", index_topk=2048)
    for gpu, word in itertools.product(PLATFORMS, ("bfloat16", "fp8_e4m3")):
        with on_platform(overrides, PLATFORMS[gpu], config):
            theirs = overrides._dsa_split_backend_resolution(View(kv_cache_dtype=word))
        ours = resolved("glm-5", gpu, f"--kv-cache-dtype={word}")
        assert theirs["dsa_prefill_backend"] == ours.dsa_prefill, (gpu, word)
        assert theirs["dsa_decode_backend"] == ours.dsa_decode, (gpu, word)


def fa3_e5m2() -> None:
    from sglang.srt.arg_groups.overrides import _attention_backend_fa3_fp8_fallback as fallback

    assert fallback(View(attention_backend="fa3", kv_cache_dtype="fp8_e5m2")) == {
        "attention_backend": "triton"
    }
    assert fallback(View(attention_backend="fa3", kv_cache_dtype="fp8_e4m3")) == {}
    assert resolved("glm-4.6", "H200", "--kv-cache-dtype=fp8_e5m2").prefill == "triton"


def _trtllm_mla(gpu: str, word: str) -> None:
    from sglang.srt.arg_groups import overrides

    with on_platform(overrides, PLATFORMS[gpu]):
        overrides._mla_kv_cache_dtype_checks(View(attention_backend="trtllm_mla", kv_cache_dtype=word))


def trtllm_mla_hardware() -> None:
    with pytest.raises(ValueError, match="Blackwell"):
        _trtllm_mla("H200", "fp8_e4m3")
    _trtllm_mla("B200", "fp8_e4m3")


def trtllm_mla_dtypes() -> None:
    for word in ("fp8_e4m3", "bf16", "auto"):
        _trtllm_mla("B200", word)
    for word in ("fp8_e5m2", "bfloat16"):
        with pytest.raises(ValueError, match="kv-cache-dtype"):
            _trtllm_mla("B200", word)


def cutedsl_mla() -> None:
    from sglang.srt.arg_groups import overrides

    def fill(gpu: str, **args: Any) -> dict[str, Any]:
        with on_platform(overrides, PLATFORMS[gpu]):
            return overrides._cutedsl_prefill_backend_fill(View(**args))

    assert fill("B200", decode_attention_backend="cutedsl_mla") == {"prefill_attention_backend": "trtllm_mla"}
    for gpu, args in (
        ("H200", {"decode_attention_backend": "cutedsl_mla"}),
        ("B200", {"decode_attention_backend": "cutedsl_mla", "kv_cache_dtype": "fp8_e5m2"}),
    ):
        with pytest.raises(ValueError):
            fill(gpu, **args)
    with pytest.raises(AssertionError):
        fill("B200", prefill_attention_backend="cutedsl_mla")


def backend_attention() -> None:
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

    for name, mla in (("trtllm_mha", True), ("hpc_ops", True), ("trtllm_mla", False), ("cutedsl_mla", False)):
        with pytest.raises(ValueError, match=name):
            ATTENTION_BACKENDS[name](SimpleNamespace(use_mla_backend=mla))


def flash_query(version: int, *, head_dim: int = 128, prefill: bool, scale: Any = None) -> tuple[Any, ...]:
    """What FlashAttention makes of q over an FP8 cache: (q, q_rope, k_rope, k_descale, v_descale)."""
    prepare = isolated(
        "layers/attention/flashattention_backend.py", "FlashAttentionBackend.prepare_paged_mha_query"
    )
    backend = SimpleNamespace(
        kv_cache_dtype_str="fp8_e4m3", kv_cache_is_mxfp8=False, fa_impl_ver=version, kv_cache_dtype=FP8
    )
    layer = SimpleNamespace(head_dim=head_dim, k_scale=scale, v_scale=scale)
    q = torch.ones(2, head_dim, dtype=BF16)
    found = prepare(backend, q, None, None, layer, logical_batch_size=2, kv_head_num=8, is_prefill=prefill)
    assert isinstance(found, tuple)
    return found


def fa4_fp8() -> None:
    assert flash_query(4, prefill=True)[0].dtype == BF16  # beside keys in FP8
    assert flash_query(3, prefill=True)[0].dtype == FP8


def deterministic_backend() -> None:
    from sglang.srt.arg_groups import overrides
    from sglang.srt.server_args import (
        DETERMINISTIC_ATTENTION_BACKEND_CHOICES,
        RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND,
    )

    assert set(DETERMINISTIC) == set(DETERMINISTIC_ATTENTION_BACKEND_CHOICES) - {"ascend", "intel_xpu"}
    assert "flashinfer" not in RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND
    for name in ("trtllm_mla", "dsa", "trtllm_mha"):
        with on_platform(overrides, PLATFORMS["B200"]), pytest.raises(ValueError, match=name):
            overrides._deterministic_attention_backend(
                View(attention_backend=name, enable_deterministic_inference=True)
            )
    for gpu, model in itertools.product(PLATFORMS, ("glm-4.7-flash", "glm-4.6")):
        config = model_config(BUILTIN[model].architecture)
        with on_platform(overrides, PLATFORMS[gpu], config):
            view = View(enable_deterministic_inference=True)
            theirs = overrides._deterministic_attention_backend(view)["attention_backend"]
        assert theirs == resolved(model, gpu, "--enable-deterministic-inference").whole, (gpu, model)


def page_size() -> None:
    from sglang.srt.arg_groups.overrides import _mla_backend_page_constraints as constrain

    names = (None, "fa3", "flashmla", "trtllm_mla", "cutedsl_mla", "trtllm_mha", "hpc_ops")
    for whole, prefill, decode, size in itertools.product(
        names[1:], names, names, (None, 1, 16, 32, 64, 128)
    ):
        view = View(
            attention_backend=whole, prefill_attention_backend=prefill, decode_attention_backend=decode,
            page_size=size,
        )  # fmt: skip
        ours = forced_page_size(
            attention="mla", whole=whole or "", prefill=prefill or whole or "", decode=decode or whole or "",
            asked=size, latent=True, sm100=True,
        )[0]  # fmt: skip
        assert constrain(view).get("page_size", size or 1) == ours, (whole, prefill, decode, size)


def page_size_fa4() -> None:
    from sglang.srt.arg_groups import overrides

    for gpu, mla, size in itertools.product(PLATFORMS, (True, False), (None, 64, 128)):
        config = model_config("X")
        with on_platform(overrides, PLATFORMS[gpu], config, mla=mla):
            theirs = overrides._fa4_page_constraint(View(attention_backend="fa4", page_size=size))
        ours = forced_page_size(
            attention="mla" if mla else "gqa", whole="fa4", prefill="fa4", decode="fa4", asked=size,
            latent=mla, sm100=gpu == "B200",
        )[0]  # fmt: skip
        assert theirs.get("page_size", size or 1) == ours, (gpu, mla, size)


CHECKS = {
    f.__name__.replace("_", "-"): f
    for f in (
        backend_gqa,
        backend_mla,
        backend_deepseek_sm100,
        backend_dsa,
        dsa_kernels,
        fa3_e5m2,
        trtllm_mla_hardware,
        trtllm_mla_dtypes,
        cutedsl_mla,
        backend_attention,
        fa4_fp8,
        deterministic_backend,
        page_size,
        page_size_fa4,
    )
}

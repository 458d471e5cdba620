"""Rules about a launch, run against the installed sglang. Each function is named for its rule."""

import itertools
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
import torch
from installed_sglang import PLATFORMS, View, isolated, model_config, on_platform

from equipoise.quant.explain import find_hardware
from equipoise.quant.explain.arguments import parse_arguments
from equipoise.quant.explain.declared import DeclaredKV, declared_kv
from equipoise.quant.explain.resolve import resolve
from equipoise.quant.geometry import BUILTIN

FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16


def resolved(model: str, gpu: str, *words: str) -> Any:
    none = DeclaredKV(method="none")
    return resolve(BUILTIN[model], none, parse_arguments(words), find_hardware(gpu), "bf16")


def stored(word: str, algorithm: str | None = None, **draft: Any) -> tuple[str | None, torch.dtype]:
    from sglang.srt.mem_cache import kv_cache_dtype as module

    with patch.object(module, "current_platform", SimpleNamespace(is_cpu=lambda: False)):
        return module.configure_kv_cache_dtype(
            server_args_kv_cache_dtype=word,
            model=SimpleNamespace(quant_config=SimpleNamespace(kv_cache_quant_algo=algorithm)),
            model_dtype=BF16,
            is_draft_worker=bool(draft),
            is_dflash=False,
            speculative_draft_attention_backend="fa3",
            **draft,
        )


def kv_auto() -> None:
    assert stored("auto") == (None, BF16)
    assert stored("auto", "FP8") == stored("auto", "fp8") == ("fp8_e4m3", FP8)
    assert stored("auto", "NVFP4") == stored("auto", "auto") == (None, BF16)


def kv_explicit() -> None:
    assert [stored(w)[1] for w in ("bf16", "bfloat16")] == [BF16, BF16]
    assert stored("fp8_e4m3") == (None, FP8)
    assert stored("fp8_e5m2") == (None, torch.float8_e5m2)


def scheme_compressed_tensors() -> None:
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        CompressedTensorsKVCacheMethod,
    )

    good = {"type": "float", "num_bits": 8, "strategy": "tensor", "symmetric": True, "dynamic": False}
    changes: list[dict[str, Any]] = [
        {}, {"type": "int"}, {"num_bits": 4}, {"strategy": "channel"}, {"symmetric": False}, {"dynamic": True}
    ]  # fmt: skip
    for scheme in [good | c for c in changes] + [{k: good[k] for k in ("type", "num_bits", "strategy")}]:
        config = {"quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme}}
        ours = declared_kv(config, None, None)
        assert CompressedTensorsKVCacheMethod.is_supported_scheme(scheme) == ours.is_fp8 == (not ours.dropped)


def scheme_modelopt() -> None:
    from sglang.srt.layers.quantization.modelopt_quant import ModelOptFp4Config, ModelOptFp8Config

    schemes: list[dict[str, Any]] = [
        {"kv_cache_scheme": {"type": "float", "num_bits": 8, "dynamic": True}},
        {"kv_cache_scheme": {"type": "int", "num_bits": 8}},
        {"kv_cache_quant_algo": "FP8"},
        {},
    ]
    for keys in schemes:
        for algorithm, cls in (("FP8", ModelOptFp8Config), ("NVFP4", ModelOptFp4Config)):
            section = {
                "quant_method": "modelopt",
                "quant_algo": algorithm,
                "group_size": 16,
                "ignore": [],
                **keys,
            }
            ours = declared_kv({"quantization_config": section}, None, None)
            theirs = cls.from_config({**section, "packed_modules_mapping": {}})
            assert (theirs.kv_cache_quant_algo or "") == ours.algorithm
            assert bool(theirs.kv_cache_quant_algo) == ours.gives_scales
            if algorithm == "FP8":
                nested = {"quantization": {"quant_algo": "FP8", "exclude_modules": [], **keys}}
                from_file = ModelOptFp8Config.from_config({**nested, "packed_modules_mapping": {}})
                if "kv_cache_scheme" not in keys:
                    assert (from_file.kv_cache_quant_algo or "") == declared_kv({}, nested, None).algorithm


def scheme_fp8() -> None:
    from sglang.srt.layers.quantization.fp8 import Fp8Config

    base = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    for keys in ({}, {"kv_cache_quant_algo": "FP8"}, {"kv_cache_scheme": {"type": "float", "num_bits": 8}}):
        section = base | keys
        ours = declared_kv({"quantization_config": section}, None, None)
        assert (Fp8Config.from_config(section).kv_cache_quant_algo or "") == ours.algorithm
        assert bool(ours.dropped) == ("kv_cache_scheme" in keys)


def _dsa_dtype(gpu: str, word: str) -> str:
    from sglang.srt.arg_groups import overrides

    view = View(kv_cache_dtype=word)
    config = model_config("GlmMoeDsaForCausalLM", index_topk=2048)
    with on_platform(overrides, PLATFORMS[gpu], config):
        return overrides._dsa_kv_cache_dtype_default(view).get("kv_cache_dtype", word)


def dsa_auto() -> None:
    for gpu, word in itertools.product(PLATFORMS, ("auto", "bf16", "bfloat16", "fp8_e4m3")):
        assert _dsa_dtype(gpu, word) == resolved("glm-5", gpu, f"--kv-cache-dtype={word}").kv_cache_word
    assert _dsa_dtype("B200", "auto") == "fp8_e4m3"


def dsa_dtypes() -> None:
    with pytest.raises(AssertionError):
        _dsa_dtype("H200", "fp8_e5m2")


def mxfp8_blackwell() -> None:
    from sglang.srt.arg_groups import kv_cache_hook

    for gpu, platform in PLATFORMS.items():
        with on_platform(kv_cache_hook, platform):
            view = View(kv_cache_dtype="mxfp8")
            if gpu == "H200":
                with pytest.raises(ValueError, match="mxfp8"):
                    kv_cache_hook.handle_mxfp8_kv_cache_compatibility(view)
            else:
                kv_cache_hook.handle_mxfp8_kv_cache_compatibility(view)


def _row_bytes(
    dtype: torch.dtype, *, dsa: bool, prefill: str = "", decode: str = "", mode: str = "null"
) -> int:
    from sglang.srt.mem_cache import kv_cache_configurator as module

    kernel = SimpleNamespace(dsa_prefill_backend=prefill, dsa_decode_backend=decode)
    config = SimpleNamespace(hf_config=None, kv_lora_rank=512, qk_rope_head_dim=64)
    with (
        patch.object(module, "is_deepseek_dsa", lambda _config: dsa),
        patch.object(module, "get_disagg", lambda: SimpleNamespace(disaggregation_mode=mode)),
        patch.object(module, "get_exec", lambda: SimpleNamespace(kernel=kernel)),
    ):
        return module.calculate_mla_kv_cache_dim(model_config=config, kv_cache_dtype=dtype)


def layout_mla() -> None:
    assert _row_bytes(FP8, dsa=False) == _row_bytes(BF16, dsa=False) == 576


def layout_dsa_656() -> None:
    assert _row_bytes(FP8, dsa=True, prefill="flashmla_kv", decode="flashmla_kv") == 656
    assert _row_bytes(BF16, dsa=True, prefill="flashmla_sparse", decode="fa3") == 576


def layout_dsa_raw() -> None:
    for prefill, decode, mode in itertools.product(
        ("trtllm", "flashmla_kv", "tilelang"),
        ("trtllm", "flashmla_kv", "tilelang"),
        ("null", "prefill", "decode"),
    ):
        words = (
            "--kv-cache-dtype=fp8_e4m3", f"--dsa-prefill-backend={prefill}", f"--dsa-decode-backend={decode}",
            f"--disaggregation-mode={mode}",
        )  # fmt: skip
        ours = resolved("glm-5", "B200", *words).layout
        theirs = _row_bytes(FP8, dsa=True, prefill=prefill, decode=decode, mode=mode)
        assert {"ds656": 656, "fp8_flat": 576}[ours] == theirs, words


def _mla_method(*, captured: bool, prefix: int) -> str:
    handle = isolated(
        "models/deepseek_common/attention_backend_handler.py",
        "_handle_attention_backend",
        is_in_tc_piecewise_cuda_graph=lambda: False,
        is_in_breakable_cuda_graph=lambda: captured,
        is_cp_active=lambda _batch: False,
        _get_sum_extend_prefix_lens=lambda _batch: prefix,
        _support_mha_one_shot=lambda *_: True,
        _dispatch_mla_subtype=lambda *_: "MLA",
        AttnForwardMethod=SimpleNamespace(
            MLA="MLA", MHA_ONE_SHOT="MHA_ONE_SHOT", MHA_CHUNKED_KV="MHA_CHUNKED_KV"
        ),
    )
    attn = SimpleNamespace(
        chunked_prefix_cache_threshold=8192, disable_chunked_prefix_cache=False, qk_rope_head_dim=64
    )
    mode = SimpleNamespace(is_extend_without_speculative=lambda: True)
    method = handle(attn, SimpleNamespace(forward_mode=mode), "fa3")
    assert isinstance(method, str)
    return method


def prefill_graph() -> None:
    from sglang.srt.configs.model_config import is_multimodal_breakable_cuda_graph_supported
    from sglang.srt.model_executor import cuda_graph_config

    assert _mla_method(captured=True, prefix=0) == "MLA"
    with patch("sglang.srt.utils.is_cuda", lambda: True):
        assert cuda_graph_config.default_prefill_backend() == "breakable"
    assert is_multimodal_breakable_cuda_graph_supported(["KimiK25ForConditionalGeneration"])


def prefill_fresh() -> None:
    assert _mla_method(captured=False, prefix=0) == "MHA_ONE_SHOT"
    assert _mla_method(captured=False, prefix=100) == "MLA"


def prefill_graph_off() -> None:
    from sglang.srt.arg_groups import cuda_graph_hook

    for architecture, off in (("DeepseekV3ForCausalLM", True), ("KimiK25ForConditionalGeneration", False)):
        said: list[Any] = []
        graphs = SimpleNamespace(prefill=SimpleNamespace(backend="breakable"))
        view = View(cuda_graph_config=graphs, _cuda_graph_config_locked=set())
        with (
            on_platform(cuda_graph_hook, PLATFORMS["B200"], model_config(architecture)),
            patch.object(cuda_graph_hook, "attention_backends_of", lambda _v: ("trtllm_mla", "trtllm_mla")),
            patch.object(cuda_graph_hook, "declare_resolution", lambda *_a, said=said, **k: said.append(k)),
            patch.object(cuda_graph_hook, "with_phase", lambda *_a, **k: k),
        ):
            cuda_graph_hook.disable_prefill_cuda_graph_for_deepseek_trtllm_mla(view)
        assert bool(said) == off, architecture


def logprob_start() -> None:
    from sglang.srt.managers.schedule_batch import Req

    def longest(start: int, *, logprobs: bool = True) -> int:
        request = SimpleNamespace(
            dllm_config=None, return_logprob=logprobs, logprob_start_len=start, is_dllm=lambda: False
        )
        return Req._compute_max_prefix_len(request, 100)

    assert (longest(0), longest(40), longest(-1), longest(0, logprobs=False)) == (0, 40, 99, 99)


def hicache_key() -> None:
    import dataclasses
    import tempfile

    from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig

    names = {f.name for f in dataclasses.fields(HiCacheStorageConfig)}
    assert not {n for n in names if "dtype" in n or "layout" in n} - {"is_page_first_layout"}
    config = HiCacheStorageConfig(
        tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=True,
        enable_storage_metrics=False, is_page_first_layout=False, model_name="m",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        assert HiCacheFile(config, file_path=folder).config_suffix == "_m"


def _pair(**prefill: Any) -> bool:
    """Whether the decode side (fp8_e4m3, page size 64) takes a prefill side that says this of itself."""
    from sglang.srt.disaggregation.common import conn

    said: dict[str, Any] = {
        "attn_tp_size": 1, "attn_cp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": 64,
        "kv_cache_dtype": "fp8_e4m3", "follow_bootstrap_room": True,
    }  # fmt: skip
    reply = SimpleNamespace(status_code=200, json=lambda: said | prefill)
    side = MagicMock(
        prefill_info_table={}, kv_cache_dtype_str="fp8_e4m3", kv_layout=None, dsv41_spec_layout=None,
        attn_tp_size=1, attn_cp_size=1, dcp_size=1, is_mla_backend=True,
        kv_args=SimpleNamespace(page_size=64),
    )  # fmt: skip
    with patch.object(conn, "requests", SimpleNamespace(get=lambda *_a, **_k: reply)):
        return bool(conn.CommonKVManager.try_ensure_parallel_info(side, "address"))


def pd_kv_dtype() -> None:
    assert _pair()
    for word in ("bf16", "auto", "bfloat16", "fp8_e5m2"):
        with pytest.raises(RuntimeError, match="KV cache dtype mismatch"):
            _pair(kv_cache_dtype=word)


def pd_page_size() -> None:
    with pytest.raises(RuntimeError, match="Page size mismatch"):
        _pair(page_size=1)


def pd_dsa_layout() -> None:
    from sglang.srt.disaggregation.utils import get_pd_kv_layout
    from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool, MLATokenToKVPool

    for pool in (DSATokenToKVPool, MLATokenToKVPool):
        assert get_pd_kv_layout(object.__new__(pool)) is None


def capacity() -> None:
    from sglang.srt.model_executor.pool_configurator import MemoryPoolConfig

    with pytest.raises(RuntimeError, match="mem-fraction-static"):
        MemoryPoolConfig(max_total_num_tokens=0)


CHECKS = {
    f.__name__.replace("_", "-"): f
    for f in (
        kv_auto, kv_explicit, scheme_compressed_tensors, scheme_modelopt, scheme_fp8, dsa_auto, dsa_dtypes,
        mxfp8_blackwell, layout_mla, layout_dsa_656, layout_dsa_raw, prefill_graph, prefill_fresh,
        prefill_graph_off, logprob_start, hicache_key, pd_kv_dtype, pd_page_size, pd_dsa_layout, capacity,
    )
}  # fmt: skip

"""Rules about KV scales, run against the installed sglang. Each function is named for its rule."""

import argparse
import inspect
import itertools
import math
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from installed_sglang import calls, isolated, source
from rule_checks_backends import flash_query
from rule_checks_launch import BF16, FP8, stored

from equipoise.quant.explain.families import FAMILIES
from equipoise.quant.explain.scales import ScaleTensor, find_scales, layer_scales, reaches_attention

NAN, INF = math.nan, math.inf


def _processed(k: float, v: float) -> tuple[float, float] | None:
    """What SGLang makes of a layer's loaded scales; None where its assertion fails."""
    from sglang.srt.layers.quantization.kv_cache import BaseKVCacheMethod

    layer, method = torch.nn.Module(), BaseKVCacheMethod(None)
    method.create_weights(layer)
    assert (layer.k_scale.item(), layer.v_scale.item()) == (-1.0, -1.0)
    layer.k_scale.data.fill_(k)
    layer.v_scale.data.fill_(v)
    try:
        method.process_weights_after_loading(layer)
    except AssertionError:
        return None
    return layer.k_scale_float, layer.v_scale_float


def _tensor(part: Any, value: float) -> ScaleTensor:
    return ScaleTensor(name=part, layer=0, part=part, form="projection", shape=(), value=value)


def _compare(values: list[tuple[float, float]]) -> None:
    for k, v in values:
        ours = layer_scales(0, {"k": _tensor("k", k), "v": _tensor("v", v)})
        theirs = _processed(k, v)
        assert (None if ours.asserts else (ours.k, ours.v)) == theirs, (k, v)


def scale_initial() -> None:
    assert _processed(-1.0, -1.0) == _processed(0.0, 0.0) == _processed(-3.0, 0.0) == (1.0, 1.0)
    _compare(list(itertools.product((-1.0, 0.0), repeat=2)))
    assert (layer_scales(0, {}).k, layer_scales(0, {}).v) == (1.0, 1.0)


def scale_copied() -> None:
    _compare([(0.5, -1.0), (0.5, 0.0), (0.5, NAN), (0.5, 2.0)])
    assert _processed(0.5, -1.0) == (0.5, 0.5)
    assert layer_scales(0, {"k": _tensor("k", 0.5)}).copied


def scale_v_alone() -> None:
    assert _processed(-1.0, 0.5) is None
    _compare([(-1.0, 0.5), (0.0, 0.5), (NAN, 0.5), (NAN, -1.0)])


def scale_unchecked() -> None:
    assert _processed(INF, 1.0) == (INF, 1.0)
    _compare([(INF, 1.0), (1.0, INF)])


def scale_per_tensor() -> None:
    from sglang.srt.model_loader.weight_utils import default_weight_loader

    scale = torch.nn.Parameter(torch.tensor(-1.0), requires_grad=False)
    default_weight_loader(scale, torch.tensor([0.5]))
    assert scale.item() == 0.5
    with pytest.raises(AssertionError):
        default_weight_loader(scale, torch.ones(8))


_LAYER = "model.layers.0.self_attn"
_NAMES = (
    "k_proj.k_scale", "v_proj.v_scale", "k_scale", "v_scale", "kv_scale", "k_proj.output_scale",
    "attn.k_scale", "attn_mqa.k_scale",
)  # fmt: skip


def _ours(name: str) -> ScaleTensor:
    info = SimpleNamespace(shape=(8,), numel=8, dtype="F32")
    (found,) = find_scales(SimpleNamespace(tensors={name: info}))  # type: ignore[arg-type]
    return found


def scale_names() -> None:
    from sglang.srt.model_loader.weight_utils import maybe_remap_kv_scale_name

    params = {f"{_LAYER}.attn.{p}_scale": None for p in "kv"}
    for name in _NAMES:
        theirs = maybe_remap_kv_scale_name(f"{_LAYER}.{name}", params)
        assert (theirs in params) == reaches_attention(_ours(f"{_LAYER}.{name}"), "remapped"), name
    for family in FAMILIES.values():
        if family.names == "remapped":
            assert "maybe_remap_kv_scale_name(name, params_dict)" in source(family.file, "LlamaForCausalLM")


class _Language(torch.nn.Module):
    """A language model of which only one attention layer's scales are there to be loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(tie_word_embeddings=False)
        attention = torch.nn.Module()
        for part in "kv":
            scale = torch.nn.Parameter(torch.tensor(-1.0), requires_grad=False)
            attention.register_parameter(f"{part}_scale", scale)
        attn, layer = torch.nn.Module(), torch.nn.Module()
        attn.add_module("attn", attention)
        layer.add_module("self_attn", attn)
        model = torch.nn.Module()
        model.add_module("layers", torch.nn.ModuleList([layer]))
        self.model = model

    @property
    def loaded(self) -> bool:
        attention: Any = self.model.get_submodule("layers.0.self_attn.attn")
        return bool((attention.k_scale > 0) | (attention.v_scale > 0))


def scale_names_literal() -> None:
    for family in FAMILIES.values():
        if family.names != "literal":
            continue
        cls = getattr(import_module("sglang.srt." + family.file[:-3].replace("/", ".")), family.architecture)
        load = getattr(cls, "_legacy_load_weights", cls.load_weights)
        for name in _NAMES:
            model = _Language()
            load(model, iter([(f"{_LAYER}.{name}", torch.tensor(0.5))]))
            ours = reaches_attention(_ours(f"{_LAYER}.{name}"), "literal")
            assert model.loaded == ours, (family.architecture, name)


def _passes_quant_config(file: str, attention_class: str) -> bool:
    built = calls(file, attention_class, "RadixAttention")
    assert built, f"{file}: {attention_class} builds no RadixAttention"
    return all(any(k.arg == "quant_config" for k in call.keywords) for call in built)


def _attention_file(file: str, attention_class: str) -> str:
    return "models/deepseek_v2.py" if attention_class == "DeepseekV2AttentionMLA" else file


def no_scales_glm4_moe() -> None:
    assert not _passes_quant_config("models/glm4_moe.py", "Glm4MoeAttention")
    for family in FAMILIES.values():
        file = _attention_file(family.file, family.attention_class)
        assert _passes_quant_config(file, family.attention_class) == family.passes_quant_config, family


def no_scales_qwen3() -> None:
    assert not _passes_quant_config("models/qwen3.py", "Qwen3Attention")
    assert not _passes_quant_config("models/qwen3_moe.py", "Qwen3MoeAttention")


def gqa_fa3() -> None:
    scale = torch.tensor(0.5)
    q, _, _, k, v = flash_query(3, prefill=False, scale=scale)
    assert q.dtype == FP8
    assert k.shape == v.shape == (2, 8)
    assert (k.unique().tolist(), v.unique().tolist()) == ([0.5], [0.5])
    assert flash_query(3, head_dim=576, prefill=False, scale=scale)[0].dtype == BF16


def hpc_scales(scale: Any) -> Any:
    use = isolated("layers/attention/hpc_ops_backend.py", "HPCOpsAttnBackend._layer_kv_scales")
    return use(SimpleNamespace(), SimpleNamespace(k_scale=scale, v_scale=scale))


def gqa_hpc_ops() -> None:
    assert [s.tolist() for s in hpc_scales(torch.tensor(0.5))] == [[0.5], [0.5]]


def gqa_trtllm_mha() -> None:
    file, cls = "layers/attention/trtllm_mha_backend.py", "TRTLLMHAAttnBackend"
    scalar = isolated(file, f"{cls}._get_scalar_scale", torch=torch, logger=None)
    scales = isolated(file, f"{cls}._get_bmm_scales", torch=torch)
    loaded = SimpleNamespace(k_scale_float=0.5, v_scale_float=0.25, scaling=2.0)
    from_file = SimpleNamespace(
        k_scale_float=None, v_scale_float=None, k_scale=0.5, v_scale=0.25, scaling=2.0
    )
    for layer in (loaded, from_file):
        backend = SimpleNamespace(data_type=FP8, _get_scalar_scale=scalar)
        assert scales(backend, layer) == (1.0, 0.25)
        backend.data_type = torch.float8_e5m2
        assert scales(backend, layer) == (2.0, 1.0)


def mla_write() -> None:
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool

    for method in (MLATokenToKVPool.set_kv_buffer, MLATokenToKVPool.set_mla_kv_buffer):
        assert not [p for p in inspect.signature(method).parameters if "scale" in p]


def mla_trtllm() -> None:
    use = isolated(
        "layers/attention/trtllm_mla_backend.py", "TRTLLMMLABackend._compute_decode_bmm1_scale", torch=torch,
        logger=SimpleNamespace(warning_once=lambda *_: None),
    )  # fmt: skip
    layer = SimpleNamespace(k_scale_float=0.5, scaling=2.0)
    assert use(SimpleNamespace(data_type=FP8), layer) == 1.0
    assert use(SimpleNamespace(data_type=BF16), layer) == 2.0


def draft_dtype() -> None:
    assert stored("fp8_e4m3", speculative_draft_kv_cache_dtype=None)[1] == FP8
    assert stored("fp8_e4m3", speculative_draft_kv_cache_dtype="bf16")[1] == BF16


def cpu_reference() -> None:
    from equipoise.quant.sglang.backend import ReferenceAttentionBackend

    layer = SimpleNamespace(
        layer_id=0, is_cross_attention=False, sliding_window_size=-1, logit_cap=0.0, xai_temperature_len=-1,
        k_scale=torch.tensor(0.5), v_scale=torch.tensor(0.5),
    )  # fmt: skip
    backend = SimpleNamespace(_checked=set(), float8=object(), mla=True, layout_pool=None)
    with pytest.raises(ValueError, match="MLA KV scale"):
        ReferenceAttentionBackend._check(backend, layer, {})
    backend.mla = False
    backend._checked.clear()
    ReferenceAttentionBackend._check(backend, layer, {})


def cpu_layout() -> None:
    from equipoise.quant.sglang.backend import ReferenceAttentionBackend

    layer = SimpleNamespace(
        layer_id=0, is_cross_attention=False, sliding_window_size=-1, logit_cap=0.0, xai_temperature_len=-1,
        k_scale=torch.tensor(0.5), v_scale=torch.tensor(0.5),
    )  # fmt: skip
    pool = SimpleNamespace(name="fp8_per_token_head")
    backend = SimpleNamespace(_checked=set(), float8=None, mla=False, layout_pool=pool)
    with pytest.raises(ValueError, match="scales of its own"):
        ReferenceAttentionBackend._check(backend, layer, {})


def cpu_only() -> None:
    from sglang.srt.server_args import ServerArgs

    from equipoise.quant.sglang.arguments import split_control, split_layout

    theirs = argparse.ArgumentParser()
    ServerArgs.add_cli_args(theirs)
    assert not {"--kv-control", "--kv-layout"} & set(theirs._option_string_actions)
    words = ["--model-path=/m", "--kv-cache-dtype=fp8_e4m3", "--kv-layout=ds656"]
    assert split_layout(words)[1] == "ds656"
    assert split_control(["--model-path=/m", "--kv-control=clip2"])[1] == "clip2"


CHECKS = {
    f.__name__.replace("_", "-"): f
    for f in (
        scale_initial,
        scale_copied,
        scale_v_alone,
        scale_unchecked,
        scale_per_tensor,
        scale_names,
        scale_names_literal,
        no_scales_glm4_moe,
        no_scales_qwen3,
        gqa_fa3,
        gqa_hpc_ops,
        gqa_trtllm_mha,
        mla_write,
        mla_trtllm,
        draft_dtype,
        cpu_reference,
        cpu_layout,
        cpu_only,
    )
}

"""What stock SGLang does on a CPU without AMX, and the hook that mends it. Nothing is edited in place.

All locations are of sglang 0.5.23, under ``sglang/srt``.
"""

import multiprocessing
import os
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from sglang.srt.mem_cache import kv_cache_configurator, kv_cache_dtype
from sglang.srt.plugins.hook_registry import HookType

from equipoise.quant.sglang.arguments import LAYOUT_ENV
from equipoise.quant.sglang.dense_mla import DENSE_ENV, DENSE_FACT, said

__all__ = ["DENSE_HOOKS", "HOOKS", "Hook", "register_attention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """One hook. ``mends`` says what the stock code does and where it is."""

    target: str
    kind: Any  # sglang's HookType
    function: Callable[..., Any]
    mends: str


class _NotCpu:
    """The current platform, but ``is_cpu()`` says no."""

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def is_cpu(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)


@contextmanager
def _cpu_hidden(module: ModuleType) -> Any:
    platform = module.current_platform
    module.current_platform = _NotCpu(platform)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.current_platform = platform  # type: ignore[attr-defined]


def _configure(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _cpu_hidden(kv_cache_configurator):
        return original(*args, **kwargs)


def _configure_dtype(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _cpu_hidden(kv_cache_dtype):
        return original(*args, **kwargs)


def _get_rope_cpu(  # noqa: PLR0917  get_rope_cpu's own signature
    original: Callable[..., Any],
    head_size: int,
    rotary_dim: int,
    max_position: int,
    base: int,
    is_neox_style: bool = True,
    rope_scaling: dict[str, Any] | None = None,
    dtype: Any = None,
    partial_rotary_factor: float = 1.0,
    device: str | None = None,
) -> Any:
    shared = (head_size, rotary_dim, max_position, base, is_neox_style, rope_scaling, dtype)
    if rope_scaling is not None and rope_scaling.get("rope_type") == "deepseek_yarn":
        return original(*shared, partial_rotary_factor, device)
    from sglang.srt.layers.rotary_embedding.factory import get_rope

    return get_rope(*shared, partial_rotary_factor)


def _tell_layout(result: dict[str, Any], *_args: Any, **_kwargs: Any) -> dict[str, Any]:
    layout = os.environ.get(LAYOUT_ENV)
    return result | {"kv_layout": layout} if layout else result


def _hide_indexer(original: Callable[..., Any], config: Any, name: str, *args: Any) -> Any:
    return None if name == "index_topk" else original(config, name, *args)


def _tell_dense(result: dict[str, Any], *_args: Any, **_kwargs: Any) -> dict[str, Any]:
    return result | {DENSE_FACT: said(int(os.environ[DENSE_ENV]))}


def _fork(result: Any, *_args: Any, **_kwargs: Any) -> None:
    multiprocessing.set_start_method("fork", force=True)


HOOKS: tuple[Hook, ...] = (
    Hook(
        target="sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator.configure",
        kind=HookType.AROUND,
        function=_configure,
        mends="mem_cache/kv_cache_configurator.py:459 refuses an fp8_e4m3 KV cache on a CPU without AMX, or "
        "for MLA; :453 swaps the plain FP8 pool for an AMX-only one. With is_cpu() hidden the plain "
        "pool results, the same as on a GPU.",
    ),
    Hook(
        target="sglang.srt.mem_cache.kv_cache_dtype.configure_kv_cache_dtype",
        kind=HookType.AROUND,
        function=_configure_dtype,
        mends="mem_cache/kv_cache_dtype.py:61 refuses an fp8_e5m2 KV cache on a CPU.",
    ),
    Hook(
        target="sglang.srt.layers.rotary_embedding.factory.get_rope_cpu",
        kind=HookType.AROUND,
        function=_get_rope_cpu,
        mends="layers/rotary_embedding/factory.py:480 asserts deepseek_yarn; DeepSeek-type models with "
        "plain rotary embeddings go to get_rope, as on a GPU.",
    ),
    Hook(
        target="sglang.srt.entrypoints.engine._set_envs_and_config",
        kind=HookType.AFTER,
        function=_fork,
        mends="entrypoints/engine.py:1995 spawns scheduler and detokenizer, which import torch and sglang "
        "again (8 CPU seconds each). Without CUDA a fork is safe, starts at once and shares memory.",
    ),
    Hook(
        target="sglang.srt.utils.common.build_server_info",
        kind=HookType.AFTER,
        function=_tell_layout,
        mends="utils/common.py:3584 tells the KV dtype but knows of no layout: /server_info gets kv_layout.",
    ),
)

# Only with --dense-mla.
DENSE_HOOKS: tuple[Hook, ...] = (
    Hook(
        target="sglang.srt.configs.model_config._hf_attr",
        kind=HookType.AROUND,
        function=_hide_indexer,
        mends="configs/model_config.py:211 calls a model sparse (DSA) if its config has index_topk, and the "
        "indexer that it then builds needs CUDA: with the key hidden the model is dense MLA.",
    ),
    Hook(
        target="sglang.srt.utils.common.build_server_info",
        kind=HookType.AFTER,
        function=_tell_dense,
        mends="nothing stock: /server_info says that the indexer was left out.",
    ),
)


def register_attention(control: str | None, layout: str | None) -> None:
    """Put our reference behind ``--attention-backend torch_native``, absorbed for MLA.

    Mends: layers/attention/torch_native_backend.py ignores k_scale and v_scale; and
    models/deepseek_common/attention_backend_handler.py has no handler for torch_native, so MLA
    falls to the one for triton, whose unabsorbed prefill never reads the cache and whose result
    is silently wrong here (mean logprob error 0.2).
    """
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import (
        AttnForwardMethod,
    )

    def create(runner: Any) -> Any:
        from equipoise.quant.sglang.backend import ReferenceAttentionBackend

        return ReferenceAttentionBackend(runner, control=control, layout=layout)

    register_attention_backend("torch_native")(create)
    AttentionBackendRegistry.register("torch_native", lambda attn, forward_batch: AttnForwardMethod.MLA)

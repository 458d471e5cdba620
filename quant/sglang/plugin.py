"""The SGLang plugin for a CPU without AMX (entry point ``sglang.srt.plugins``).

Inert unless our launcher set ``EQUIPOISE_SGLANG_CPU=1``: equipoise may be installed beside a GPU
sglang, which loads every installed plugin. SGLang swallows a plugin's exceptions, so what must
not go wrong ends the process instead, with a message that names it.
"""

import importlib.metadata
import os
import pkgutil
from typing import Any

from equipoise.quant.kv_layouts import KV_LAYOUT_KINDS
from equipoise.quant.sglang.arguments import CONTROL_ENV, ENABLE_ENV, LAYOUT_ENV
from equipoise.quant.sglang.dense_mla import DENSE_ENV
from equipoise.quant.variants import KV_CONTROL_NAMES, SGLANG_VERSION

__all__ = ["CONTROL_ENV", "ENABLE_ENV", "LAYOUT_ENV", "register", "require"]


def register() -> None:
    """Register the CPU hooks and the reference attention, or do nothing at all.

    Raises
    ------
    SystemExit
        Another version of sglang, or one without a function that a hook needs.
    """
    if os.environ.get(ENABLE_ENV) != "1":
        return
    installed = importlib.metadata.version("sglang")
    if installed != SGLANG_VERSION:
        raise SystemExit(
            f"equipoise's CPU plugin was written for sglang {SGLANG_VERSION}, this is {installed}: "
            f"pip install --no-deps sglang=={SGLANG_VERSION}"
        )
    control = os.environ.get(CONTROL_ENV) or None
    if control is not None and control not in KV_CONTROL_NAMES:
        raise SystemExit(f"unknown KV control {control!r}: choose one of {', '.join(KV_CONTROL_NAMES)}")
    layout = os.environ.get(LAYOUT_ENV) or None
    if layout is not None and layout not in KV_LAYOUT_KINDS:
        raise SystemExit(f"unknown KV layout {layout!r}: choose one of {', '.join(KV_LAYOUT_KINDS)}")

    # Imported only now: these import torch and sglang.
    from sglang.srt.plugins.hook_registry import HookRegistry

    from equipoise.quant.sglang.hooks import DENSE_HOOKS, HOOKS, register_attention

    for hook in (*HOOKS, *(DENSE_HOOKS if os.environ.get(DENSE_ENV) else ())):
        require(hook.target)
        HookRegistry.register(hook.target, hook.function, hook.kind)
    register_attention(control, layout)


def require(target: str) -> Any:
    """The object at a dotted path; ends the process if this sglang does not have it."""
    try:
        return pkgutil.resolve_name(target)
    except (ImportError, AttributeError) as e:
        raise SystemExit(
            f"equipoise's CPU plugin hooks {target}, which this sglang does not have ({e}): "
            f"reinstall sglang {SGLANG_VERSION}"
        ) from e

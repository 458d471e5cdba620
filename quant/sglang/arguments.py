"""The launcher's own flags, told apart from SGLang's."""

from collections.abc import Collection, Sequence

from equipoise.quant.kv_layouts import KV_LAYOUT_KINDS
from equipoise.quant.variants import KV_CONTROL_NAMES

__all__ = ["CONTROL_ENV", "ENABLE_ENV", "LAYOUT_ENV", "option", "split_control", "split_layout"]

# How the launcher tells the plugin, in this process and its children.
ENABLE_ENV = "EQUIPOISE_SGLANG_CPU"
CONTROL_ENV = "EQUIPOISE_SGLANG_KV_CONTROL"
LAYOUT_ENV = "EQUIPOISE_SGLANG_KV_LAYOUT"

BFLOAT16_DTYPES = ("auto", "bf16", "bfloat16")


def option(argv: Sequence[str], name: str) -> str | None:
    """The last value of ``--name value`` or ``--name=value`` in ``argv``; None if absent."""
    value = None
    for i, arg in enumerate(argv):
        if arg == name and i + 1 < len(argv):
            value = argv[i + 1]
        elif arg.startswith(f"{name}="):
            value = arg.removeprefix(f"{name}=")
    return value


def split_control(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Take ``--kv-control`` out of SGLang's arguments and name the server after it.

    Raises
    ------
    SystemExit
        Unknown control, or one together with an fp8 KV cache.
    """
    control = _chosen(argv, "--kv-control", KV_CONTROL_NAMES)
    if control is None:
        return list(argv), None
    dtype = option(argv, "--kv-cache-dtype") or "auto"
    if dtype not in BFLOAT16_DTYPES:
        raise SystemExit(
            f"--kv-control {control} plants its fault in a bfloat16 KV cache and cannot be combined "
            f"with --kv-cache-dtype {dtype}: drop one of the two"
        )
    return _named_after(argv, "--kv-control", control), control


def split_layout(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Take ``--kv-layout`` out of SGLang's arguments and name the server after it.

    Raises
    ------
    SystemExit
        Unknown layout, or one without ``--kv-cache-dtype fp8_e4m3``.
    """
    layout = _chosen(argv, "--kv-layout", KV_LAYOUT_KINDS)
    if layout is None:
        return list(argv), None
    dtype = option(argv, "--kv-cache-dtype") or "auto"
    if dtype != "fp8_e4m3":
        raise SystemExit(
            f"--kv-layout {layout} stores FP8 E4M3 codes and cannot be combined with --kv-cache-dtype "
            f"{dtype}: give --kv-cache-dtype fp8_e4m3"
        )
    return _named_after(argv, "--kv-layout", layout), layout


def _chosen(argv: Sequence[str], flag: str, known: Collection[str]) -> str | None:
    value = option(argv, flag)
    if value is None and flag in argv:
        raise SystemExit(f"{flag} needs a name: one of {', '.join(known)}")
    if value is not None and value not in known:
        raise SystemExit(f"{flag} {value}: unknown, choose one of {', '.join(known)}")
    return value


def _named_after(argv: Sequence[str], flag: str, value: str) -> list[str]:
    """``argv`` without the flag; the served name ends in ``+kv-...=value``."""
    rest: list[str] = []
    skip = False
    for arg in argv:
        if skip:
            skip = False
        elif arg == flag:
            skip = True
        elif not arg.startswith(f"{flag}="):
            rest.append(arg)
    name = option(argv, "--served-model-name") or option(argv, "--model-path") or option(argv, "--model")
    # argparse lets the last one win.
    return [*rest, f"--served-model-name={name}+{flag.removeprefix('--')}={value}"]

"""The launcher's own flag, told apart from SGLang's."""

from collections.abc import Sequence

from equipoise.quant.variants import KV_CONTROL_NAMES

__all__ = ["option", "split_control"]

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
    control = option(argv, "--kv-control")
    if control is None:
        if "--kv-control" in argv:
            raise SystemExit(f"--kv-control needs a name: one of {', '.join(KV_CONTROL_NAMES)}")
        return list(argv), None
    if control not in KV_CONTROL_NAMES:
        raise SystemExit(f"--kv-control {control}: unknown, choose one of {', '.join(KV_CONTROL_NAMES)}")
    dtype = option(argv, "--kv-cache-dtype") or "auto"
    if dtype not in BFLOAT16_DTYPES:
        raise SystemExit(
            f"--kv-control {control} plants its fault in a bfloat16 KV cache and cannot be combined "
            f"with --kv-cache-dtype {dtype}: drop one of the two"
        )
    rest: list[str] = []
    skip = False
    for arg in argv:
        if skip:
            skip = False
        elif arg == "--kv-control":
            skip = True
        elif not arg.startswith("--kv-control="):
            rest.append(arg)
    name = option(argv, "--served-model-name") or option(argv, "--model-path") or option(argv, "--model")
    # argparse lets the last one win.
    return [*rest, f"--served-model-name={name}+kv-control={control}"], control

"""Start SGLang on a CPU with our plugin: ``python -m equipoise.quant.sglang.launch [SGLang's flags]``.

One flag is ours: ``--kv-control NAME`` plants a fault in the KV cache (see kv_controls.py) and
puts it into the served model's name.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from equipoise.quant.sglang.plugin import CONTROL_ENV, ENABLE_ENV
from equipoise.quant.variants import KV_CONTROL_NAMES

__all__ = ["main", "split_control"]

SERVER_PATH = str(Path(__file__).resolve().parent / "server_path")
BFLOAT16_DTYPES = ("auto", "bf16", "bfloat16")


def prepare_process() -> None:
    """What each server process needs before it imports sglang (spawned children come here too)."""
    if SERVER_PATH not in sys.path:
        sys.path.insert(0, SERVER_PATH)  # the sgl_kernel stand-in, for this process alone
    from equipoise.quant.sglang.torchvision_ops import declare_torchvision_ops

    declare_torchvision_ops()


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


def main(argv: Sequence[str]) -> None:
    """Run the server until it is told to stop."""
    sglang_argv, control = split_control(argv)
    os.environ[ENABLE_ENV] = "1"
    os.environ["SGLANG_PLUGINS"] = "equipoise_cpu"
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    os.environ[CONTROL_ENV] = control or ""

    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    server_args = prepare_server_args(sglang_argv)
    try:
        run_server(server_args)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


prepare_process()

if __name__ == "__main__":
    main(sys.argv[1:])

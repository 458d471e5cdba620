"""Start SGLang on a CPU with our plugin: ``python -m equipoise.quant.sglang.launch [SGLang's flags]``.

Three flags are ours, and all put what they do into the served model's name: ``--kv-control NAME``
plants a fault in the KV cache (see kv_controls.py), ``--kv-layout NAME`` stores it in another
layout (see layout_pool.py), ``--dense-mla`` serves a GLM-5-type model without its sparse indexer
(see dense_mla.py).
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from equipoise.quant.sglang.arguments import (
    CONTROL_ENV,
    ENABLE_ENV,
    LAYOUT_ENV,
    split_control,
    split_layout,
)
from equipoise.quant.sglang.dense_mla import DENSE_ENV, DENSE_FLAG, said, split_dense

__all__ = ["main"]

SERVER_PATH = str(Path(__file__).resolve().parent / "server_path")


def prepare_process() -> None:
    """What each server process needs before it imports sglang (spawned children come here too)."""
    if SERVER_PATH not in sys.path:
        sys.path.insert(0, SERVER_PATH)  # the sgl_kernel stand-in, for this process alone
    from equipoise.quant.sglang.torchvision_ops import declare_torchvision_ops

    declare_torchvision_ops()


def main(argv: Sequence[str]) -> None:
    """Run the server until it is told to stop."""
    sglang_argv, control = split_control(argv)
    sglang_argv, layout = split_layout(sglang_argv)
    sglang_argv, dense = split_dense(sglang_argv)
    if dense is not None:
        print(f"{DENSE_FLAG}: {said(dense)}", file=sys.stderr, flush=True)
    os.environ[ENABLE_ENV] = "1"
    os.environ["SGLANG_PLUGINS"] = "equipoise_cpu"
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    os.environ[CONTROL_ENV] = control or ""
    os.environ[LAYOUT_ENV] = layout or ""
    os.environ[DENSE_ENV] = str(dense or "")

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

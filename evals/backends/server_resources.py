"""What a server needs of the machine before it starts: a port and memory."""

import random
import socket
from collections.abc import Sequence

import psutil

from equipoise.evals.errors import ServerError

__all__ = ["choose_port", "is_free", "servers_that_fit"]

# Below Linux's ephemeral range, so that no outgoing connection takes the port meanwhile, and below the ports
# (22000 to 29999) that SGLang picks for its process group long before it binds them.
PORT_RANGE = (10000, 22000)
# Resident memory of a CPU server without its weights, all processes together.
CPU_SERVER_BYTES = 2 * 1024**3


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        # As the server binds: a port in TIME_WAIT is free, a listening one is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def choose_port(host: str = "127.0.0.1", *, avoid: Sequence[int] = ()) -> int:
    """A port of ``host`` that is free now and not in ``avoid``.

    Raises
    ------
    ServerError
        None found.
    """
    for _ in range(200):
        port = random.SystemRandom().randrange(*PORT_RANGE)
        if port not in avoid and is_free(host, port):
            return port
    raise ServerError(
        f"no free port between {PORT_RANGE[0]} and {PORT_RANGE[1]} on {host}: give one yourself"
    )


def servers_that_fit(wanted: int, *, weights_bytes: int = 0, available_bytes: int | None = None) -> int:
    """How many of ``wanted`` CPU servers this machine's free memory can hold at once.

    Parameters
    ----------
    wanted : int
    weights_bytes : int
        Size of the checkpoint; every server holds its own copy.
    available_bytes : int or None
        None asks the operating system.

    Raises
    ------
    ServerError
        Not even one fits.
    """
    available = psutil.virtual_memory().available if available_bytes is None else available_bytes
    each = CPU_SERVER_BYTES + weights_bytes
    fit = int(min(wanted, available // each))
    if fit < 1:
        raise ServerError(
            f"a server needs about {each / 1e9:.1f} GB of memory and {available / 1e9:.1f} GB are free: "
            "end other processes, or use a smaller model"
        )
    return fit

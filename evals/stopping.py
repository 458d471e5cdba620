"""Asking a run to stop: by signal, or from code."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["StopRequest", "stop_on_signals"]


class StopRequest:
    """Asked once: finish what is in flight. Asked twice: drop it. Use it from one event loop."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    @property
    def requested(self) -> bool:
        return self._stop.is_set()

    def request(self) -> None:
        """Ask to stop; the second time, to hurry."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def wait(self) -> None:
        await self._stop.wait()

    async def wait_hurry(self) -> None:
        await self._hurry.wait()


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """A request that SIGINT and SIGTERM make, while the block lasts.

    Must be entered in a running event loop. Outside the main thread, where signals cannot be
    handled, the request is never made by itself.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    loop = asyncio.get_running_loop()
    previous = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    for s in previous:
        loop.add_signal_handler(s, stop.request)
    try:
        yield stop
    finally:
        for s, handler in previous.items():
            loop.remove_signal_handler(s)
            signal.signal(s, handler)

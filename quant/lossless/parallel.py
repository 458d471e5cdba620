"""Blocks in parallel: numpy, zstd and file reads all let go of the interpreter's lock."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["in_order"]

T = TypeVar("T")
R = TypeVar("R")

_AHEAD = 2  # items a thread may be ahead of the consumer: memory stays bounded


def in_order(function: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """``map(function, items)`` by several threads, few items ahead."""
    if threads <= 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        running: deque[Future[R]] = deque()
        try:
            for item in items:
                running.append(pool.submit(function, item))
                if len(running) >= _AHEAD * threads:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()

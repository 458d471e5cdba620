"""Progress of a run: bars on a terminal, a plain line now and then elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from equipoise.evals.runner import ProgressSink

__all__ = ["PlainProgress", "RichProgress", "show_progress"]


class PlainProgress:
    """One line for all arms, at most every ``interval_s`` seconds, for logs."""

    def __init__(self, stream: TextIO, *, interval_s: float = 15.0) -> None:
        self._stream = stream
        self._interval_s = interval_s
        self._printed = time.monotonic()
        self._rows: dict[str, list[float]] = {}  # total, done, failed, done at start, start (s)

    def start(self, label: str, *, total: int, done: int) -> None:
        self._rows[label] = [total, done, 0, done, time.monotonic()]

    def advance(self, label: str, *, failed: bool) -> None:
        row = self._rows[label]
        row[1] += 1
        row[2] += failed
        if time.monotonic() - self._printed >= self._interval_s or row[1] == row[0]:
            self.print_line()

    def print_line(self) -> None:
        """Print the state of all arms now."""
        now = self._printed = time.monotonic()
        parts = []
        for label, (total, done, failed, before, started) in self._rows.items():
            rate = (done - before) / max(now - started, 1e-9)
            left = f", {(total - done) / rate:.0f} s left" if rate > 0 and done < total else ""
            wrong = f", {failed:.0f} failed" if failed else ""
            parts.append(f"{label} {done:.0f}/{total:.0f} ({rate:.1f}/s{left}{wrong})")
        print(" | ".join(parts), file=self._stream, flush=True)


class RichProgress:
    """A bar for each arm, with its rate and the time left."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._ids: dict[str, TaskID] = {}
        self._state: dict[str, list[float]] = {}  # done in this session, failed, start (s)

    def start(self, label: str, *, total: int, done: int) -> None:
        self._ids[label] = self._bars.add_task(label, total=total, completed=done, rate="")
        self._state[label] = [0, 0, time.monotonic()]

    def advance(self, label: str, *, failed: bool) -> None:
        state = self._state[label]
        state[0] += 1
        state[1] += failed
        rate = f"{state[0] / max(time.monotonic() - state[2], 1e-9):.1f}/s"
        if state[1]:
            rate += f"  [red]{state[1]:.0f} failed[/red]"
        self._bars.update(self._ids[label], advance=1, rate=rate)


@contextmanager
def show_progress(stream: TextIO | None = None) -> Iterator[ProgressSink]:
    """Bars if ``stream`` (by default stderr) is a terminal, plain lines otherwise."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield PlainProgress(stream)
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(file=stream),
        refresh_per_second=4,
    ) as bars:
        yield RichProgress(bars)

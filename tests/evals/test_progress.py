"""Progress is bars on a terminal and plain, rare lines in a log."""

import io

from rich.console import Console
from rich.progress import Progress

from equipoise.evals.progress import PlainProgress, RichProgress, show_progress


def test_a_log_gets_plain_lines_now_and_then() -> None:
    stream = io.StringIO()
    with show_progress(stream) as progress:
        progress.start("m A", total=100, done=10)
        for i in range(90):
            progress.advance("m A", failed=i == 0)
    text = stream.getvalue()
    assert "\x1b" not in text
    assert text.count("\n") == 1  # only the end: 90 quick items are not worth more
    assert "m A 100/100" in text
    assert "1 failed" in text


def test_a_line_tells_the_time_left_of_unfinished_arms() -> None:
    stream = io.StringIO()
    progress = PlainProgress(stream, interval_s=0)
    progress.start("m A", total=10, done=0)
    progress.advance("m A", failed=False)
    assert "1/10" in stream.getvalue()
    assert "s left" in stream.getvalue()


def test_a_terminal_gets_a_bar_for_each_arm() -> None:
    stream = io.StringIO()
    with Progress(console=Console(file=stream, force_terminal=True)) as bars:
        progress = RichProgress(bars)
        for label in ("m A", "m B"):
            progress.start(label, total=4, done=1)
        progress.advance("m B", failed=True)
        done = {t.description: (t.completed, t.fields["rate"]) for t in bars.tasks}
    assert done["m A"][0] == 1
    assert done["m B"][0] == 2
    assert "1 failed" in done["m B"][1]

"""A history shows hostile names as text, keeps its width, and draws every run against its own margin."""

import json
import unicodedata

import pytest
from markdown_it import MarkdownIt
from rich.cells import cell_len

from equipoise.reports.history import History, ModelHistory, PastRun, Unread
from equipoise.reports.history_text import render_json, render_markdown, render_terminal

HOSTILE = {
    "ansi": "\x1b[31mred\x1b[0m\x07",
    "html": "<script>alert(1)</script></details>",
    "markdown": "| a | b |\n|---|---|\n# h `x` ![y](http://a.example)",
    "fence": "```\n# h",
    "bidi": "a\u202eb\u200b",
    "surrogate": "a\ud800",
    "long": "x" * 5000,
    "wide": "漢字" * 60,
}


def history(samples, text="benign"):
    pooled = samples.signed_off().models[0].pooled
    names = {"run": text, "started": "2026-01-01T00:00:00+00:00", "plan": text, "plan_hash": text}
    runs = (
        PastRun(**names, candidate=text, verdict="SIGNED OFF", pooled=pooled, attempt=1, max_attempts=2),
        PastRun(**names, candidate=text, verdict=None, pooled=None, notes=(text,)),
    )
    return History(
        models=(ModelHistory(model=text, runs=runs),), unread=(Unread(path=text, reason=text),), source="s"
    )


def unshown(text):
    kinds = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    return {c for c in text if unicodedata.category(c) in kinds} - {"\n", "\u2060"}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("width", [60, 100, 160])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_terminal_shows_hostile_names_and_keeps_its_width(samples, name, width, ascii_only):
    found = history(samples, HOSTILE[name])
    text = render_terminal(found, width=width, colour=False, ascii_only=ascii_only)
    assert not unshown(text)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert text.isascii() or not ascii_only


@pytest.mark.parametrize("name", HOSTILE)
def test_markdown_keeps_its_structure(samples, name):
    def skeleton(text):
        tokens = MarkdownIt("commonmark", {"html": True}).enable(["table"]).parse(text)
        return [(t.type, t.tag) for t in tokens]

    text = render_markdown(history(samples, HOSTILE[name]))
    assert not unshown(text)
    assert skeleton(text) == skeleton(render_markdown(history(samples)))
    assert "html_block" not in {kind for kind, _ in skeleton(text)}


def test_json_has_every_number_in_full(samples):
    found = history(samples, HOSTILE["surrogate"])
    data = json.loads(render_json(found))
    assert render_json(found).isascii()
    assert (
        data["models"][0]["runs"][0]["pooled"]["interval"]["lo"] == found.models[0].runs[0].pooled.interval.lo
    )
    assert data["models"][0]["runs"][1]["pooled"] is None


def test_the_plot_has_a_line_for_each_run_with_numbers(samples):
    text = render_terminal(history(samples), width=100, colour=False, ascii_only=False)
    assert len([line for line in text.splitlines() if "●" in line]) == 1

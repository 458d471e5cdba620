"""Golden reports of each verdict; set EQUIPOISE_UPDATE_GOLDEN=1 to write them anew, then read the diff."""

import os
import re
from pathlib import Path

import pytest

from equipoise.reports import html, json, junit, markdown, prometheus, svg, terminal

GOLDEN = Path(__file__).parents[1] / "golden"


def _page(report):
    """The HTML page without our style and script, whose hashes stand in its policy."""
    text = re.sub(r"(?s)(<style>|<script>).*?(</style>|</script>)", r"\1\2", html.render(report))
    return re.sub(r"'sha256-[^']*'", "'sha256-...'", text)


RENDERINGS = {
    "80.txt": lambda report: terminal.render(report, width=80, colour=False, ascii_only=False),
    "200.txt": lambda report: terminal.render(report, width=200, colour=False, ascii_only=False),
    "ascii.txt": lambda report: terminal.render(report, width=80, colour=False, ascii_only=True),
    "md": markdown.render,
    "json": json.render,
    "html": _page,
    "svg": svg.render,
    "junit.xml": junit.render,
    "prom": prometheus.render,
}


@pytest.mark.parametrize("name", ["signed_off", "degraded", "inconclusive", "invalid", "incomplete"])
@pytest.mark.parametrize("suffix", RENDERINGS)
def test_rendering_equals_its_golden_file(samples, name, suffix):
    path = GOLDEN / f"{name}.{suffix}"
    text = RENDERINGS[suffix](samples.REPORTS[name]())
    if os.environ.get("EQUIPOISE_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")

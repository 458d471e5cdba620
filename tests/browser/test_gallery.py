"""The documentation's figures: what is committed is what ``make docs`` writes, small, and loads nothing."""

import re

import gallery
import pytest
from chromium import find_browser

from equipoise.evals.errors import UsageError
from equipoise.reports import html

PAGES = [f"report-{device}-{theme}.png" for device in ("desktop", "phone") for theme in ("dark", "light")]
PHOTOGRAPHS = ["decision.png", "flips.png", *PAGES]
DRAWINGS = ["forest.svg", "terminal.svg"]


def test_every_figure_is_committed_and_all_are_small():
    found = {p.name: p.stat().st_size for p in gallery.GALLERY.iterdir() if p.suffix in (".png", ".svg")}
    assert sorted(found) == sorted([*PHOTOGRAPHS, *DRAWINGS])
    assert sum(found.values()) < gallery.MAX_BYTES


def test_a_report_is_photographed_in_both_themes_on_both_devices(samples, tmp_path):
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    browser = find_browser()
    if browser is None:
        pytest.skip("no browser")
    page = tmp_path / "report.html"
    page.write_text(html.page(samples.signed_off()).html, encoding="utf-8")
    written = gallery.take_screenshots(page, tmp_path, browser)
    assert sorted(p.name for p in written) == sorted(PHOTOGRAPHS)
    assert len({p.read_bytes() for p in written}) == len(written)


def test_the_terminal_figure_begins_with_the_verdict_and_loads_nothing(samples):
    drawn = gallery.terminal_svg(samples.degraded())
    assert drawn.index("DEGRADED") < drawn.index("margin")
    assert gallery.AFTERWARDS.replace(" ", "&#160;") not in drawn
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", drawn)
    assert re.findall(r"https?://[^\"\s]+", drawn) == ["http://www.w3.org/2000/svg"]


def test_without_a_browser_or_a_run_the_remedy_is_named_and_nothing_written(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("EQUIPOISE_BROWSER", raising=False)
    out = tmp_path / "out"
    with pytest.raises(UsageError, match=r"install one of chromium.*EQUIPOISE_BROWSER"):
        gallery.main([str(tmp_path), str(out)])
    assert not out.exists()

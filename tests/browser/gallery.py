"""``make docs``: the figures of the documentation, from a run directory.

``gallery.py RUN_DIR [OUT_DIR]`` decides the run again from its journal and writes the HTML report as
screenshots (through a headless Chromium), the beginning of the terminal report and the forest plots as SVG.
The figures in reports/gallery/ are of `make eval`.
"""

import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from chromium import NAMES, find_browser, launch_arguments
from rich.console import Console
from rich.text import Text

from equipoise.evals.errors import EquipoiseError, UsageError
from equipoise.evals.experiment.report_files import write_page
from equipoise.evals.experiment.results import analyse_with_flips
from equipoise.reports import svg, terminal
from equipoise.reports.model import Report

__all__ = ["main", "take_screenshots", "terminal_svg"]

GALLERY = Path(__file__).parents[2] / "reports" / "gallery"
DESKTOP, PHONE = (1_280, 860), (390, 844)
COLUMNS, LINES = 100, 58
AFTERWARDS = "Counts and tests"  # the figure ends before it
MAX_BYTES = 1_500_000  # of all figures, so that a clone stays small
LOADED = re.compile(r"@font-face\s*\{.*?\}|<!--.*?-->", re.DOTALL)


def terminal_svg(report: Report) -> str:
    """The first lines of the terminal report, in its colours, as an SVG that loads nothing."""
    text = terminal.render(report, width=COLUMNS, colour=True, ascii_only=False)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="standard")
    for line in map(Text.from_ansi, text.splitlines()[:LINES]):
        if line.plain.startswith(AFTERWARDS):
            break
        console.print(line, no_wrap=True, crop=True)
    drawn = console.export_svg(title="equipoise report", unique_id="equipoise")
    return "\n".join(line.rstrip() for line in LOADED.sub("", drawn).splitlines()) + "\n"


def take_screenshots(page: Path, out: Path, browser: str) -> list[Path]:
    """Photograph an HTML report in both themes on a desktop and a phone, and with a flip opened."""
    from playwright.sync_api import sync_playwright

    written = []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=launch_arguments())
        for device, (width, height) in {"desktop": DESKTOP, "phone": PHONE}.items():
            for theme in ("light", "dark"):
                opened = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
                opened.goto(page.as_uri())
                written.append(_photograph(opened, out / f"report-{device}-{theme}.png"))
                if (device, theme) == ("desktop", "light") and opened.locator(".flip").count():
                    written += [_flips(opened, out / "flips.png"), _decision(opened, out / "decision.png")]
                opened.close()
        chromium.close()
    return written


def _photograph(opened: Any, path: Path) -> Path:
    opened.screenshot(path=path, animations="disabled")
    return path


def _flips(opened: Any, path: Path) -> Path:
    opened.locator("#flips").scroll_into_view_if_needed()
    opened.locator(".flip summary").first.click()
    opened.locator(".flip-body").first.wait_for()
    opened.evaluate("document.querySelector('#flips').scrollIntoView()")
    return _photograph(opened, path)


def _decision(opened: Any, path: Path) -> Path:
    opened.evaluate("document.querySelector('[id$=-decision]').scrollIntoView()")
    return _photograph(opened, path)


def main(arguments: list[str], environ: dict[str, str] | None = None) -> list[Path]:
    """Write every figure; nothing is replaced where one of them could not be made.

    Raises
    ------
    UsageError
        Without a browser or a finished run, or where the figures would be too large.
    """
    run_dir, out = Path(arguments[0]), Path(arguments[1]) if len(arguments) > 1 else GALLERY
    browser = find_browser(os.environ if environ is None else environ)
    if browser is None:
        raise UsageError(
            f"no browser: install one of {', '.join(NAMES)}, or set EQUIPOISE_BROWSER to its path"
        )
    report, flips = analyse_with_flips(run_dir)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        (made / "terminal.svg").write_text(terminal_svg(report), encoding="utf-8")
        (made / "forest.svg").write_text(svg.render(report), encoding="utf-8")
        page = made / "report.html"
        write_page(page, report, flips)
        take_screenshots(page, made, browser)
        figures = sorted([*made.glob("*.svg"), *made.glob("*.png")])
        size = sum(f.stat().st_size for f in figures)
        if size > MAX_BYTES:
            raise UsageError(f"the figures have {size:,} bytes, more than {MAX_BYTES:,}: take another run")
        out.mkdir(parents=True, exist_ok=True)
        written = [Path(shutil.copy(figure, out)) for figure in figures]
    return written


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: gallery.py RUN_DIR [OUT_DIR]")
    try:
        for figure in main(sys.argv[1:]):
            print(f"{figure.stat().st_size:>9,}  {figure}")
    except EquipoiseError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(e.exit_code)

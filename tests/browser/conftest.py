"""A headless Chromium, and pages for it; the tests skip where there is none."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "evals" / "doubles"), str(TESTS / "browser")]

from chromium import NAMES, find_browser, launch_arguments  # noqa: E402


def _module(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def samples() -> ModuleType:
    return _module("report_samples", TESTS / "reports" / "samples.py")


@pytest.fixture(scope="session")
def hostile() -> ModuleType:
    return _module("report_hostile", TESTS / "reports" / "test_hostile.py")


# Not of the session: while Playwright runs, no other test of the process could use asyncio.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = find_browser()
    if path is None:
        pytest.skip(f"no browser: install one of {', '.join(NAMES)}, or set EQUIPOISE_BROWSER to its path")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=launch_arguments())
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a file; afterwards fail on whatever the page complained about or asked for."""
    seen = SimpleNamespace(pages=[], complaints=[], requests=[])

    def open_page(path: Path, *, width: int = 1_440, theme: str = "light") -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
        page.set_default_timeout(20_000)
        page.on(
            "console", lambda m: seen.complaints.append(m.text) if m.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda e: seen.complaints.append(str(e)))
        page.on("dialog", lambda d: (seen.complaints.append(f"dialog: {d.message}"), d.dismiss()))
        page.on("request", lambda r: seen.requests.append(r.url))
        page.goto(path.as_uri())
        seen.pages.append(page)
        return page

    yield open_page
    for page in seen.pages:
        page.close()
    assert seen.complaints == []
    assert [url for url in seen.requests if not url.startswith(("file:", "data:,"))] == []

"""Where a headless Chromium is, and how it is started."""

import os
import shutil
from collections.abc import Mapping

__all__ = ["NAMES", "find_browser", "launch_arguments"]

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_QUIET = (
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


def find_browser(environ: Mapping[str, str] = os.environ) -> str | None:
    """The path that EQUIPOISE_BROWSER names, or a Chromium on the path, or None."""
    return environ.get("EQUIPOISE_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


def launch_arguments() -> list[str]:
    """Root has no sandbox of Chromium's."""
    return [*_QUIET, *(["--no-sandbox"] if os.geteuid() == 0 else [])]

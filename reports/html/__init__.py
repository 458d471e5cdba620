"""The report as one HTML file: no network, no inline handler, a content security policy by hashes."""

from equipoise.reports.html.page import MAX_FLIP_BYTES, Page, page, render

__all__ = ["MAX_FLIP_BYTES", "Page", "page", "render"]

"""The published schema of the JSON report, and how it is made; see generate.py."""

from pathlib import Path

from equipoise.reports.model import SCHEMA_VERSION
from equipoise.reports.schema.generate import WORDS, render, schema

__all__ = ["PUBLISHED", "WORDS", "render", "schema"]

PUBLISHED = Path(__file__).with_name(f"report-{SCHEMA_VERSION}.json")

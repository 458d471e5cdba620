"""Fixtures: the sample reports, and a report with one string in every free place."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from equipoise.reports import json as report_json
from equipoise.reports.model import Report

# Closed vocabularies: any other word is refused when the report is made.
CLOSED = {"state", "verdict", "kind", "strength", "direction", "part"}


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("report_samples", Path(__file__).with_name("samples.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def samples() -> ModuleType:
    return _load()


@pytest.fixture(scope="session")
def filled(samples: ModuleType) -> Callable[[str], Report]:
    """A report in which every free string, names included, is the one given."""

    def fill(value: Any, text: str, key: str = "") -> Any:
        if value == {}:
            return value
        if isinstance(value, dict):
            if key == "task_verdicts":
                return {text: next(iter(value.values()))}
            if "text" in value and "chars" in value:
                return {"text": text, "chars": len(text)}
            flat = not any(isinstance(v, dict | list) for v in value.values())
            if flat and key in ("models", "versions", "hardware", "seeds", "undefined", "task_deltas"):
                return {text: fill(next(iter(value.values())), text)}
            return {k: fill(v, text, k) for k, v in value.items()}
        if isinstance(value, list):
            return [fill(v, text, key) for v in value]
        return text if isinstance(value, str) and key not in CLOSED else value

    def make(text: str) -> Report:
        data = json.loads(report_json.render(samples.invalid()))
        return report_json.load(json.dumps(fill(data, text)))

    return make

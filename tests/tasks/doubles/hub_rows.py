"""Stands in for the hub: rows by repository and configuration, in the form in which the hub has them."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

__all__ = ["serve_rows"]


def serve_rows(
    monkeypatch: pytest.MonkeyPatch, rows: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
) -> list[tuple[str, str, str, str]]:
    """Let ``datasets.load_dataset`` give ``rows``; notes (hub, config, split, revision) of every call."""
    import datasets

    asked: list[tuple[str, str, str, str]] = []

    def load_dataset(hub: str, config: str, *, split: str, revision: str) -> Sequence[Mapping[str, Any]]:
        asked.append((hub, config, split, revision))
        return rows[hub, config]

    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked

"""Stands in for the servers of a run, in this process: a model on disk, and arms that a script answers."""

import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from run_doubles import ScriptedBackend

from equipoise.evals.experiment import run
from equipoise.evals.run_types import Arm
from equipoise.evals.types import Output, Request, SampleKey

__all__ = ["ServersInPlace"]


class ServersInPlace(ABC):
    """Notes in ``up`` which arms were up together; ``answer`` says what they reply."""

    def __init__(self) -> None:
        self.up: list[list[str]] = []

    @abstractmethod
    def answer(self, key: SampleKey, request: Request, number: int) -> Output: ...

    @asynccontextmanager
    async def arms_up(
        self, session: Any, model: Any, group: Sequence[Any], specs: Any
    ) -> AsyncIterator[list[Arm]]:
        self.up.append([a.name for a in group])
        backend = ScriptedBackend(self.answer)
        yield [Arm(model=model.name, name=a.name, backend=backend) for a in group]

    def install(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Go to ``directory``, put a checkpoint ``model`` there, and take the place of real servers."""
        model = directory / "model"
        model.mkdir()
        (model / "config.json").write_text("{}")
        (model / "model.safetensors").touch()
        (model / "chat_template.jinja").touch()
        monkeypatch.chdir(directory)
        monkeypatch.setenv("EQUIPOISE_SGLANG_PYTHON", sys.executable)
        monkeypatch.setattr(run, "arms_up", self.arms_up)

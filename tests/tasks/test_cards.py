"""Every task of the registry says what its data are and pins them."""

import json
import re
from dataclasses import asdict

import pytest

from equipoise.tasks.card import Advice, Carded
from equipoise.tasks.registry import TASKS
from equipoise.tasks.rows import RowSource


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_card(name: str) -> None:
    task = TASKS[name]
    assert task.name == name
    assert isinstance(task, Carded)
    card = task.card
    assert card.title and card.group and card.licence
    assert card.citation or card.items is None  # generated ones cite nothing
    assert card.items is None or card.items > 0
    assert json.loads(json.dumps(asdict(card)))["title"] == card.title
    assert set(card.advice) <= {"kimi", "glm"}
    for advice in card.advice.values():
        assert advice.source
        assert advice != Advice(source=advice.source)


@pytest.mark.parametrize("name", TASKS)
def test_data_of_the_hub_are_pinned_to_a_commit(name: str) -> None:
    task = TASKS[name]
    sources = [getattr(task, "source", None), *getattr(task, "sources", ())]
    for source in sources:
        if isinstance(source, RowSource) and source.hub:
            assert re.fullmatch("[0-9a-f]{40}", source.revision), source

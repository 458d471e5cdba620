"""The training stream: conversations that mix all tasks, growing longer in stages.

Only keys that are *not* held out (``tasks.heldout``) enter the stream, so no evaluation item is
ever trained on. Tables are asked several times, which teaches retrieval faster.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from equipoise.tasks.addition import Addition
from equipoise.tasks.brackets import Brackets
from equipoise.tasks.copy import Copy
from equipoise.tasks.dialog_recall import draw_chain_table
from equipoise.tasks.embedded.tokenizer import BOS_ID, render
from equipoise.tasks.generated import Draw, SingleTurnTask
from equipoise.tasks.heldout import is_held_out
from equipoise.tasks.kv_retrieval import draw_keys, table_text
from equipoise.tasks.sort import Sort

__all__ = ["STAGES", "Stage", "stream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stretch of training with fixed sizes."""

    steps: int
    batch: int
    length: int  # tokens a sequence
    max_pairs: int
    max_copy: int
    max_sort: int
    max_brackets: int
    max_digits: int
    max_questions: int = 12  # asked of one table


STAGES: tuple[Stage, ...] = (
    Stage(steps=600, batch=16, length=96, max_pairs=6, max_copy=10, max_sort=6, max_brackets=8, max_digits=2),
    Stage(
        steps=900, batch=14, length=160, max_pairs=14, max_copy=16, max_sort=9, max_brackets=14, max_digits=3
    ),
    Stage(
        steps=700, batch=9, length=288, max_pairs=32, max_copy=24, max_sort=12, max_brackets=20, max_digits=4
    ),
    Stage(
        steps=1000, batch=6, length=416, max_pairs=50, max_copy=24, max_sort=12, max_brackets=20, max_digits=4
    ),
)

# How often each kind starts a new stretch of a conversation; tables are by far the longest.
_WEIGHTS = {"table": 1.5, "chain": 1.0, "copy": 2.0, "sort": 4.0, "brackets": 3.0, "addition": 6.0}
_INTERRUPTION = 0.15  # probability of a turn of another task between two questions to one table


def _short_turn(rng: random.Random, tasks: Mapping[str, SingleTurnTask]) -> Draw:
    """A turn of any short task, not held out."""
    names = list(tasks)
    while True:
        drawn = tasks[rng.choices(names, [_WEIGHTS[name] for name in names])[0]].draw(rng)
        if not is_held_out(drawn.split_key):
            return drawn


def _table(rng: random.Random, stage: Stage, tasks: Mapping[str, SingleTurnTask], *, chain: bool) -> Draw:
    n = max(2, round(stage.max_pairs ** rng.uniform(0.4, 1.0)))
    if chain:
        table = draw_chain_table(rng, n, 26)
    else:
        table = {key: f"{rng.randrange(100):02d}" for key in draw_keys(rng, n, 26)}
    text, keys = table_text(table), list(table)
    key = rng.choice(keys)
    turns = [(f"{text}?{key}", table[key])]
    for _ in range(rng.randint(min(n, stage.max_questions) // 2, min(n, stage.max_questions)) - 1):
        if rng.random() < _INTERRUPTION:
            turns.append(_short_turn(rng, tasks).turns[0])
        key = table[key] if chain and rng.random() < 0.7 else rng.choice(keys)
        turns.append((f"?{key}", table[key]))
    return Draw(turns=tuple(turns), split_key=text)


def _tasks(stage: Stage) -> dict[str, SingleTurnTask]:
    return {
        "copy": Copy(min_length=3, max_length=stage.max_copy),
        "sort": Sort(min_length=2, max_length=stage.max_sort),
        "brackets": Brackets(min_length=2, max_length=stage.max_brackets),
        "addition": Addition(digits=tuple(range(1, stage.max_digits + 1))),
    }


def stream(rng: random.Random, stage: Stage) -> Iterator[tuple[list[int], list[bool]]]:
    """Endless sequences of ``stage.length`` + 1 token ids with a mask of the answers' tokens."""
    tasks = _tasks(stage)
    kinds, weights = list(_WEIGHTS), list(_WEIGHTS.values())
    while True:
        ids, is_answer = [BOS_ID], [False]
        while len(ids) <= stage.length:
            kind = rng.choices(kinds, weights)[0]
            if kind in tasks:
                drawn = tasks[kind].draw(rng)
            else:
                drawn = _table(rng, stage, tasks, chain=kind == "chain")
            if is_held_out(drawn.split_key):
                continue
            more_ids, more_answer = render(drawn.turns)
            ids += more_ids[1:]  # one <bos> a sequence
            is_answer += more_answer[1:]
        yield ids[: stage.length + 1], is_answer[: stage.length + 1]

"""A data directory with invented rows for the sets that are not at hand, in numbers as the real ones have."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from equipoise.tasks.bbh import SUBSETS
from equipoise.tasks.registry import TASKS

__all__ = ["invented_data"]

Rows = Iterator[dict[str, Any]]


def _mmlu_pro() -> Rows:
    for i in range(12_032):
        options = [f"option {k}" for k in range(10)]
        yield {
            "question_id": i,
            "question": f"Which of ten, {i}?",
            "options": options,
            "answer": "ABCDEFGHIJ"[i % 10],
            "category": "law",
        }


def _mmlu_redux() -> Rows:
    for i in range(94):
        yield {
            "question": f"Which of four, {i}?",
            "choices": ["w", "x", "y", "z"],
            "answer": i % 4,
            "error_type": "ok",
        }


def _math_500() -> Rows:
    for i in range(500):
        yield {
            "problem": f"What is {i} + 1?",
            "answer": str(i + 1),
            "subject": "Algebra",
            "level": 1,
            "unique_id": f"test/algebra/{i}.json",
        }


def _aime() -> Rows:
    for i in range(30):
        yield {"id": i, "problem_idx": i, "problem": f"Find {i}.", "answer": i}


def _gpqa() -> Rows:
    for i in range(198):
        yield {
            "Record ID": f"rec{i}",
            "Question": f"Why {i}?",
            "Correct Answer": "right",
            "Incorrect Answer 1": "one",
            "Incorrect Answer 2": "two",
            "Incorrect Answer 3": "three",
            "High-level domain": "Physics",
        }


def _livecodebench() -> Rows:
    for i in range(175):
        yield {
            "question_title": "Echo",
            "question_content": f"Print the line. {i}",
            "platform": "invented",
            "question_id": str(i),
            "contest_id": "1",
            "contest_date": "2025-01-01T00:00:00",
            "starter_code": "",
            "difficulty": "easy",
            "public_test_cases": json.dumps([{"input": "a", "output": "a", "testtype": "stdin"}]),
            "private_test_cases": json.dumps([{"input": "b", "output": "b", "testtype": "stdin"}]),
            "metadata": "{}",
        }


_INVENTED = {
    "mmlu_pro": _mmlu_pro,
    "mmlu_redux": _mmlu_redux,
    "math_500": _math_500,
    "aime": _aime,
    "gpqa_diamond": _gpqa,
    "livecodebench": _livecodebench,
}
_BBH_TARGETS = {
    "brackets": "]",
    "valid/invalid": "valid",
    "yes/no": "yes",
    "true/false": "True",
    "number": "1",
    "words": "a b",
}


def _bbh(subset: str) -> dict[str, Any]:
    target = _BBH_TARGETS.get(str(SUBSETS[subset]), "(A)")
    rows = [{"input": f"Which, {i}?\nOptions:\n(A) this\n(B) that", "target": target} for i in range(250)]
    return {"examples": rows}


def invented_data(folder: Path) -> Path:
    """Links to what EQUIPOISE_DATA has, invented files for what it has not."""
    for entry in Path(os.environ["EQUIPOISE_DATA"]).iterdir():
        if entry.name not in (*_INVENTED, "bbh"):
            (folder / entry.name).symlink_to(entry)
    for name, rows in _INVENTED.items():
        lines = [json.dumps(row) for row in rows()]
        for source in TASKS[name].sources:  # type: ignore[attr-defined]
            path = folder / source.local
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n".join(lines) + "\n")
    for source in TASKS["bbh"].sources:  # type: ignore[attr-defined]
        path = folder / source.local
        path.parent.mkdir(exist_ok=True)
        real = Path(os.environ["EQUIPOISE_DATA"]) / source.local
        if real.is_file():
            path.symlink_to(real)
        else:
            path.write_text(json.dumps(_bbh(source.label)))
    return folder

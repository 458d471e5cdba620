"""Tasks of a user's own: rows in a file and a few lines of TOML, or a Python file.

Example::

    data = "questions.jsonl"            # beside this file; or .json, .jsonl.gz, .tsv
    prompt = "{question}\\nAnswer with a number only."
    target = "{answer}"
    grader = "number"                   # a name in graders/named.py, or "regex" with a pattern
    licence = "CC-BY-4.0"

Placeholders are fields of a row; nothing in a template is executed.
"""

import hashlib
import importlib.util
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from equipoise.evals.errors import UsageError
from equipoise.evals.types import Task, TaskItem
from equipoise.tasks.card import TaskCard
from equipoise.tasks.chat import ChatQuestion, ChatTask
from equipoise.tasks.graders.grade import Grade
from equipoise.tasks.graders.named import GRADERS, Grader
from equipoise.tasks.graders.pattern import PatternGrader
from equipoise.tasks.heldout import content_hash
from equipoise.tasks.rows import Row, RowSource, read_rows, sample_rows

__all__ = ["UserTask", "load_python_task", "load_toml_task"]

REGEX = "regex"
_PLACEHOLDER = re.compile(r"\{([A-Za-z0-9_.-]{1,64})\}|(\{\{)|(\}\})")


class _TaskFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    data: Annotated[str, Field(min_length=1)]
    prompt: Annotated[str, Field(min_length=1)]
    target: Annotated[str, Field(min_length=1)]
    grader: str = "exact"
    pattern: str = ""  # of the grader "regex"
    system: str = ""
    cluster: str = ""  # a field whose value rows of one document share
    strata: tuple[str, ...] = ()  # fields by which reports explore
    id: str = ""  # a field with a stable id
    max_new_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 4096
    title: str = ""
    licence: str = ""
    citation: str = ""
    version: str = "1"


class UserTask(ChatTask):
    """Rows of a file, a prompt with placeholders, and a grader by name."""

    def __init__(self, file: _TaskFile, *, name: str, data: Path, digest: str) -> None:
        self.name = name
        self.version = f"{file.version}-{digest[:12]}"
        self.max_new_tokens = file.max_new_tokens
        self.sources = ()
        self._file, self._data = file, data
        self._grader: Grader = PatternGrader(file.pattern) if file.grader == REGEX else GRADERS[file.grader]

    @property
    def card(self) -> TaskCard:
        return TaskCard(
            title=self._file.title or f"rows of {self._data.name}",
            group="your own",
            protocol="chat",
            licence=self._file.licence or "not stated",
            citation=self._file.citation,
            items=self.count(),
            clusters=self._file.cluster,
        )

    def items(self, n: int, seed: int) -> Sequence[TaskItem]:
        """``n`` items drawn by ``seed``; see `ChatTask.items`."""
        source = RowSource(
            local=self._data.name, hub="", config="", split="", revision="", licence="", citation=""
        )
        drawn = sample_rows(list(read_rows(self._data)), n, seed, name=self.name)
        return [self._item(source, index, row, True) for index, row in drawn]

    def count(self) -> int:
        """How many rows the file has."""
        return sum(1 for _ in read_rows(self._data))

    def parse(self, row: Row, *, source: RowSource, local: bool) -> ChatQuestion:
        f = self._file
        target = fill(f.target, row)
        if not target.strip():  # every answer contains it, none is it
            raise ValueError("its target is empty")
        self._grader("", target)  # raises ValueError for a target that it cannot grade by
        prompt, system = fill(f.prompt, row), fill(f.system, row)
        return ChatQuestion(
            prompt=prompt,
            target=target,
            system=system,
            # A question that is there twice is one observation.
            cluster=str(row[f.cluster]) if f.cluster else content_hash(system, prompt),
            strata={name: str(row[name]) for name in f.strata},
            key=str(row[f.id]) if f.id else "",
        )

    def grade(self, item: TaskItem, answer: str) -> Grade:
        return self._grader(answer, item.target)


def fill(template: str, row: Row) -> str:
    """The template with ``{field}`` replaced by the row's fields; ``{{`` and ``}}`` are braces.

    Raises
    ------
    KeyError
        The row has no such field.
    ValueError
        The field is null, or no number: no text to ask or to grade by.
    """

    def value(match: re.Match[str]) -> str:
        if match[2] or match[3]:
            return "{" if match[2] else "}"
        found: Any = row
        for part in match[1].split("."):
            if not isinstance(found, Mapping) or part not in found:
                raise KeyError(match[1])
            found = found[part]
        if found is None or found != found:  # noqa: PLR0124 NaN, which JSON does not have and Python reads
            raise ValueError(f"its field {match[1]!r} is {'null' if found is None else 'NaN'}")
        return str(found)

    return _PLACEHOLDER.sub(value, template)


def load_toml_task(path: Path, *, name: str) -> Task:
    """The task that a TOML file describes.

    Raises
    ------
    UsageError
        The file is not TOML, a key is unknown or missing, the prompt names no field, or there is no such
        grader or no data.
    """
    try:
        raw = path.read_bytes()
        file = _TaskFile.model_validate(tomllib.loads(raw.decode("utf-8-sig")))
    except OSError as e:
        raise UsageError(f"task {name!r}: cannot read {path} ({e.strerror})") from e
    except ValidationError as e:
        found = "; ".join(f"{'.'.join(map(str, err['loc']))}: {err['msg']}" for err in e.errors()[:3])
        raise UsageError(f"task {name!r}: {path}: {found}; keys: {', '.join(_TaskFile.model_fields)}") from e
    except (ValueError, RecursionError) as e:
        raise UsageError(f"task {name!r}: {path}: not valid TOML: {e}") from e
    if not any(m[1] for m in _PLACEHOLDER.finditer(file.prompt)):
        raise UsageError(f"task {name!r}: {path}: prompt names no field of a row, such as {{question}}")
    known = (*GRADERS, REGEX)
    if file.grader not in known:
        raise UsageError(f"task {name!r}: {path}: no grader {file.grader!r}; there are {', '.join(known)}")
    if (file.grader == REGEX) != bool(file.pattern):
        raise UsageError(f"task {name!r}: {path}: pattern goes with grader = {REGEX!r}, and it needs one")
    data = path.parent / file.data
    if not data.is_file():
        raise UsageError(f"task {name!r}: {path}: its data {data} is not a file")
    try:
        return UserTask(file, name=name, data=data, digest=_digest(raw, data))
    except (OSError, ValueError) as e:
        raise UsageError(f"task {name!r}: {path}: {e}") from e


def _digest(toml: bytes, data: Path) -> str:
    found = hashlib.sha256(toml)
    with data.open("rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()


def load_python_task(path: Path, *, name: str) -> Task:
    """The object ``TASK`` of a Python file, which is run: only for files that the user trusts.

    Raises
    ------
    UsageError
        The file fails, or has no ``TASK`` of this name with the methods of a task.
    """
    spec = importlib.util.spec_from_file_location(f"equipoise_user_task_{abs(hash(path))}", path)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as e:
        raise UsageError(f"task {name!r}: {path} failed: {type(e).__name__}: {e}") from e
    task = getattr(module, "TASK", None)
    missing = [
        m
        for m in ("name", "version", "kind", "needs_chat_template", "items", "next_request", "score")
        if not hasattr(task, m)
    ]
    if missing:
        raise UsageError(f"task {name!r}: {path} must define TASK with {', '.join(missing)}")
    found: Task = task  # type: ignore[assignment]
    if found.name != name:
        raise UsageError(f"task {name!r}: {path} defines task {found.name!r}; use one name for both")
    return found

"""What is wrong with a plan, in a line: the file, the line, the key, the nearest valid key."""

import difflib
import re
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel

__all__ = ["explain", "own_errors"]


def explain(err: Any, model: type[BaseModel], source: str, text: str) -> str:
    """One pydantic error of ``model`` in a line: file, line, key, what is wrong, nearest valid key."""
    loc: tuple[str | int, ...] = err["loc"]
    line = _line_of(text, loc)
    where = f"{source}:{line}" if line else source
    key = ".".join(str(p) for p in loc)
    if err["type"] == "extra_forbidden":
        valid = _fields_at(model, loc[:-1])
        near = difflib.get_close_matches(str(loc[-1]), valid, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"valid keys: {', '.join(valid)}"
        return f"{where}: unknown key {key!r}; {hint}"
    message = err["msg"].removeprefix("Value error, ")
    return f"{where}: {key}: {message}" if key else f"{where}: {message}"


def own_errors(errors: Sequence[Any]) -> list[Any]:
    """Without lists that are too short only because an entry of theirs is wrong."""

    def follows(err: Any) -> bool:
        loc = err["loc"]
        return err["type"] == "too_short" and any(
            len(o["loc"]) > len(loc) and o["loc"][: len(loc)] == loc for o in errors
        )

    return [err for err in errors if not follows(err)]


def _fields_at(model: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    """The valid keys of the table at ``loc``."""
    for part in loc:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *get_args(annotation)]
        model = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    return list(model.model_fields)


def _line_of(text: str, loc: Sequence[str | int]) -> int | None:
    """The 1-based line where the key at ``loc`` stands, as far as a line-wise scan can tell."""
    tables, key = [p for p in loc if isinstance(p, str)], None
    index = next((p for p in loc if isinstance(p, int)), None)
    if len(loc) and isinstance(loc[-1], str):
        key = tables[-1]
        tables = tables[:-1]
    here: list[str] = []
    seen: dict[str, int] = {}
    header_line: int | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*(\[\[?)\s*([^\]]+?)\s*\]", line)
        if header:
            here = header.group(2).split(".")
            seen[header.group(2)] = seen.get(header.group(2), -1) + 1
            if key is not None and [*tables, key] == here and not (index or 0) < seen[header.group(2)]:
                header_line = number
            if here == tables and (index is None or seen[header.group(2)] == index):
                header_line = number
            continue
        in_table = here == tables and (index is None or seen.get(".".join(here), 0) == index)
        if in_table and key is not None and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
            return number
        inline = tables and re.match(rf"\s*{re.escape(tables[-1])}\s*=", line)
        if inline and key is not None and re.search(rf"\b{re.escape(key)}\b", line):
            return number
    return header_line

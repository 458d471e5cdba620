"""In what two plans differ, by key: why a run refuses a plan that is not the registered one."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from equipoise.evals.errors import JournalError, PlanError
from equipoise.evals.journal_file import RunMetadata
from equipoise.evals.plan import Plan, hash_of

__all__ = ["plan_differences", "require_registered", "same_plan"]

MAX_DIFFERENCES = 10
MAX_VALUE_CHARS = 80
_ABSENT = object()


def plan_differences(registered: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """One line for each key in which two plans differ.

    Parameters
    ----------
    registered, now : mapping
        Plans as JSON values. Models, arms and tasks are matched by their names.

    Returns
    -------
    tuple of str
        For example ``decision.suite_margin: registered 0.025, now 0.05``; empty for equal plans.
    """
    return tuple(_differences("", registered, now))


def _differences(where: str, old: Any, new: Any) -> Iterator[str]:
    if old == new and type(old) is type(new):
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*old, *(k for k in new if k not in old)]:
            path = f"{where}.{key}" if where else str(key)
            yield from _differences(path, old.get(key, _ABSENT), new.get(key, _ABSENT))
        return
    before, after = _by_name(old), _by_name(new)
    if before is not None and after is not None:
        yield from _differences(where, before, after)
        if before.keys() == after.keys() and list(before) != list(after):
            yield f"{where}: registered in the order {', '.join(before)}, now {', '.join(after)}"
        return
    yield f"{where}: registered {_shown(old)}, now {_shown(new)}"


def _by_name(value: Any) -> dict[str, Any] | None:
    """A list of named tables by their names, if these tell its entries apart."""
    if not isinstance(value, list) or not all(isinstance(v, Mapping) and "name" in v for v in value):
        return None
    named = {str(v["name"]): v for v in value}
    return named if len(named) == len(value) else None


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "absent"
    if isinstance(value, Mapping) and "name" in value:
        return "present"  # a whole model, arm or task: its name is in the key
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}..."


def same_plan(metadata: RunMetadata, plan: Plan) -> bool:
    """Whether the registered text says this plan; keys that came later have their defaults there."""
    if metadata.plan_hash == plan.content_hash:
        return True
    try:
        return Plan.model_validate(json.loads(metadata.plan_text)) == plan
    except (ValueError, RecursionError):
        return False


def require_registered(path: Path, metadata: RunMetadata, plan: Plan) -> None:
    """Refuse a plan that differs from the one that a journal registered before its first request.

    Raises
    ------
    PlanError
        Another plan; both hashes and every key that changed are named.
    JournalError
        The registered plan's text does not match its hash: the journal was changed.
    """
    try:
        registered = json.loads(metadata.plan_text)
    except (ValueError, RecursionError):
        registered = None
    if not isinstance(registered, dict) or hash_of(registered) != metadata.plan_hash:
        raise JournalError(
            f"{path}: the stored plan does not match the registered hash {metadata.plan_hash[:12]}; the "
            "journal was changed after the run; restore it from a copy, or run again in another directory"
        )
    if same_plan(metadata, plan):
        return
    found = plan_differences(registered, plan.model_dump(mode="json"))
    more = [f"and {len(found) - MAX_DIFFERENCES} more"] if len(found) > MAX_DIFFERENCES else []
    raise PlanError(
        f"{path}: this run was registered with plan {metadata.plan_hash}, but the plan given now is "
        f"{plan.content_hash}: {'; '.join([*found[:MAX_DIFFERENCES], *more])}. What was fixed before the "
        "data stays as it is: resume with the registered plan, or start a new run for the new one with "
        "another --out"
    )

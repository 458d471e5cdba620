"""What our own exports add to another tool's rows, under one key: what that tool's form cannot say."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from equipoise.evals.errors import UsageError
from equipoise.evals.interop.columns import as_text, token_count
from equipoise.evals.interop.result_set import ItemResult, excerpt, short_id
from equipoise.evals.interop.scores import ScoreError, to_score
from equipoise.evals.types import ScoreStatus

__all__ = ["EXTRAS", "with_extras"]

#: The key of a row, or of its metadata.
EXTRAS = "equipoise"


def with_extras(found: ItemResult, extras: Mapping[str, Any], value: Any, where: str) -> ItemResult:
    """``found`` with what our export knows: why there is no score, so that an empty answer is one.

    Raises
    ------
    UsageError
        An unknown status, an impossible repeat, or a ``value`` that is no score.
    """
    try:
        status = ScoreStatus(str(extras.get("status")))
    except ValueError as e:
        raise UsageError(f"{where}: {e}; one of {', '.join(ScoreStatus)}") from e
    scored = status in (ScoreStatus.SCORED, ScoreStatus.TRUNCATED)
    try:
        score = to_score(value)[0] if scored else None
    except ScoreError as e:
        raise UsageError(f"{where}: {e}; export the run again") from e
    repeat = extras.get("repeat", 0)
    if type(repeat) is not int or repeat < 0:
        raise UsageError(f"{where}: repeat {repeat!r} is no number from 0")
    cluster = extras.get("cluster_id")
    return replace(
        found,
        score=score,
        status=ScoreStatus.ERRORED if scored and score is None else status,
        reason="" if score is not None else excerpt(as_text(extras.get("reason"))) or "no score",
        repeat=repeat,
        cluster_id=found.cluster_id if found.cluster_id or cluster is None else short_id(str(cluster)),
        finish_reason=str(extras.get("finish_reason", ""))[:40],
        completion_tokens=token_count(extras.get("completion_tokens")),
    )

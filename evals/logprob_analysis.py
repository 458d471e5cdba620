"""Teacher-forced tasks: from paired tokens to the change of their likelihood and the arms' divergence."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from equipoise.evals.evidence import LogprobEvidence
from equipoise.evals.pairing import LogprobTable
from equipoise.evals.statistics.kl import topk_kl
from equipoise.evals.statistics.kl_comparison import KlComparison, compare_kl
from equipoise.evals.statistics.logprob import LogprobComparison, compare_logprobs
from equipoise.evals.types import ArmRole

__all__ = ["LogprobTables", "analyse_logprobs"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogprobTables:
    """One teacher-forced task: its margin (nats a token), and by role the table against A1.

    ``max_kl_nats`` also bounds the mean KL; ``max_drop_nats`` is the assumption that gives lists of
    likely tokens an upper bound of it (see `topk_kl`).
    """

    task: str
    margin_nats: float
    tables: Mapping[ArmRole, LogprobTable]
    max_kl_nats: float | None = None
    max_drop_nats: float | None = None


def analyse_logprobs(task: LogprobTables, alpha: float, rng: np.random.Generator) -> LogprobEvidence:
    """Every arm against A1, on the tokens whose prefix both read from their cache."""
    primary = task.tables[ArmRole.CANDIDATE]
    tables = {role: table for role, table in task.tables.items() if table.baseline.size}
    compared = {role: _compare(table, alpha, rng) for role, table in tables.items()}
    divergences, undefined = {}, ""
    for role, table in tables.items():
        found = _diverge(table, task.max_drop_nats, alpha, rng)
        if isinstance(found, KlComparison):
            divergences[role] = found
        elif role is ArmRole.CANDIDATE:
            undefined = found
    return LogprobEvidence(
        task=task.task,
        margin_nats=task.margin_nats,
        sequences_planned=primary.n_planned,
        sequences_paired=primary.n_paired,
        sequences_cache_not_read=primary.cache_not_read,
        excluded=dict(primary.excluded),
        comparisons=compared,
        divergences=divergences,
        kl_undefined=undefined,
        max_kl_nats=task.max_kl_nats,
    )


def _compare(table: LogprobTable, alpha: float, rng: np.random.Generator) -> LogprobComparison:
    first = table.top_lists.first_choices if table.top_lists is not None else None
    top1 = first if first is not None else (table.baseline_top1, table.candidate_top1)
    return compare_logprobs(
        table.baseline,
        table.candidate,
        table.sequence,
        rng=rng,
        position=table.position,
        baseline_top1=top1[0],
        candidate_top1=top1[1],
        alpha=alpha,
    )


def _diverge(
    table: LogprobTable, max_drop_nats: float | None, alpha: float, rng: np.random.Generator
) -> KlComparison | str:
    """The divergence, or why there is none: a server's lists must not stop the report."""
    lists = table.top_lists
    if lists is None:
        return "the servers' lists of likely tokens were not recorded"
    try:
        tokens = topk_kl(
            lists.baseline_ids,
            lists.baseline_logprobs,
            lists.candidate_ids,
            lists.candidate_logprobs,
            vocabulary_size=lists.vocabulary_size,
            max_drop_nats=max_drop_nats,
        )
        return compare_kl(tokens, table.sequence, rng=rng, position=table.position, alpha=alpha)
    except ValueError as e:
        return f"{table.candidate_arm} against {table.baseline_arm}: {e}"

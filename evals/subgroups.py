"""Exploration by subgroup: does a loss sit in one subject, one language, or in long prompts?

A subgroup is one label of one stratification of one task, such as subject "law", or prompts of 256 to 511
tokens. Everything here is exploratory: no subgroup decides, and its p-values are adjusted over all
subgroups of the arm (Benjamini-Hochberg).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import nan

import numpy as np
import numpy.typing as npt

from equipoise.evals.statistics.delta import DeltaEstimate, DifferenceTest
from equipoise.evals.statistics.holm import benjamini_hochberg
from equipoise.evals.statistics.primary import difference_test, estimate_delta
from equipoise.evals.types import PairedTable

__all__ = ["LENGTH_STRATUM", "MIN_ITEMS", "Subgroup", "Subgroups", "length_buckets", "subgroups"]

LENGTH_STRATUM = "prompt tokens"
#: Smaller subgroups are counted, not analysed: their intervals would say nothing.
MIN_ITEMS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Subgroup:
    """Candidate minus baseline on the items of one task with one label."""

    task: str
    stratum: str
    label: str
    n: int
    baseline_accuracy: float
    candidate_accuracy: float
    estimate: DeltaEstimate
    test: DifferenceTest
    adjusted_p: float = nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Subgroups:
    """All subgroups of an arm, and how many were left out because they have fewer than `MIN_ITEMS`."""

    rows: tuple[Subgroup, ...]
    too_small: int


def subgroups(
    tables: Sequence[tuple[PairedTable, float]], *, alpha: float, rng: np.random.Generator
) -> Subgroups:
    """Estimate and test every subgroup of an arm's tables.

    Parameters
    ----------
    tables
        Each task's table and margin. Strata come from its items; prompts are sorted into lengths of
        [1, 2), [2, 4), [4, 8) ... tokens. A stratification with one label is no subgroup.
    alpha
        One-sided error rate of each limit, not adjusted.
    rng
        Source of resamples.
    """
    rows: list[Subgroup] = []
    too_small = 0
    for table, margin in tables:
        for stratum, labels in _stratifications(table):
            for label, chosen in labels:
                if chosen.sum() < MIN_ITEMS:
                    too_small += 1
                else:
                    rows.append(_subgroup(table, margin, (stratum, label), chosen, alpha=alpha, rng=rng))
    p = benjamini_hochberg([r.test.two_sided_p for r in rows]).adjusted if rows else ()
    return Subgroups(
        rows=tuple(replace(r, adjusted_p=x) for r, x in zip(rows, p, strict=True)), too_small=too_small
    )


def length_buckets(prompt_tokens: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Largest k with 2^k <= tokens, of each prompt; -1 where the length is not known (or zero)."""
    known = np.isfinite(prompt_tokens) & (prompt_tokens >= 1.0)
    # frexp is exact at powers of two, where a logarithm may round to either side.
    exponent = np.frexp(np.where(known, prompt_tokens, 1.0))[1] - 1
    return np.where(known, exponent, -1).astype(np.int64)


_Labels = list[tuple[str, npt.NDArray[np.bool_]]]


def _stratifications(table: PairedTable) -> list[tuple[str, _Labels]]:
    """Each stratification that divides the table, with its labels and which items have them."""
    found: list[tuple[str, _Labels]] = []
    for name, values in table.strata.items():
        array = np.array(values, dtype=np.str_)
        found.append((name, [(str(x), array == x) for x in np.unique(array) if x]))
    if table.prompt_tokens is not None:
        bucket = length_buckets(table.prompt_tokens)
        found.append(
            (
                LENGTH_STRATUM,
                [(f"{2**k}-{2 ** (k + 1) - 1}", bucket == k) for k in np.unique(bucket).tolist() if k >= 0],
            )
        )
    return [(name, labels) for name, labels in found if len(labels) > 1]


def _subgroup(
    table: PairedTable,
    margin: float,
    name: tuple[str, str],
    chosen: npt.NDArray[np.bool_],
    *,
    alpha: float,
    rng: np.random.Generator,
) -> Subgroup:
    baseline, candidate = table.baseline[chosen], table.candidate[chosen]
    clusters = np.array(table.cluster_ids, dtype=np.str_)[chosen]
    return Subgroup(
        task=table.task,
        stratum=name[0],
        label=name[1],
        n=baseline.shape[0],
        baseline_accuracy=float(baseline.mean()),
        candidate_accuracy=float(candidate.mean()),
        estimate=estimate_delta(baseline, candidate, margin=margin, alpha=alpha, rng=rng, clusters=clusters),
        test=difference_test(baseline, candidate, rng=rng, clusters=clusters),
    )

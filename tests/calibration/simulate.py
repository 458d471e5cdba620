"""Simulated benchmarks: items of realistic difficulty, asked K times in two correlated arms.

Every item has a probability of success in each arm; an arm's answers to it are independent given that
probability, and the arms are correlated because they share the item's difficulty. Populations are finite
lists of items, so that their true loss is known exactly and not itself simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, logit
from scipy.stats import beta as beta_distribution

__all__ = [
    "AIME",
    "GPQA",
    "GREEDY",
    "GSM8K",
    "IFEVAL",
    "Benchmark",
    "Mechanism",
    "Population",
    "ask",
    "clustered_population",
    "population",
    "sample_clusters",
]

Floats = NDArray[np.float64]

_POPULATION = 20_000  # items that stand for a benchmark's super-population
_CLUSTERS = 4_000
_ITEM_NOISE_SD = 0.7  # on the logit scale: an item's own change, up or down, beside the common shift
_CLUSTER_SD = 1.0  # difficulty shared by a cluster, on the logit scale


class Mechanism(StrEnum):
    """How the candidate loses."""

    SHIFT = "all items a little"
    BOTH_WAYS = "items move both ways"
    HARD = "hard half only"
    FEW = "few items outright"


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """Success probabilities of the baseline follow Beta(a, b)."""

    name: str
    n: int
    a: float
    b: float


# Shapes with most mass near 0 and 1, as repeated sampling of a model at temperature 1 gives. IFEval's is
# a beta-binomial fit to eight models' published answers to its 541 items; the others are assumed.
AIME = Benchmark(name="AIME-like", n=30, a=0.35, b=0.25)
GPQA = Benchmark(name="GPQA-like", n=198, a=0.5, b=0.25)
IFEVAL = Benchmark(name="IFEval-like", n=500, a=1.32, b=0.32)
GSM8K = Benchmark(name="GSM8K-like", n=1319, a=0.6, b=0.03)
GREEDY = Benchmark(name="greedy-like", n=198, a=0.01, b=0.004)


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Success probabilities of its items under both arms, and the cluster each item belongs to."""

    baseline: Floats  # [items]
    candidate: Floats  # [items]
    cluster: NDArray[np.int64] | None = None  # [items], ascending

    @property
    def loss(self) -> float:
        """True loss: mean success probability of the baseline minus that of the candidate."""
        return float(np.mean(self.baseline - self.candidate))

    @property
    def p_d(self) -> float:
        """Probability that one answer of each arm to a random item makes a discordant pair."""
        p, q = self.baseline, self.candidate
        return float(np.mean(p * (1.0 - q) + q * (1.0 - p)))

    def variance_of_difference(self, repeats: int) -> float:
        """Variance of one random item's mean difference at ``repeats`` answers an arm."""
        p, q = self.baseline, self.candidate
        within = np.mean(p * (1.0 - p) + q * (1.0 - q)) / repeats
        return float(np.var(q - p) + within)


def population(
    benchmark: Benchmark, mechanism: Mechanism, loss: float, *, items: int = _POPULATION
) -> Population:
    """Items at the quantiles of the benchmark's difficulty, with exactly the wanted mean loss.

    Raises
    ------
    ValueError
        If the mechanism cannot lose as much.
    """
    p = np.asarray(beta_distribution.ppf((np.arange(items) + 0.5) / items, benchmark.a, benchmark.b))
    order = np.random.default_rng(20_240_229).permutation(items)  # difficulty apart from who is hit
    if mechanism is Mechanism.FEW:
        return Population(baseline=p, candidate=_few_fail(p, order, loss))
    difficulty = np.asarray(logit(p))
    noise = np.zeros(items)
    hit = np.ones(items)
    if mechanism is Mechanism.BOTH_WAYS:
        noise[order] = _ITEM_NOISE_SD * beta_quantile_normal(items)
    if mechanism is Mechanism.HARD:
        hit = (np.arange(items) < items / 2).astype(np.float64)

    def shifted(shift: float) -> Floats:
        return np.asarray(expit(difficulty + noise - shift * hit))

    return Population(baseline=p, candidate=_with_loss(p, shifted, loss))


def clustered_population(benchmark: Benchmark, loss: float, *, hit_clusters: float) -> Population:
    """Clusters of one to many items that share difficulty; a share of the clusters carries the loss.

    Parameters
    ----------
    hit_clusters
        Share of clusters whose items all get harder for the candidate; the others stay as they are.
    """
    rng = np.random.default_rng(20_240_301)
    sizes = 1 + rng.negative_binomial(2, 0.3, size=_CLUSTERS)  # mean 5.7, a long tail
    cluster = np.repeat(np.arange(_CLUSTERS), sizes)
    common = _CLUSTER_SD * rng.standard_normal(_CLUSTERS)
    difficulty = np.asarray(logit(rng.beta(benchmark.a, benchmark.b, size=cluster.size))) + common[cluster]
    hit = (rng.permutation(_CLUSTERS) < hit_clusters * _CLUSTERS).astype(np.float64)[cluster]
    p = np.asarray(expit(difficulty))

    def shifted(shift: float) -> Floats:
        return np.asarray(expit(difficulty - shift * hit))

    return Population(baseline=p, candidate=_with_loss(p, shifted, loss), cluster=cluster)


def ask(
    items: Population, repeats: int, rng: np.random.Generator, *, n: int | None = None
) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Answers (1 right) of both arms, each [n, repeats].

    ``n`` random items of the population; all of its items once, the benchmark as it is, if None.
    """
    chosen = slice(None) if n is None else rng.integers(items.baseline.size, size=n)
    return _answers(items, chosen, repeats, rng)


def sample_clusters(
    items: Population, clusters: int, repeats: int, rng: np.random.Generator
) -> tuple[NDArray[np.int8], NDArray[np.int8], NDArray[np.int64]]:
    """Answers of both arms to all items of random clusters, and the clusters' labels [n]."""
    assert items.cluster is not None
    starts = np.searchsorted(items.cluster, np.arange(items.cluster[-1] + 2))
    drawn = rng.integers(starts.size - 1, size=clusters)
    sizes = starts[drawn + 1] - starts[drawn]
    labels = np.repeat(np.arange(clusters), sizes)
    within = np.arange(labels.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    baseline, candidate = _answers(items, starts[drawn][labels] + within, repeats, rng)
    return baseline, candidate, labels


def _answers(
    items: Population, chosen: slice | NDArray[np.int64], repeats: int, rng: np.random.Generator
) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    p, q = items.baseline[chosen], items.candidate[chosen]
    shape = (p.size, repeats)
    return (
        (rng.random(shape, dtype=np.float32) < p[:, None]).astype(np.int8),
        (rng.random(shape, dtype=np.float32) < q[:, None]).astype(np.int8),
    )


def _few_fail(p: Floats, order: NDArray[np.int64], loss: float) -> Floats:
    """Item after item fails outright, the last one in part, until the mean loss is reached."""
    lost = np.minimum(np.cumsum(p[order]), loss * p.size)
    if lost[-1] < loss * p.size * (1 - 1e-9):
        raise ValueError(f"a loss of {loss} is more than the baseline has")
    candidate = p.copy()
    candidate[order] -= np.diff(lost, prepend=0.0)
    return np.maximum(candidate, 0.0)  # a cumulated sum leaves a rounding error


def _with_loss(p: Floats, shifted: Callable[[float], Floats], loss: float) -> Floats:
    """The candidate's probabilities at the shift whose mean loss is ``loss``."""

    def excess(shift: float) -> float:
        return float(np.mean(p - shifted(shift))) - loss

    if excess(40.0) < 0:
        raise ValueError(f"a loss of {loss} is more than this mechanism can take")
    return shifted(float(brentq(excess, -40.0, 40.0, xtol=1e-12)))


def beta_quantile_normal(items: int) -> Floats:
    """Standard normal scores of ``items`` equally likely ranks."""
    from scipy.stats import norm

    return np.asarray(norm.ppf((np.arange(items) + 0.5) / items))

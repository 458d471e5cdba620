"""Items that share a document: do the cluster methods keep their error rate, and what if one ignores it?"""

from __future__ import annotations

import numpy as np
from engine import ALPHA, estimate
from montecarlo import Cell, Rate, Row, Scale, Section, at_most
from rules import percentile_passes, resample, t_passes
from simulate import IFEVAL, clustered_population, sample_clusters

from equipoise.evals.statistics.cluster import cluster_standard_error

__all__ = ["clustered_cells"]

CLUSTERS = Section(
    title="Clusters",
    note=(
        'Share of runs that pass. Clusters of one to many items (mean 5.7) share difficulty; "hit" is the '
        "share of clusters that carry the whole loss. Ours is the bootstrap-t over clusters, never surer "
        "than t over clusters nor than clusters that the sample missed allow: the fewer clusters, the "
        "larger the margin that can be shown at all. Bound at a loss of 1 margin: .055. Beside it t over "
        "clusters alone, and the rules that take every item as independent (one-sided 95%)."
    ),
)


def clustered_cells(scale: Scale) -> list[Cell]:
    """Rows over numbers of clusters, repeats, and shares of clusters hit."""
    designs = [
        (10, 0.25, (1.0,)),
        (20, 0.15, (1.0, 0.3)),
        (40, 0.10, (1.0, 0.3)),
        (40, 0.05, (1.0, 0.1)),
        (200, 0.05, (1.0, 0.3, 0.1)),
    ]
    cells = [
        Cell(
            section=CLUSTERS,
            function=clusters_row,
            arguments={"clusters": g, "repeats": k, "hit": hit, "margin": margin, "losses": losses},
        )
        for g, margin, hits in designs
        for k in (1, 8)
        for losses, hit in ((*((1.0, hit) for hit in hits), (0.0, 1.0)))
    ]
    if not scale.small:
        return cells
    wanted = ((20, 1, 0.3, 1.0), (40, 8, 0.3, 1.0))
    return [
        c for c in cells if tuple(c.arguments[k] for k in ("clusters", "repeats", "hit", "losses")) in wanted
    ]


def clusters_row(
    *,
    clusters: int,
    repeats: int,
    hit: float,
    margin: float,
    losses: float,
    rng: np.random.Generator,
    scale: Scale,
) -> Row:
    items = clustered_population(IFEVAL, losses * margin, hit_clusters=hit)
    runs = scale.runs_at(losses)
    ours, cluster_t, item_t, item_percentile = (np.empty(runs, dtype=np.bool_) for _ in range(4))
    for run in range(runs):
        baseline, candidate, labels = sample_clusters(items, clusters, repeats, rng)
        estimated = estimate(
            baseline, candidate, margin=margin, rng=rng, resamples=scale.resamples, clusters=labels
        )
        ours[run] = estimated.lower > -margin
        change = candidate.sum(axis=1, dtype=np.int64) - baseline.sum(axis=1, dtype=np.int64)
        difference = np.asarray(change / repeats)
        error = cluster_standard_error(difference, labels)
        cluster_t[run] = t_passes(difference.mean(), error, clusters, margin, alpha=ALPHA)
        sample = resample(difference, scale.resamples, rng)
        item_t[run] = t_passes(sample.delta, sample.standard_error, labels.size, margin, alpha=ALPHA)
        item_percentile[run] = percentile_passes(sample, margin, alpha=ALPHA)
    rate = Rate.of(ours)
    return Row(
        values={
            "clusters": clusters,
            "K": repeats,
            "hit": hit,
            "margin": margin,
            "loss": f"{losses:g} m",
            "ours": rate,
            "t over clusters": Rate.of(cluster_t),
            "t over items": Rate.of(item_t),
            "percentile over items": Rate.of(item_percentile),
            "runs": runs,
        },
        claims=(at_most(rate, 0.055),) if losses == 1.0 else (),
    )

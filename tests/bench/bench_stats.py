# ruff: noqa: E402
"""Time the statistics beside scipy.stats and statsmodels where they do the same work; write stats.md.

Run: python tests/bench/bench_stats.py [--repeats N]

Both sides run on one thread, in turn, in one process. Each figure is the best of several runs; a ratio is
also given as the median over the pairs of runs, which a change of the machine's speed cannot shift. scipy
gets the differences ready made and its best batch size, searched here. Ours starts from the two arms' scores,
checks them, and ends with limits and two p-values. Peak memory is what a call allocates, by tracemalloc, in a
run of its own.
"""

import argparse
import os
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_threads] = "1"  # read when numpy is imported

import numpy as np
import scipy
import statsmodels
import statsmodels.api as sm
from numpy.typing import NDArray
from scipy.stats import bootstrap, permutation_test
from statsmodels.stats.contingency_tables import mcnemar

from equipoise.evals.analysis import TaskTables, analyse
from equipoise.evals.statistics.bootstrap_t import bootstrap_t
from equipoise.evals.statistics.cluster import cluster_sums, cluster_t
from equipoise.evals.statistics.mcnemar import mcnemar_test
from equipoise.evals.statistics.sign_flip import sign_flip_test
from equipoise.evals.types import ArmRole, PairedTable

FloatArray = NDArray[np.float64]
Call = Callable[[], object]

SEED = 20260101
RESAMPLES = 10_000
BATCHES = (20, 50, 100, 200, 500, 1_000, 2_000)
SEARCHES = 3
LARGEST_BATCH_BYTES = 1 << 30
TASKS, PAIRS, SECONDS_ALLOWED = 12, 4_166, 5.0
MIB = float(1 << 20)


@dataclass(frozen=True, kw_only=True)
class Contest:
    """The same work done here and elsewhere; ``batch`` is None where there is none to choose."""

    name: str
    ours: Call
    theirs: Callable[[int | None], object]
    their_name: str
    units: int | None = None  # values a resample of theirs holds: which batch sizes fit in memory
    wanted: float | None = None  # least ratio


@dataclass(frozen=True, kw_only=True)
class Timing:
    contest: Contest
    batch: int | None
    ours_s: float
    theirs_s: float
    paired_ratio: float
    ours_peak: int
    theirs_peak: int

    @property
    def ratio(self) -> float:
        return self.theirs_s / self.ours_s


def seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def peak_bytes(call: Call) -> int:
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def run(contest: Contest, repeats: int) -> Timing:
    batch = None
    if contest.units is not None:
        fitting = [b for b in BATCHES if b * contest.units * 8 <= LARGEST_BATCH_BYTES]
        rounds = [[seconds(lambda b=b: contest.theirs(b)) for b in fitting] for _ in range(SEARCHES)]  # type: ignore[misc]
        best = np.min(rounds, axis=0)
        batch = fitting[int(best.argmin())]
    pairs = [(seconds(contest.ours), seconds(lambda: contest.theirs(batch))) for _ in range(repeats)]
    return Timing(
        contest=contest,
        batch=batch,
        ours_s=min(ours for ours, _ in pairs),
        theirs_s=min(theirs for _, theirs in pairs),
        paired_ratio=median(theirs / ours for ours, theirs in pairs),
        ours_peak=peak_bytes(contest.ours),
        theirs_peak=peak_bytes(lambda: contest.theirs(batch)),
    )


def repeats_of(items: int, repeats: int, g: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Right-or-wrong repeats of items from easy to hard, the candidate a point worse on middling ones."""
    easy = g.beta(0.8, 0.5, size=items)
    worse = easy - 0.05 * easy * (1 - easy)
    return tuple(g.binomial(1, p[:, None], (items, repeats)).astype(float) for p in (easy, worse))  # type: ignore[return-value]


def graded(items: int, g: np.random.Generator) -> tuple[FloatArray, FloatArray, NDArray[np.intp]]:
    """Continuous scores of items in clusters of about five, whose differences lean together."""
    labels = np.sort(g.integers(0, items // 5, size=items))
    base = g.beta(4, 2, size=items)
    cand = base + g.normal(0, 0.05, size=items // 5)[labels] + g.normal(-0.002, 0.1, size=items)
    return base, np.clip(cand, 0, 1), np.unique(labels, return_inverse=True)[1]


def flipped(base: FloatArray, share: float, g: np.random.Generator) -> FloatArray:
    return np.where(g.random(base.shape) < share, 1.0 - base, base)


def scipy_mean(difference: FloatArray, g: np.random.Generator) -> Callable[[int | None], object]:
    return lambda batch: bootstrap(
        (difference,),
        np.mean,
        vectorized=True,
        axis=-1,
        n_resamples=RESAMPLES,
        batch=batch,
        method="BCa",
        rng=g,
    )


def scipy_ratio(
    sums: FloatArray, sizes: FloatArray, g: np.random.Generator
) -> Callable[[int | None], object]:
    def ratio(s: FloatArray, m: FloatArray, axis: int = -1) -> Any:
        return s.sum(axis=axis) / m.sum(axis=axis)

    return lambda batch: bootstrap(
        (sums, sizes),
        ratio,
        paired=True,
        vectorized=True,
        axis=-1,
        n_resamples=RESAMPLES,
        batch=batch,
        method="BCa",
        rng=g,
    )


def scipy_flips(units: FloatArray, g: np.random.Generator) -> Callable[[int | None], object]:
    return lambda batch: permutation_test(
        (units,),
        lambda x, axis: x.sum(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
        batch=batch,
        rng=g,
    )


def contests(g: np.random.Generator) -> list[Contest]:
    right = (g.random(14_042) < 0.9).astype(float)
    other = flipped(right, 0.04, g)
    base, cand = repeats_of(198, 8, g)
    smooth, moved, labels = graded(14_042, g)
    sums, sizes = cluster_sums(moved - smooth, labels, labels.max() + 1)
    counts = int((right > other).sum()), int((other > right).sum())
    table = [[int((right * other).sum()), counts[0]], [counts[1], int(((1 - right) * (1 - other)).sum())]]
    mean_of_repeats = cand.mean(axis=1) - base.mean(axis=1)
    design = np.ones(14_042)

    def robust(_: int | None) -> object:
        fit = sm.OLS(moved - smooth, design).fit(cov_type="cluster", cov_kwds={"groups": labels}, use_t=True)
        return fit.conf_int(alpha=0.10), fit.t_test(([[1.0]], [-0.02])).pvalue

    return [
        Contest(
            name="bootstrap, 14,042 binary pairs",
            ours=lambda: bootstrap_t(right, other, margin=0.02, rng=g),
            theirs=scipy_mean(other - right, g),
            their_name="scipy BCa",
            units=14_042,
            wanted=2.0,
        ),
        Contest(
            name="bootstrap, 198 items x 8 repeats",
            ours=lambda: bootstrap_t(base, cand, margin=0.02, rng=g),
            theirs=scipy_mean(mean_of_repeats, g),
            their_name="scipy BCa",
            units=198,
            wanted=2.0,
        ),
        Contest(
            name=f"bootstrap, 14,042 continuous scores in {sums.size:,} clusters",
            ours=lambda: bootstrap_t(smooth, moved, margin=0.02, rng=g, clusters=labels),
            theirs=scipy_ratio(sums, sizes, g),
            their_name="scipy BCa",
            units=2 * sums.size,
            wanted=2.0,
        ),
        Contest(
            name="bootstrap, 14,042 continuous scores, no clusters",
            ours=lambda: bootstrap_t(smooth, moved, margin=0.02, rng=g),
            theirs=scipy_mean(moved - smooth, g),
            their_name="scipy BCa",
            units=14_042,
        ),
        Contest(
            name="20,000 sign flips, 198 items x 8 repeats",
            ours=lambda: sign_flip_test(mean_of_repeats, rng=g),
            theirs=scipy_flips(mean_of_repeats, g),
            their_name="scipy permutation_test",
            units=198,
        ),
        Contest(
            name=f"20,000 sign flips, {sums.size:,} clusters",
            ours=lambda: sign_flip_test(moved - smooth, rng=g, clusters=labels),
            theirs=scipy_flips(sums, g),
            their_name="scipy permutation_test",
            units=sums.size,
        ),
        Contest(
            name=f"cluster-robust t, 14,042 items in {sums.size:,} clusters",
            ours=lambda: cluster_t(moved - smooth, labels, margin=0.02),
            theirs=robust,
            their_name="statsmodels OLS cov_cluster",
        ),
        Contest(
            name="McNemar, 14,042 pairs (ours: exact, mid-p, one-sided, chi-squared)",
            ours=lambda: mcnemar_test(*counts),
            theirs=lambda _: mcnemar(table, exact=True),
            their_name="statsmodels mcnemar, exact only",
        ),
    ]


def suite(mixed: bool, g: np.random.Generator) -> list[TaskTables]:
    """Twelve tasks with a candidate and a repeated baseline: 200,000 samples over both arms of each pair."""
    tasks = []
    for number in range(TASKS):
        kind = ("binary", "repeats", "clusters")[number % 3] if mixed else "binary"
        tables = {}
        for role in (ArmRole.CANDIDATE, ArmRole.BASELINE_REPEAT):
            labels: NDArray[np.intp] | None = None
            if kind == "repeats":
                base, cand = repeats_of(PAIRS // 8, 8, g)
            elif kind == "clusters":
                base, cand, labels = graded(PAIRS, g)
            else:
                base = (g.random(PAIRS) < 0.8).astype(float)
                cand = flipped(base, 0.05, g)
            tables[role] = paired_table(f"task-{number}", role, base, cand, labels, g)
        tasks.append(TaskTables(task=f"task-{number}", margin=0.05, tables=tables))
    return tasks


def paired_table(
    task: str,
    role: ArmRole,
    base: FloatArray,
    cand: FloatArray,
    labels: NDArray[np.intp] | None,
    g: np.random.Generator,
) -> PairedTable:
    n = base.shape[0]
    base, cand = base.reshape(n, -1), cand.reshape(n, -1)
    return PairedTable(
        model="m",
        task=task,
        baseline_arm="A1",
        candidate_arm=str(role),
        item_ids=tuple(f"{task}-{i}" for i in range(n)),
        cluster_ids=tuple(f"{task}-{i}" for i in (range(n) if labels is None else labels)),
        baseline=base,
        candidate=cand,
        baseline_truncated=g.random(base.shape) < 0.005,
        candidate_truncated=g.random(base.shape) < 0.005,
        n_planned=n,
        prompt_tokens=g.integers(50, 30_000, size=n).astype(float),
    )


def whole_reports(g: np.random.Generator, repeats: int) -> list[tuple[str, int, float, int]]:
    """Name, samples, best seconds and peak bytes of the statistics of a whole report."""
    rows = []
    for name, mixed in (
        ("single right-or-wrong answers", False),
        ("a third each binary, 8 repeats, clusters", True),
    ):
        tasks = suite(mixed, g)
        samples = sum(t.baseline.size + t.candidate.size for task in tasks for t in task.tables.values())

        def analysis(tasks: list[TaskTables] = tasks) -> object:
            return analyse("m", tasks, suite_margin=0.025, alpha=0.05, rng=np.random.default_rng(SEED))

        analysis()
        rows.append((name, samples, min(seconds(analysis) for _ in range(repeats)), peak_bytes(analysis)))
    return rows


def markdown(timings: list[Timing], reports: list[tuple[str, int, float, int]], repeats: int) -> str:
    versions = f"numpy {np.__version__}, scipy {scipy.__version__}, statsmodels {statsmodels.__version__}"
    lines = [
        "# Speed of the statistics",
        "",
        f"`python tests/bench/bench_stats.py --repeats {repeats}`, {date.today()}, {os.cpu_count()} cores "
        f"(one thread used), {versions}, seed {SEED}.",
        f"Bootstraps have {RESAMPLES:,} resamples. Ratio: their best time over ours of {repeats} runs "
        "in turn; beside it the median over the pairs of runs. Peak: most memory allocated during one call.",
        "",
        "| case | ratio | median | our ms | their ms | theirs | batch | our peak, MiB | their peak, MiB |",
        "|---|---:|---:|---:|---:|---|---:|---:|---:|",
    ]
    lines += [
        f"| {t.contest.name} | {t.ratio:.3g} | {t.paired_ratio:.3g} | {t.ours_s * 1e3:.3g} "
        f"| {t.theirs_s * 1e3:.4g} | {t.contest.their_name} | {t.batch or ''} "
        f"| {t.ours_peak / MIB:.1f} | {t.theirs_peak / MIB:.1f} |"
        for t in timings
    ]
    lines += [
        "",
        f"Statistics of a whole report: {TASKS} tasks, a candidate and a repeated baseline, every estimate, "
        f"test, secondary endpoint and subgroup (allowed: {SECONDS_ALLOWED:g} s on 2 cores).",
        "",
        "| scores | samples | seconds | peak, MiB |",
        "|---|---:|---:|---:|",
    ]
    lines += [f"| {name} | {samples:,} | {s:.2f} | {peak / MIB:.1f} |" for name, samples, s, peak in reports]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7, help="runs of each side, in turn (default 7)")
    repeats = parser.parse_args().repeats
    g = np.random.default_rng(SEED)
    timings = [run(contest, repeats) for contest in contests(g)]
    reports = whole_reports(g, min(repeats, 3))
    text = markdown(timings, reports, repeats)
    Path(__file__).with_name("stats.md").write_text(text)
    print(text)
    missed = [t.contest.name for t in timings if t.contest.wanted is not None and t.ratio < t.contest.wanted]
    missed += [f"report of {name}" for name, _, s, _ in reports if s > SECONDS_ALLOWED]
    if missed:
        raise SystemExit(f"slower than promised: {'; '.join(missed)}")


if __name__ == "__main__":
    main()

"""Paired tables with chosen counts, for tests of what is concluded from them."""

from collections.abc import Mapping, Sequence

import numpy as np

from equipoise.evals.analysis import LogprobTables, TaskTables, analyse
from equipoise.evals.evidence import SuiteEvidence
from equipoise.evals.pairing import LogprobTable
from equipoise.evals.types import ArmRole, PairedTable

ARM_NAMES = {
    ArmRole.CANDIDATE: "B",
    ArmRole.BASELINE_REPEAT: "A2",
    ArmRole.GROSS_CONTROL: "P",
    ArmRole.MILD_CONTROL: "M",
}
#: role -> (b, c) of a run in which all is well: A/A agrees, the controls are caught
HEALTHY = {
    ArmRole.CANDIDATE: (4, 4),
    ArmRole.BASELINE_REPEAT: (0, 0),
    ArmRole.GROSS_CONTROL: (60, 10),
    ArmRole.MILD_CONTROL: (40, 10),
}


def paired_table(
    task: str,
    b: int,
    c: int,
    *,
    n: int = 400,
    role: ArmRole = ArmRole.CANDIDATE,
    baseline_right: int | None = None,
    baseline_truncated: int = 0,
    candidate_truncated: int = 0,
    unpaired_baseline: Sequence[float] = (),
    unpaired_candidate: Sequence[float] = (),
    neither: int = 0,
) -> PairedTable:
    """``n`` items, of which A1 has the first ``baseline_right`` right (four fifths unless said).

    The other arm loses the first ``b`` of these and gains the first ``c`` of the rest. Truncated
    answers are taken from the end, where both are wrong.
    """
    right = max(n * 4 // 5, b) if baseline_right is None else baseline_right
    baseline = (np.arange(n) < right).astype(np.float64)
    candidate = baseline.copy()
    candidate[:b], candidate[right : right + c] = 0.0, 1.0
    position = np.arange(n)
    excluded = {
        "errored in B": len(unpaired_baseline),
        "errored in A1": len(unpaired_candidate),
        "both": neither,
    }
    return PairedTable(
        model="m",
        task=task,
        baseline_arm="A1",
        candidate_arm=ARM_NAMES[role],
        item_ids=tuple(f"{task}-{i}" for i in range(n)),
        cluster_ids=tuple(f"{task}-{i}" for i in range(n)),
        baseline=baseline[:, None],
        candidate=candidate[:, None],
        baseline_truncated=(position >= n - baseline_truncated)[:, None],
        candidate_truncated=(position >= n - candidate_truncated)[:, None],
        n_planned=n + sum(excluded.values()),
        missing_baseline=len(unpaired_candidate) + neither,
        missing_candidate=len(unpaired_baseline) + neither,
        unpaired_baseline=np.array(unpaired_baseline, dtype=np.float64),
        unpaired_candidate=np.array(unpaired_candidate, dtype=np.float64),
        excluded={k: v for k, v in excluded.items() if v},
    )


def task_tables(
    task: str,
    counts: Mapping[ArmRole, tuple[int, int] | PairedTable | None] | None = None,
    *,
    margin: float = 0.05,
    n: int = 400,
) -> TaskTables:
    """A healthy task, with the roles in ``counts`` replaced (None leaves the role out)."""
    wanted = {**HEALTHY, **(counts or {})}
    return TaskTables(
        task=task,
        margin=margin,
        tables={
            role: paired_table(task, *x, n=n, role=role) if isinstance(x, tuple) else x
            for role, x in wanted.items()
            if x is not None
        },
    )


def logprob_table(
    change_nats: float, *, role: ArmRole = ArmRole.CANDIDATE, sequences: int = 40, cache_not_read: int = 0
) -> LogprobTable:
    """Sequences of 20 tokens whose negative log-likelihood rises by about ``change_nats``."""
    used = sequences - cache_not_read
    gen = np.random.default_rng(1)
    change = np.repeat(gen.normal(0.0, 0.002, used), 20) if change_nats else np.zeros(used * 20)
    baseline = -gen.exponential(1.0, used * 20)
    return LogprobTable(
        model="m",
        task="logprob",
        baseline_arm="A1",
        candidate_arm=ARM_NAMES[role],
        sequence=np.repeat([f"s{i}" for i in range(used)], 20),
        position=np.tile(np.arange(20), used),
        baseline=baseline,
        candidate=baseline - change_nats - change,
        baseline_top1=None,
        candidate_top1=None,
        n_planned=sequences,
        n_paired=sequences,
        cache_not_read=cache_not_read,
        missing_baseline=0,
        missing_candidate=0,
        excluded={},
    )


def logprob_tables(change_nats: float, *, noise_nats: float = 0.0, cache_not_read: int = 0) -> LogprobTables:
    """A teacher-forced task with a margin of 0.01 nats and its A/A."""
    return LogprobTables(
        task="logprob",
        margin_nats=0.01,
        tables={
            ArmRole.CANDIDATE: logprob_table(change_nats, cache_not_read=cache_not_read),
            ArmRole.BASELINE_REPEAT: logprob_table(noise_nats, role=ArmRole.BASELINE_REPEAT),
        },
    )


def evidence_of(
    *tasks: TaskTables,
    suite_margin: float = 0.03,
    logprobs: Sequence[LogprobTables] = (),
    parity_violations: Sequence[str] = (),
) -> SuiteEvidence:
    """The evidence of these tasks about model "m"."""
    return analyse(
        "m",
        tasks,
        suite_margin=suite_margin,
        alpha=0.05,
        rng=np.random.default_rng(1),
        logprobs=logprobs,
        parity_violations=parity_violations,
    )

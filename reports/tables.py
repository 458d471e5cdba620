"""The tables of a report as formatted strings, the same for every renderer.

Cells may carry text from a plan, a model or a server: renderers escape them.
"""

from dataclasses import dataclass
from typing import Literal

from equipoise.reports.evidence import PooledRow, TaskRow
from equipoise.reports.format import (
    count,
    interval,
    p_value,
    percent,
    points,
    size,
)
from equipoise.reports.model import ModelReport

__all__ = [
    "Column",
    "Table",
    "columns",
    "controls",
    "exclusions",
    "noise",
    "power",
    "results",
    "tests",
    "truncation",
]

POOLED = "pooled mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    header: str
    kind: Literal["number", "word", "code"]  # code: an identifier or other text that is not ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


def columns(*specs: str) -> tuple[Column, ...]:
    """From "header:kind" strings; a number where no kind is given."""
    kinds: dict[str, Literal["number", "word", "code"]] = {"word": "word", "code": "code"}
    split = [spec.partition(":") for spec in specs]
    return tuple(Column(header=header, kind=kinds.get(kind, "number")) for header, _, kind in split)


def task_label(row: TaskRow) -> str:
    """The task's name; ``*`` marks a critical one."""
    return f"{row.task} *" if row.critical else row.task


def _verdict(row: TaskRow | PooledRow) -> str:
    extra = " (improved)" if isinstance(row, TaskRow) and row.improved else ""
    extra += " (blind)" if isinstance(row, TaskRow) and row.blind else ""
    return row.verdict + extra


def _pair(baseline: float | None, candidate: float | None) -> str:
    return f"{percent(baseline)} > {percent(candidate)}"


def results(model: ModelReport) -> Table:
    """The decision: one row a task, the pooled mean last."""
    labelled: list[tuple[str, TaskRow | PooledRow]] = [(task_label(row), row) for row in model.tasks]
    if model.pooled is not None:
        labelled.append((POOLED, model.pooled))
    level = next((row.interval.level for _, row in labelled if row.interval is not None), 0.9)
    rows = tuple(
        (
            label,
            count(row.n),
            _pair(row.accuracy_baseline, row.accuracy_candidate),
            points(row.delta),
            interval(row.interval, margin=row.margin),
            size(row.margin),
            _verdict(row),
        )
        for label, row in labelled
    )
    return Table(
        title="Results",
        columns=columns(
            "task:code", "n", "accuracy %", "delta", f"{level:.0%} interval", "margin", "verdict:word"
        ),
        rows=rows,
        caption="* critical. Accuracy: baseline > candidate. delta = candidate - baseline, in points.",
    )


def tests(model: ModelReport) -> Table:
    """The counts and p-values behind the verdicts."""
    rows = [
        (
            task_label(row),
            count(row.lost),
            count(row.gained),
            p_value(row.p_non_inferiority),
            p_value(row.p_equivalence),
            p_value(row.p_mcnemar),
            p_value(row.p_mid),
            p_value(row.p_alarm),
            size(row.smallest_detectable_loss),
        )
        for row in model.tasks
    ]
    if (pooled := model.pooled) is not None:
        p = (p_value(pooled.p_non_inferiority), p_value(pooled.p_equivalence))
        seen = size(pooled.smallest_detectable_loss)
        rows.append((POOLED, count(pooled.lost), count(pooled.gained), *p, "", "", "", seen))
    methods = sorted({r.interval.method for r in (*model.tasks, model.pooled) if r and r.interval} - {""})
    return Table(
        title="Counts and tests",
        columns=columns(
            "task:code", "lost", "gained", "p NI", "p equiv", "McNemar", "mid-p", "p alarm", "sees"
        ),
        rows=tuple(rows),
        caption="lost: baseline right, candidate wrong; gained: the reverse. p alarm: Holm over tasks. "
        "sees: the smallest loss this run could have seen, in points."
        + (f" Intervals: {'; '.join(methods)}." if methods else ""),
    )


def truncation(model: ModelReport) -> Table:
    """Answers that ran into the token budget; empty where nothing was measured."""
    rows = [r for r in model.tasks if r.truncation_baseline is not None or r.truncation_candidate is not None]
    return Table(
        title="Truncated answers (they count as wrong in both arms)",
        columns=columns("task:code", "baseline %", "candidate %", "p alarm"),
        rows=tuple(
            (
                r.task,
                percent(r.truncation_baseline),
                percent(r.truncation_candidate),
                p_value(r.p_truncation_alarm),
            )
            for r in rows
        ),
    )


def noise(model: ModelReport) -> Table:
    """A2 against A1, by task."""
    rows = model.noise_floor.tasks if model.noise_floor else ()
    return Table(
        title="Noise floor by task (A2 against A1)",
        columns=columns("task:code", "n", "lost", "gained", "p"),
        rows=tuple((r.task, count(r.n), count(r.lost), count(r.gained), p_value(r.p)) for r in rows),
    )


def controls(model: ModelReport) -> Table:
    """What each planted fault did to each task."""
    return Table(
        title="Controls by task",
        columns=columns("control:word", "task:code", "delta", "verdict:word", "blind:word"),
        rows=tuple(
            (
                c.strength,
                task,
                points(c.task_deltas.get(task)),
                verdict,
                "blind" if task in c.blind_tasks else "",
            )
            for c in model.controls
            for task, verdict in c.task_verdicts.items()
        ),
    )


def power(model: ModelReport) -> Table:
    """What the plan promised, beside the discordance that was seen."""
    if (promised := model.power) is None:
        return Table(title="Predicted power", columns=(), rows=())
    rows = [
        (r.task, count(r.n), percent(r.predicted_power), percent(r.p_d_assumed), percent(r.p_d_observed))
        for r in promised.tasks
    ]
    if promised.pooled is not None:
        rows.append((POOLED, "", percent(promised.pooled), "", ""))
    rows.append(("all critical, jointly", "", percent(promised.joint), "", ""))
    return Table(
        title=f"Predicted power to sign off at a true loss of {size(promised.assumed_loss)} points",
        columns=columns("task:code", "n", "power %", "discordant % assumed", "observed"),
        rows=tuple(rows),
    )


def exclusions(model: ModelReport) -> Table:
    """Items that could not be paired."""
    return Table(
        title="Items not paired, by reason",
        columns=columns("task:code", "arm:code", "items", "reason:code"),
        rows=tuple((e.task, e.arm, count(e.count), e.reason) for e in model.exclusions),
    )

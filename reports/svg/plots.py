"""The plots of one model's report: its values and words, and nothing that the report does not say."""

import re

from equipoise.reports.evidence import Interval
from equipoise.reports.forest import CLIP_MARGINS, half_range
from equipoise.reports.format import count, interval, nats, percent, points, size
from equipoise.reports.logprob_tables import span
from equipoise.reports.model import ModelReport
from equipoise.reports.svg.plot import Mark, Plot, Row, axis_over, tone_of
from equipoise.reports.tables import POOLED, task_label

__all__ = ["by_length", "by_position", "forest", "power"]

LENGTH_STRATA = ("prompt tokens", "length")
POINTS = "points, candidate minus baseline"
CONTROL_CLIP_MARGINS = 3 * CLIP_MARGINS


def _ends(value: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if value is None else (value.lo, value.hi)


def _with(delta: str, bounds: str) -> str:
    return delta if bounds == "n/a" else f"{delta} {bounds}"


def forest(model: ModelReport) -> Plot | None:
    """Each task's delta with its interval against its margin, the pooled mean last; None without results."""
    half = half_range(model)
    if half is None:
        return None
    labels = [*(task_label(row) for row in model.tasks), POOLED]
    rows = []
    for label, row in zip(labels, model.rows, strict=False):
        lo, hi = _ends(row.interval)
        rows.append(
            Row(
                label=label,
                note=f"{count(row.n)} items, margin {size(row.margin)}",
                point=row.delta,
                lo=lo,
                hi=hi,
                said=_with(points(row.delta), interval(row.interval, margin=row.margin)),
                word=row.verdict,
                tone=tone_of(row.verdict),
                band=row.margin,
                pooled=row is model.pooled,
            )
        )
    axis = axis_over([half], scale=100, name=POINTS, around_zero=True)
    return Plot(title="Change in accuracy, by task", rows=tuple(rows), axis=axis)


def power(model: ModelReport) -> Plot | None:
    """The candidate, the baseline asked twice and the planted faults on one scale, with what would show."""
    rows = []
    if (pooled := model.pooled) is not None:
        lo, hi = _ends(pooled.interval)
        rows.append(
            Row(
                label="candidate",
                note="the decision",
                point=pooled.delta,
                lo=lo,
                hi=hi,
                said=_with(points(pooled.delta), interval(pooled.interval, margin=pooled.margin)),
                word=pooled.verdict,
                tone=tone_of(pooled.verdict),
                pooled=True,
            )
        )
    if (noise := model.noise_floor) is not None and noise.delta is not None:
        lo, hi = _ends(noise.interval)
        rows.append(
            Row(
                label="A2 against A1",
                note="the baseline asked twice",
                point=noise.delta,
                lo=lo,
                hi=hi,
                said=_with(points(noise.delta), interval(noise.interval)),
                word="noise floor passed" if noise.passed else "noise floor NOT passed",
                tone="good" if noise.passed else "bad",
            )
        )
    for control in model.controls:
        lo, hi = _ends(control.interval)
        caught = "caught" if control.caught else "NOT caught"
        rows.append(
            Row(
                label=f"{control.strength} control",
                note=control.variant,
                point=control.delta,
                lo=lo,
                hi=hi,
                said=_with(points(control.delta), interval(control.interval)),
                word=caught if control.required else f"{caught} (not required)",
                tone="good" if control.caught else ("bad" if control.required else "plain"),
            )
        )
    if pooled is None or len(rows) < 2:
        return None
    marks = [Mark(at=-pooled.margin, text=f"margin {size(pooled.margin)}")]
    if (seen := pooled.smallest_detectable_loss) is not None:
        marks.append(Mark(at=-seen, text=f"would have seen {size(seen)}"))
    ends = [x for row in rows for x in (row.lo, row.hi, row.point) if x is not None]
    most = CONTROL_CLIP_MARGINS * pooled.margin
    shown = [min(max(x, -most), most) for x in (*ends, *(mark.at for mark in marks), pooled.margin / 4)]
    return Plot(
        title="The pooled mean beside the noise floor and the planted faults",
        rows=tuple(rows),
        axis=axis_over(shown, scale=100, name=POINTS),
        marks=tuple(marks),
    )


def by_length(model: ModelReport) -> Plot | None:
    """Delta by the length of the prompt, task by task; None where no length was a subgroup."""
    found = [s for s in (model.secondary.subgroups if model.secondary else ()) if s.stratum in LENGTH_STRATA]
    margins = {row.task: row.margin for row in model.tasks}
    rows: list[Row] = []
    for task, stratum in dict.fromkeys((s.task, s.stratum) for s in found):
        here = sorted(
            (s for s in found if (s.task, s.stratum) == (task, stratum)), key=lambda s: _first(s.label)
        )
        rows.append(Row(label=f"{task}, by {stratum}", heading=True))
        for s in here:
            lo, hi = _ends(s.interval)
            accuracy = f"{percent(s.accuracy_baseline)} > {percent(s.accuracy_candidate)} %"
            rows.append(
                Row(
                    label=s.label,
                    note=f"{count(s.n)} items, {accuracy}",
                    point=s.delta,
                    lo=lo,
                    hi=hi,
                    said=_with(points(s.delta), interval(s.interval)),
                    band=margins.get(task),
                )
            )
    if not rows:
        return None
    ends = [x for row in rows for x in (row.lo, row.hi, row.point) if x is not None]
    most = CLIP_MARGINS * max(margins.values(), default=0.25)
    shown = [min(max(x, -most), most) for x in (*ends, *margins.values())]
    axis = axis_over(shown, scale=100, name=POINTS, around_zero=True)
    return Plot(title="Change in accuracy by the length of the prompt", rows=tuple(rows), axis=axis)


def _first(label: str) -> int:
    digits = re.search(r"\d{1,15}", label.replace(",", ""))
    return int(digits[0]) if digits else 0


def by_position(model: ModelReport) -> Plot | None:
    """Delta-NLL by the position of the token; None where nothing was teacher-forced in buckets."""
    rows: list[Row] = []
    for task in model.logprobs:
        if not task.buckets:
            continue
        rows.append(Row(label=f"{task.task}, by position", heading=True))
        for bucket in task.buckets:
            lo, hi = _ends(bucket.interval)
            rows.append(
                Row(
                    label=span(bucket),
                    note=f"{count(bucket.tokens)} tokens",
                    point=bucket.delta_nll_nats,
                    lo=lo,
                    hi=hi,
                    said=_with(nats(bucket.delta_nll_nats), interval(bucket.interval, scale=1.0, digits=4)),
                    limit=task.gate_nats,
                )
            )
    if not rows:
        return None
    ends = [x for row in rows for x in (row.lo, row.hi, row.point, row.limit) if x is not None]
    axis = axis_over(ends, scale=1, name="nats a token, candidate minus baseline")
    title = "Change in log-likelihood by the position of the token"
    return Plot(title=title, rows=tuple(rows), axis=axis, better=False)

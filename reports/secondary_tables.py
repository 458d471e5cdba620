"""Tables of what is told beside the decision, kept short; the JSON report has every row."""

from equipoise.reports.format import count, interval, p_value, percent, points, ratio, ratio_interval
from equipoise.reports.model import ModelReport
from equipoise.reports.secondary import EndpointRow, LengthRow, Secondary, SubgroupRow, TrendRow
from equipoise.reports.tables import Table, columns, truncation

__all__ = ["all_of", "endpoints", "lengths", "subgroups", "trends"]

MAX_SUBGROUPS = 5
MAX_EXAMPLES = 3  # item ids a row


def _of(model: ModelReport) -> Secondary:
    return model.secondary or Secondary()


def all_of(model: ModelReport, *, max_subgroups: int = MAX_SUBGROUPS) -> tuple[Table, ...]:
    """Every table, in order; a report made before these endpoints were has truncation alone."""
    if model.secondary is None:
        return (truncation(model),)
    return endpoints(model), lengths(model), trends(model), subgroups(model, max_rows=max_subgroups)


def endpoints(model: ModelReport) -> Table:
    """Faults that some answer shows; those that none shows are named in the caption."""
    rows = _of(model).endpoints
    seen = [r for r in rows if r.baseline or r.candidate]
    alarms = {row.task: p_value(row.p_truncation_alarm) for row in model.tasks}
    return Table(
        title="Faults of answers (exploratory, but for the truncation alarm)",
        columns=columns(
            "task:code", "fault:word", "base %", "cand %", "only base", "only cand", "p", "q", "alarm"
        ),
        rows=tuple(
            (
                r.task,
                r.endpoint,
                percent(r.baseline_rate),
                percent(r.candidate_rate),
                count(r.baseline_only),
                count(r.candidate_only),
                p_value(r.p),
                p_value(r.p_adjusted),
                alarms.get(r.task, "") if r.endpoint == "truncated" else "",
            )
            for r in seen
        )
        or ((("none seen",) + ("",) * 8,) if rows else ()),
        caption=" ".join(
            [
                "Truncated answers count as wrong in both arms. only: items. "
                "q: Benjamini-Hochberg over tasks and endpoints; alarm: Holm over tasks.",
                *_unseen(rows),
                *_examples(seen),
                *_completed(_of(model)),
            ]
        ),
    )


def _unseen(rows: tuple[EndpointRow, ...]) -> list[str]:
    names = dict.fromkeys(r.endpoint for r in rows)
    tasks = {
        name: sum(r.endpoint == name and not (r.baseline or r.candidate) for r in rows) for name in names
    }
    said = [f"{name} ({count(n)} task{'s' if n > 1 else ''})" for name, n in tasks.items() if n]
    return [f"Seen in no answer: {', '.join(said)}."] if said else []


def _examples(rows: list[EndpointRow]) -> list[str]:
    said = []
    for r in rows:
        if r.examples:
            shown = r.examples[:MAX_EXAMPLES]
            more = (
                f" and {count(r.candidate_only - len(shown))} more" if r.candidate_only > len(shown) else ""
            )
            said.append(f"{r.endpoint} {', '.join(shown)}{more}")
    return [f"In the candidate alone: {'; '.join(said)}."] if said else []


def _completed(secondary: Secondary) -> list[str]:
    cut = {r.task for r in secondary.endpoints if r.endpoint == "truncated" and (r.baseline or r.candidate)}
    said = [
        f"{r.task} {points(r.delta)} {interval(r.interval)} of {count(r.n)}"
        for r in secondary.completed
        if r.task in cut
    ]
    return [f"Delta where both arms ended: {'; '.join(said)}."] if said else []


def lengths(model: ModelReport) -> Table:
    """Completion tokens, candidate over baseline."""
    rows = _of(model).lengths
    level = next((r.interval.level for r in rows if r.interval is not None), 0.95)
    return Table(
        title="Lengths of answers, candidate / baseline (exploratory)",
        columns=columns("task:code", "tokens", "ratio", f"{level:.0%} interval", "ended", "typical", "q"),
        rows=tuple(_length_cells(r) for r in rows),
        caption="tokens: mean of an answer. ended: without truncated answers. typical: geometric mean of the "
        "items' ratios. An interval is n/a where no length differs.",
    )


def _length_cells(row: LengthRow) -> tuple[str, ...]:
    means = f"{row.baseline_mean:.1f} > {row.candidate_mean:.1f}" if _known(row) else "n/a"
    return (
        row.task,
        means,
        ratio(row.ratio),
        ratio_interval(row.interval),
        ratio(row.ended_ratio),
        ratio(row.geometric_ratio),
        p_value(row.p_adjusted),
    )


def _known(row: LengthRow) -> bool:
    return row.baseline_mean is not None and row.candidate_mean is not None


def trends(model: ModelReport) -> Table:
    """Tests over the items of all tasks."""
    return Table(
        title="A small loss everywhere, or one that grows with the prompt (exploratory)",
        columns=columns("test:word", "n", "p", "p loss", "found:word"),
        rows=tuple(
            (r.name, count(r.n), p_value(r.p), p_value(r.p_loss), _found(r)) for r in _of(model).trends
        ),
        caption="p: two-sided, not adjusted; p loss: towards a loss.",
    )


def _found(row: TrendRow) -> str:
    if row.strata is not None:
        return f"{count(row.strata_losing)} of {count(row.strata)} lose, {count(row.strata_gaining)} gain"
    unknown = f"; {count(row.unknown)} of unknown length" if row.unknown else ""
    return f"delta {points(row.slope)}, shortest to longest{unknown}"


def subgroups(model: ModelReport, *, max_rows: int = MAX_SUBGROUPS) -> Table:
    """The subgroups with the smallest p-values."""
    rows = sorted(_of(model).subgroups, key=lambda r: 2.0 if r.p is None else r.p)
    small = _of(model).subgroups_too_small
    left_out = f" {count(small)} smaller ones were left out." if small else ""
    which = f": the {max_rows} of {count(len(rows))} with the smallest p"
    return Table(
        title=f"Subgroups (exploratory{which if len(rows) > max_rows else ''})",
        columns=columns("task:code", "subgroup:code", "n", "delta", "interval", "p", "q"),
        rows=tuple(_subgroup_cells(r) for r in rows[:max_rows]),
        caption=f"q: Benjamini-Hochberg over all subgroups; no subgroup decides.{left_out}",
    )


def _subgroup_cells(row: SubgroupRow) -> tuple[str, ...]:
    return (
        row.task,
        f"{row.stratum} {row.label}",
        count(row.n),
        points(row.delta),
        interval(row.interval),
        p_value(row.p),
        p_value(row.p_adjusted),
    )

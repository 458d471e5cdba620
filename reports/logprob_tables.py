"""The tables of teacher-forced evidence as formatted strings; see tables.py."""

from equipoise.reports.format import UNDEFINED, count, interval, nats, percent
from equipoise.reports.model import LogprobRow, ModelReport, PositionBucket
from equipoise.reports.tables import Column, Table, columns

__all__ = ["divergences", "divergences_by_position", "logprobs", "positions", "span"]

OPEN_END = 1 << 32  # no context is as long


def logprobs(model: ModelReport) -> Table:
    """Teacher-forced evidence."""
    keys = list(dict.fromkeys(key for row in model.logprobs for key in row.abs_delta_logprob_nats))
    return Table(
        title="Teacher-forced log-likelihood (nats a token; positive is a loss)",
        columns=columns(
            "task:code", "sequences", "tokens", "delta NLL", "interval", "gate", "A2-A1", "top-1 %"
        )
        + tuple(Column(header=f"|d| {key}", kind="number") for key in keys)
        + columns("status:word"),
        rows=tuple(_logprob_row(row, keys) for row in model.logprobs),
        caption="The interval's upper end must stay below the gate. |d|: absolute logprob differences.",
    )


def _logprob_row(row: LogprobRow, keys: list[str]) -> tuple[str, ...]:
    read = "" if row.cache_read or row.status == "cache not read" else " (cache not read)"
    read = " (cache read unknown)" if row.cache_read is None else read
    return (
        f"{row.task} *" if row.critical else row.task,
        count(row.sequences),
        count(row.tokens),
        nats(row.delta_nll_nats),
        interval(row.interval, margin=row.gate_nats, scale=1.0, digits=4),
        UNDEFINED if row.gate_nats is None else f"{row.gate_nats:.4f}",
        UNDEFINED if row.noise_nats is None else f"{row.noise_nats:.4f}",
        percent(row.top1_agreement),
        *(
            f"{row.abs_delta_logprob_nats[k]:.4f}" if k in row.abs_delta_logprob_nats else UNDEFINED
            for k in keys
        ),
        row.status + read,
    )


def divergences(model: ModelReport) -> Table:
    """KL(baseline || candidate), and how much of the distributions it was taken from."""
    found = [(row.task, row.kl) for row in model.logprobs if row.kl is not None]
    assumed = sorted(
        {kl.max_drop_nats for _, kl in found if kl.max_drop_nats is not None and not kl.complete}
    )
    caption = (
        ">=: from lists of likely tokens, a lower bound. at most: its ceiling, whatever the lists leave out. "
        "unlisted: probability outside the lists, mean (largest) over tokens, in percent."
    )
    if assumed:
        falls = ", ".join(f"{nats:g}" for nats in assumed)
        caption += f" The ceiling assumes that no token's logprob falls by more than {falls} nats."
    return Table(
        title="KL of the next token's distribution, baseline || candidate (nats a token)",
        columns=columns(
            "task:code",
            "tokens",
            "KL",
            "interval",
            "at most",
            "gate",
            "A2-A1",
            "unlisted % baseline",
            "candidate",
        ),
        rows=tuple(
            (
                task,
                count(kl.tokens),
                _kl(kl.kl_nats, complete=kl.complete),
                interval(kl.interval, scale=1.0, digits=4, signed=False),
                _unsigned(kl.ceiling_nats),
                _unsigned(kl.gate_nats),
                _unsigned(kl.noise_nats),
                f"{percent(kl.truncated_baseline_mean)} ({percent(kl.truncated_baseline_max)})",
                f"{percent(kl.truncated_candidate_mean)} ({percent(kl.truncated_candidate_max)})",
            )
            for task, kl in found
        ),
        caption=caption,
    )


def _unsigned(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.4f}"


def _kl(value: float | None, *, complete: bool) -> str:
    return _unsigned(value) if complete or value is None else f">= {value:.4f}"


def positions(model: ModelReport) -> Table:
    """Delta-NLL by position: faults of a cache grow with the context."""
    buckets = [(row, bucket) for row in model.logprobs for bucket in row.buckets]
    known = any("p99" in bucket.abs_delta_logprob_nats for _, bucket in buckets)
    return Table(
        title="Delta NLL by token position",
        columns=columns("task:code", "positions", "tokens", "delta NLL", "interval")
        + (columns("|d| p99") if known else ()),
        rows=tuple(
            (
                row.task,
                span(bucket),
                count(bucket.tokens),
                nats(bucket.delta_nll_nats),
                interval(bucket.interval, scale=1.0, digits=4),
                *((_unsigned(bucket.abs_delta_logprob_nats.get("p99")),) if known else ()),
            )
            for row, bucket in buckets
        ),
        caption="Exploratory: each interval stands for itself.",
    )


def divergences_by_position(model: ModelReport) -> Table:
    """KL by position; empty where there is none."""
    return Table(
        title="KL by token position",
        columns=columns("task:code", "positions", "KL", "interval"),
        rows=tuple(
            (
                row.task,
                span(bucket),
                _kl(bucket.kl_nats, complete=row.kl is not None and row.kl.complete),
                interval(bucket.kl_interval, scale=1.0, digits=4, signed=False),
            )
            for row in model.logprobs
            for bucket in row.buckets
            if bucket.kl_nats is not None
        ),
    )


def span(bucket: PositionBucket) -> str:
    """The token positions of a bucket, both ends included."""
    if bucket.end is None or bucket.end >= OPEN_END:
        return f"{bucket.start:,}+"
    return f"{bucket.start:,}-{bucket.end - 1:,}"

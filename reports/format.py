"""How numbers are written, for every renderer. The only place that rounds.

Accuracies in percent with one decimal, differences and their bounds in points (percentage points)
with a sign and two decimals, log-likelihoods in nats with four decimals, p to four decimals below
0.1. What is undefined reads "n/a".
"""

from equipoise.reports.evidence import Interval

__all__ = [
    "UNDEFINED",
    "count",
    "duration",
    "interval",
    "nats",
    "p_value",
    "percent",
    "plain_score",
    "plain_seconds",
    "points",
    "ratio",
    "ratio_interval",
    "size",
]

UNDEFINED = "n/a"
MAX_DIGITS = 6


def count(value: float | None) -> str:
    """Whole numbers as they are; sums of graded or repeated scores with one decimal."""
    if value is None:
        return UNDEFINED
    return f"{int(value):,}" if value == int(value) else f"{value:,.1f}"


def percent(value: float | None) -> str:
    """0.9125 -> 91.2 (in percent; the header says so). 0.0 and 100.0 are only shown if exact."""
    if value is None:
        return UNDEFINED
    for digits in range(1, MAX_DIGITS):
        shown = f"{100 * value:z.{digits}f}"
        if value in (0.0, 1.0) or float(shown) not in (0.0, 100.0):
            break
    return shown


def points(value: float | None) -> str:
    """-0.005 -> -0.50 (percentage points)."""
    return UNDEFINED if value is None else f"{100 * value:+z.2f}"


def size(value: float | None) -> str:
    """A margin or another size without a sign: 0.05 -> 5.00 (percentage points)."""
    return UNDEFINED if value is None else f"{100 * value:z.2f}"


def interval(
    value: Interval | None,
    *,
    margin: float | None = None,
    scale: float = 100.0,
    digits: int = 2,
    signed: bool = True,
) -> str:
    """Both ends, with a sign unless it is always plus; more digits where rounding would hide on which side
    of the margin one lies.
    """
    if value is None or (value.lo is None and value.hi is None):
        return UNDEFINED
    shown = f"[{_end(value.lo, margin, scale, digits)}, {_end(value.hi, margin, scale, digits)}]"
    return shown if signed else shown.replace("+", "")


def _end(value: float | None, margin: float | None, scale: float, digits: int) -> str:
    if value is None:
        return UNDEFINED
    while margin is not None and digits < MAX_DIGITS and abs(value) != margin:
        if f"{scale * abs(value):.{digits}f}" != f"{scale * margin:.{digits}f}":
            break
        digits += 1
    return f"{scale * value:+z.{digits}f}"


def nats(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:+z.4f}"


def p_value(value: float | None) -> str:
    if value is None:
        return UNDEFINED
    if value < 0.0001:
        return "<0.0001"
    return f"{value:.4f}" if value < 0.1 else f"{value:.3f}"


def ratio(value: float | None) -> str:
    """1.0349 -> 1.035; of two means, so a size rather than a share."""
    return UNDEFINED if value is None else f"{value:.3f}"


def ratio_interval(value: Interval | None) -> str:
    if value is None or (value.lo is None and value.hi is None):
        return UNDEFINED
    return f"[{ratio(value.lo)}, {ratio(value.hi)}]"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return UNDEFINED
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def plain_score(value: float | None) -> str:
    """The score of one answer: 1 and 0 as they are, anything between with two decimals."""
    if value is None:
        return UNDEFINED
    return str(int(value)) if value == int(value) else f"{value:.2f}"


def plain_seconds(seconds: float | None) -> str:
    """12.3456 -> 12.346, with no unit, for machines; empty if undefined."""
    return "" if seconds is None else f"{seconds:.3f}"

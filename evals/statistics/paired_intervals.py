"""Intervals that other tools print for a paired difference: to compare with theirs, never to gate on."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from scipy.stats import norm

__all__ = ["PairedInterval", "bonett_price_interval", "wald_interval"]

WALD_CITATION = (
    "Wald interval of paired proportions, e.g. Agresti A (2013). Categorical Data Analysis, ch. 11."
)
BONETT_PRICE_CITATION = (
    "Bonett DG, Price RM (2012). Adjusted Wald confidence interval for a difference of binomial proportions "
    "based on paired data. Journal of Educational and Behavioral Statistics 37:479-488."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedInterval:
    """Two-sided interval of delta = candidate - baseline at ``level``, kept in [-1, 1]."""

    b: int
    c: int
    n: int
    level: float
    delta: float
    ci_lower: float
    ci_upper: float
    method: str
    citation: str


def wald_interval(b: int, c: int, n: int, *, level: float = 0.95) -> PairedInterval:
    """``delta +- z sqrt(b + c - (b - c)^2 / n) / n``: a point at zero discordance, too short at little.

    Parameters
    ----------
    b, c, n
        Pairs right under the baseline only, under the candidate only, and in all.
    level
        Two-sided confidence level.

    Raises
    ------
    ValueError
        If the counts are negative or exceed ``n``, or ``level`` is out of range.
    """
    _check(b, c, n, level)
    half_width = float(norm.ppf(0.5 + level / 2.0)) * sqrt(max(b + c - (b - c) ** 2 / n, 0.0)) / n
    return _interval(
        b,
        c,
        n,
        level=level,
        centre=(c - b) / n,
        half_width=half_width,
        method="Wald interval",
        citation=WALD_CITATION,
    )


def bonett_price_interval(b: int, c: int, n: int, *, level: float = 0.95) -> PairedInterval:
    """The Wald interval after a pair is added to ``b`` and one to ``c``; see `wald_interval`."""
    _check(b, c, n, level)
    lost, gained = (b + 1) / (n + 2), (c + 1) / (n + 2)
    error = sqrt((lost + gained - (lost - gained) ** 2) / (n + 2))
    half_width = float(norm.ppf(0.5 + level / 2.0)) * error
    return _interval(
        b,
        c,
        n,
        level=level,
        centre=gained - lost,
        half_width=half_width,
        method="Bonett-Price adjusted Wald interval",
        citation=BONETT_PRICE_CITATION,
    )


def _interval(
    b: int, c: int, n: int, *, level: float, centre: float, half_width: float, method: str, citation: str
) -> PairedInterval:
    return PairedInterval(
        b=b,
        c=c,
        n=n,
        level=level,
        delta=(c - b) / n,
        ci_lower=max(centre - half_width, -1.0),
        ci_upper=min(centre + half_width, 1.0),
        method=method,
        citation=citation,
    )


def _check(b: int, c: int, n: int, level: float) -> None:
    if n < 1 or min(b, c) < 0 or b + c > n:
        raise ValueError(f"counts need n >= 1, b, c >= 0 and b + c <= n; got b={b}, c={c}, n={n}")
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must lie in (0, 1), got {level}")

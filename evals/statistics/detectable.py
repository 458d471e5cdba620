"""What a paired experiment would have noticed: the smallest loss that the exact McNemar test finds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import binom, norm

__all__ = ["DetectableLoss", "alarm_probability", "detectable_at_standard_error", "smallest_detectable_loss"]

CITATION = "Duffy SW (1984). Asymptotic and exact power for the McNemar test. Biometrics 40:1005-1015."


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectableLoss:
    """Smallest true loss at which the loss alarm rejects with probability ``power``; NaN if none does.

    ``p_d`` is the discordant share without the loss; a loss above it raises the share to itself. The
    alarm is taken alone: an adjustment over several tasks makes it a little less sensitive.
    """

    n: int
    p_d: float
    power: float
    alpha: float
    loss: float
    method: str = "exact two-sided McNemar test, exact power"
    citation: str = CITATION


def alarm_probability(n: int, p_d: float, loss: float, *, alpha: float = 0.05) -> float:
    """Exact probability that the two-sided McNemar test rejects and points to a loss.

    Parameters
    ----------
    n, p_d, loss
        Pairs, discordant share (at least ``abs(loss)``) and true loss of the candidate.
    alpha
        Two-sided alpha.
    """
    if n < 1 or not 0.0 <= p_d <= 1.0 or abs(loss) > p_d * (1 + 1e-12):
        raise ValueError(f"need n >= 1 and abs(loss) <= p_d <= 1, got n={n}, p_d={p_d}, loss={loss}")
    if p_d == 0.0:
        return 0.0
    discordant = np.arange(int(binom.ppf(1e-12, n, p_d)), int(binom.isf(1e-12, n, p_d)) + 1)
    # Largest c with P(X <= c) <= alpha / 2 under a fair coin; -1 if even c = 0 is not rare enough.
    largest_c = np.asarray(binom.ppf(alpha / 2.0, discordant, 0.5), dtype=np.float64)
    largest_c = np.where(binom.cdf(largest_c, discordant, 0.5) > alpha / 2.0, largest_c - 1.0, largest_c)
    share_c = min(max((p_d - loss) / (2.0 * p_d), 0.0), 1.0)
    rejects = np.asarray(binom.cdf(largest_c, discordant, share_c))
    return float(np.sum(np.asarray(binom.pmf(discordant, n, p_d)) * rejects))


def smallest_detectable_loss(
    n: int, p_d: float, *, power: float = 0.8, alpha: float = 0.05
) -> DetectableLoss:
    """Search the loss, by bisection to 1e-5, at which the alarm has the wanted power.

    Parameters
    ----------
    n, p_d
        Pairs, and discordant share seen or assumed.
    power, alpha
        Wanted power; two-sided alpha of the alarm.
    """

    def reaches(loss: float) -> bool:
        return alarm_probability(n, max(p_d, loss), loss, alpha=alpha) >= power

    low, high = 0.0, 1.0
    if not reaches(high):
        return DetectableLoss(n=n, p_d=p_d, power=power, alpha=alpha, loss=float("nan"))
    while high - low > 1e-5:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return DetectableLoss(n=n, p_d=p_d, power=power, alpha=alpha, loss=high)


def detectable_at_standard_error(
    n: int, p_d: float, standard_error: float, *, power: float = 0.8, alpha: float = 0.05
) -> DetectableLoss:
    """The same by the normal approximation, for scores that are graded, repeated or clustered.

    Parameters
    ----------
    n, p_d
        Items, and share of them whose score differs.
    standard_error
        Of delta (fraction); zero or NaN tells nothing, and gives NaN.
    """
    z = float(norm.ppf(1.0 - alpha / 2.0) + norm.ppf(power))
    loss = z * standard_error if standard_error > 0.0 else float("nan")
    return DetectableLoss(
        n=n,
        p_d=p_d,
        power=power,
        alpha=alpha,
        loss=loss if loss <= 1.0 else float("nan"),
        method="two-sided test at the standard error seen, normal approximation",
        citation="Chow SC, Shao J, Wang H (2008). Sample Size Calculations in Clinical Research, ch. 3.",
    )

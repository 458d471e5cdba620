"""McNemar's test of marginal homogeneity: exact, mid-p and chi-squared forms.

Valid for independent pairs only: with clustered items the discordant pairs are not independent draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom, chi2

__all__ = ["McNemarResult", "mcnemar_exact_p", "mcnemar_test"]

CITATION = (
    "McNemar Q (1947). Psychometrika 12:153-157; mid-p: Fagerland MW, Lydersen S, Laake P (2013). "
    "The McNemar test for binary matched-pairs data. BMC Medical Research Methodology 13:91."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class McNemarResult:
    """Tests of "the arms are right equally often" given the discordant pairs.

    Attributes
    ----------
    b, c
        Pairs right under the baseline only, and under the candidate only.
    exact_p, mid_p
        Two-sided p-values.
    loss_p, gain_p
        One-sided exact p-values: the candidate is worse, the candidate is better.
    loss_mid_p, gain_mid_p
        Their mid-p forms.
    chi2, chi2_p, chi2_corrected, chi2_corrected_p
        Asymptotic statistic and p-value, without and with Edwards' continuity correction; NaN when
        there are no discordant pairs.
    """

    b: int
    c: int
    exact_p: float
    mid_p: float
    loss_p: float
    gain_p: float
    loss_mid_p: float
    gain_mid_p: float
    chi2: float
    chi2_p: float
    chi2_corrected: float
    chi2_corrected_p: float
    method: str = "McNemar test"
    citation: str = CITATION

    @property
    def two_sided_p(self) -> float:
        """The exact p-value: what the loss alarm uses."""
        return self.exact_p


def mcnemar_exact_p(b: ArrayLike, c: ArrayLike) -> NDArray[np.float64]:
    """Two-sided exact p-value, elementwise; 1 where there are no discordant pairs."""
    b_, c_ = np.broadcast_arrays(np.asarray(b), np.asarray(c))
    return np.minimum(1.0, 2.0 * np.asarray(binom.cdf(np.minimum(b_, c_), b_ + c_, 0.5), dtype=np.float64))


def mcnemar_test(b: int, c: int) -> McNemarResult:
    """Test whether discordant pairs fall evenly on both sides: ``b ~ Binomial(b + c, 1/2)``.

    Parameters
    ----------
    b, c
        Pairs right under the baseline only, and under the candidate only.

    Raises
    ------
    ValueError
        If a count is negative.
    """
    if b < 0 or c < 0:
        raise ValueError(f"discordant counts cannot be negative, got b={b}, c={c}")
    discordant = b + c
    smaller = min(b, c)
    doubled = 2.0 * float(binom.cdf(smaller, discordant, 0.5))
    half_point = 0.5 * float(binom.pmf(b, discordant, 0.5))
    loss_p = float(binom.sf(b - 1, discordant, 0.5))
    gain_p = float(binom.sf(c - 1, discordant, 0.5))
    statistic = (b - c) ** 2 / discordant if discordant else nan
    corrected = max(abs(b - c) - 1, 0) ** 2 / discordant if discordant else nan
    return McNemarResult(
        b=b,
        c=c,
        exact_p=min(1.0, doubled),
        # Not from the capped value: at b == c the doubled tail exceeds 1 by exactly the point mass.
        mid_p=min(1.0, doubled - float(binom.pmf(smaller, discordant, 0.5))) if discordant else 1.0,
        loss_p=loss_p,
        gain_p=gain_p,
        loss_mid_p=loss_p - half_point if discordant else 1.0,
        gain_mid_p=gain_p - half_point if discordant else 1.0,
        chi2=statistic,
        chi2_p=float(chi2.sf(statistic, 1)),
        chi2_corrected=corrected,
        chi2_corrected_p=float(chi2.sf(corrected, 1)),
    )

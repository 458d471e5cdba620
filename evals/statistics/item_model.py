"""Items as they are in real benchmarks, for sizes and power: mixed difficulty, correlated arms.

The baseline answers item i rightly with probability ``p_i ~ Beta``. The candidate's ``q_i`` is ``p_i`` again,
except that a share of items is redrawn (better or worse by chance) and a share is broken (``q_i = 0``), which
makes the loss. Two numbers that a run shows fix it: the discordant share of candidate against baseline
and that of the baseline asked twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln, gammaln

__all__ = ["ItemModel", "item_model"]

# A baseline that always answers alike has p_i in {0, 1}: this close to it, Beta is still a number.
_LEAST_NOISE = 1e-7
_ACCURACIES = (0.7, 0.6, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemModel:
    """Law of the paired answers to one item.

    Attributes
    ----------
    accuracy
        Mean of ``p_i``.
    p_d, noise_p_d, loss
        Probability that single answers differ, candidate against baseline and baseline against itself;
        true loss (fractions).
    a, b
        Parameters of the Beta law of ``p_i``.
    redrawn, broken
        Shares of items whose ``q_i`` is drawn anew, and is 0. A negative loss breaks the baseline instead.
    """

    accuracy: float
    p_d: float
    noise_p_d: float
    loss: float
    a: float
    b: float
    redrawn: float
    broken: float
    method: str = "beta-distributed difficulty; a share of items redrawn, a share broken"
    citation: str = "Lord FM (1965). A strong true-score theory. Psychometrika 30:239-270 (beta-binomial)."

    def joint_pmf(self, repeats: int) -> NDArray[np.float64]:
        """Probability of (baseline right, candidate right) out of ``repeats`` each: [repeats + 1] * 2."""
        k = np.arange(repeats + 1)
        log_choose = gammaln(repeats + 1) - gammaln(k + 1) - gammaln(repeats - k + 1)
        one = np.exp(log_choose + betaln(self.a + k, self.b + repeats - k) - betaln(self.a, self.b))
        both = k[:, None] + k[None, :]
        same = np.exp(
            log_choose[:, None]
            + log_choose[None, :]
            + betaln(self.a + both, self.b + 2 * repeats - both)
            - betaln(self.a, self.b)
        )
        joint = (1.0 - self.redrawn - self.broken) * same + self.redrawn * np.outer(one, one)
        joint[:, 0] += self.broken * one
        return joint.T if self.loss < 0 else joint

    def difference_law(self, repeats: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Values of an item's mean difference, from -1 to 1 by 1 / repeats, and their probabilities."""
        joint = self.joint_pmf(repeats)
        steps = np.arange(-repeats, repeats + 1)
        probabilities = np.array([np.trace(joint, offset=int(s)) for s in steps])
        return steps / repeats, probabilities / probabilities.sum()

    def draw(
        self, items: int, repeats: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Scores of both arms, each [items, repeats]."""
        p = rng.beta(self.a, self.b, size=items)
        u = rng.random(items)
        q = np.where(u < self.redrawn, rng.beta(self.a, self.b, size=items), p)
        q = np.where(u >= 1.0 - self.broken, 0.0, q)
        if self.loss < 0:
            p, q = q, p
        right = rng.random((2, items, repeats)) < np.stack([p, q])[:, :, None]
        return right[0].astype(np.float64), right[1].astype(np.float64)


def item_model(
    *, p_d: float, noise_p_d: float = 0.0, loss: float = 0.0, accuracy: float | None = None
) -> ItemModel:
    """The model with these rates; for graded scores they are mean squared differences of single answers.

    Right-or-wrong scores vary most among all scores in [0, 1] with the same mean squared differences, so
    for graded scores the model errs on the side of too many items.

    Parameters
    ----------
    p_d
        Discordant share, candidate against baseline; raised to what the other rates make by
        themselves, ``noise_p_d + abs(loss)`` or a little less.
    noise_p_d
        Discordant share of the baseline asked twice: twice the within-item variance; below 1/2.
    loss
        True loss (fraction).
    accuracy
        Mean accuracy of the better arm; by default 0.7, or nearer to 1/2 where the rates ask for it.

    Raises
    ------
    ValueError
        If no items can have such rates.
    """
    if not (0.0 <= noise_p_d < 0.5 and 0.0 <= p_d <= 1.0 and -1.0 < loss < 1.0):
        raise ValueError(
            f"need 0 <= noise_p_d < 0.5, 0 <= p_d <= 1 and -1 < loss < 1, got {noise_p_d}, {p_d}, {loss}"
        )
    noise = max(noise_p_d, _LEAST_NOISE)
    shares: tuple[float, float] | None = None
    for mean in (accuracy,) if accuracy is not None else _ACCURACIES:
        most = 2.0 * mean * (1.0 - mean)  # discordant share of independent answers
        broken = abs(loss) / mean
        if noise >= most or broken > 1.0:
            continue
        # p_d = |loss| + (1 - broken) noise + redrawn (most - noise)
        redrawn = max(0.0, p_d - abs(loss) - (1.0 - broken) * noise) / (most - noise)
        if redrawn + broken <= 1.0:
            shares = redrawn, broken
            break
    if shares is None:
        raise ValueError(
            f"no items of mixed difficulty have a discordant share of {p_d:g}, {noise_p_d:g} against "
            f"themselves, and a loss of {loss:g}: independent answers differ at most half of the time"
        )
    redrawn, broken = shares
    spread = noise / (most - noise)  # a + b, from E[2 p (1 - p)] = most * spread / (spread + 1)
    return ItemModel(
        accuracy=mean,
        p_d=abs(loss) + (1.0 - broken) * noise + redrawn * (most - noise),
        noise_p_d=noise_p_d,
        loss=loss,
        a=mean * spread,
        b=(1.0 - mean) * spread,
        redrawn=redrawn,
        broken=broken,
    )

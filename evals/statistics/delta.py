"""What every analysis of paired scores says, whichever method made it.

Tango's test, the bootstrap-t, the cluster-robust t and the fixed-benchmark estimate all answer the same
question about ``delta = candidate - baseline``; what reads their results needs only these attributes.
"""

from typing import Protocol

__all__ = ["DeltaEstimate", "DifferenceTest"]


class DeltaEstimate(Protocol):
    """An estimate of delta with its one-sided ``1 - alpha`` limits, and tests against ``margin``.

    ``noninferiority_p <= alpha`` exactly where ``lower > -margin`` (up to the spacing of resamples);
    ``equivalence_p`` is the larger of the two one-sided tests. ``n`` counts items.
    """

    @property
    def n(self) -> int: ...
    @property
    def delta(self) -> float: ...
    @property
    def lower(self) -> float: ...
    @property
    def upper(self) -> float: ...
    @property
    def margin(self) -> float: ...
    @property
    def alpha(self) -> float: ...
    @property
    def noninferiority_p(self) -> float: ...
    @property
    def equivalence_p(self) -> float: ...
    @property
    def method(self) -> str: ...
    @property
    def citation(self) -> str: ...


class DifferenceTest(Protocol):
    """A two-sided test of "no difference at all": exact McNemar, or sign flips where scores are graded."""

    @property
    def two_sided_p(self) -> float: ...
    @property
    def method(self) -> str: ...
    @property
    def citation(self) -> str: ...

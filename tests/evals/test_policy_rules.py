"""The order of the labels: every rule, every boundary, no overlap and no hole."""

from dataclasses import replace
from itertools import product
from math import nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.evals.rules import NO_ALARM, Alarms, Limits, first_matching_label
from equipoise.evals.verdict import TaskLabel

M = 0.05


def limits(lower: float, upper: float, *, missing: tuple[float, float] | None = None) -> Limits:
    low, high = missing or (lower, upper)
    return Limits(lower=lower, upper=upper, missing_lower=low, missing_upper=high, nogo_upper=upper, margin=M)


def alarms(*, loss: bool = False, gain: bool = False, truncation: bool = False) -> Alarms:
    return Alarms(loss=loss, gain=gain, truncation=truncation, score_p=0.01, truncation_p=0.01)


QUIET, LOSS, GAIN, TRUNCATION = NO_ALARM, alarms(loss=True), alarms(gain=True), alarms(truncation=True)


@pytest.mark.parametrize(
    ("lower", "upper", "rung", "label"),
    [
        (-0.10, -0.06, QUIET, TaskLabel.DEGRADED),
        (-0.10, -0.06, LOSS, TaskLabel.DEGRADED),
        (-0.08, -0.02, LOSS, TaskLabel.SUSPECT),
        (-0.08, 0.02, TRUNCATION, TaskLabel.SUSPECT),
        (-0.08, -0.02, QUIET, TaskLabel.INCONCLUSIVE),
        (-0.08, 0.09, GAIN, TaskLabel.INCONCLUSIVE),
        (-0.04, -0.01, LOSS, TaskLabel.DETECTED_WITHIN_MARGIN),
        (-0.01, 0.01, TRUNCATION, TaskLabel.DETECTED_WITHIN_MARGIN),
        (-0.04, 0.04, QUIET, TaskLabel.EQUIVALENT),
        (-0.04, 0.06, QUIET, TaskLabel.NON_INFERIOR),
        (0.01, 0.04, GAIN, TaskLabel.NON_INFERIOR),
        # on the boundaries: a bound that touches a margin never counts as beyond it
        (-M, 0.0, QUIET, TaskLabel.INCONCLUSIVE),
        (-M, 0.0, LOSS, TaskLabel.SUSPECT),
        (-M, M, QUIET, TaskLabel.INCONCLUSIVE),
        (-0.04, M, QUIET, TaskLabel.NON_INFERIOR),
        (-0.10, -M, QUIET, TaskLabel.INCONCLUSIVE),
        (-0.10, -M, LOSS, TaskLabel.SUSPECT),
        (-M, -M, QUIET, TaskLabel.INCONCLUSIVE),
        # what is undefined passes nothing
        (nan, nan, QUIET, TaskLabel.INCONCLUSIVE),
    ],
)
def test_first_rule_that_matches_wins(lower: float, upper: float, rung: Alarms, label: TaskLabel) -> None:
    assert first_matching_label(limits(lower, upper), rung) is label


def test_invalid_wins_over_everything() -> None:
    for rung, (lower, upper) in product(
        (QUIET, LOSS, GAIN, TRUNCATION), ((-0.1, -0.06), (-0.08, 0.0), (-0.01, 0.01))
    ):
        assert first_matching_label(limits(lower, upper), rung, invalid=True) is TaskLabel.INVALID


def test_a_margin_that_the_baseline_itself_misses_is_inconclusive_but_no_excuse() -> None:
    def label(lower: float, upper: float, rung: Alarms) -> TaskLabel:
        return first_matching_label(limits(lower, upper), rung, noise_attains_margin=False)

    assert label(-0.01, 0.01, QUIET) is TaskLabel.INCONCLUSIVE
    assert label(-0.01, 0.01, LOSS) is TaskLabel.INCONCLUSIVE
    assert label(-0.08, -0.02, LOSS) is TaskLabel.SUSPECT
    assert label(-0.10, -0.06, QUIET) is TaskLabel.DEGRADED


def test_missing_answers_must_not_be_able_to_change_a_pass() -> None:
    assert first_matching_label(limits(-0.04, 0.0, missing=(-0.06, 0.01)), QUIET) is TaskLabel.INCONCLUSIVE
    assert first_matching_label(limits(-0.04, 0.0, missing=(-0.06, 0.01)), LOSS) is TaskLabel.SUSPECT
    assert first_matching_label(limits(-0.04, 0.04, missing=(-0.045, 0.06)), QUIET) is TaskLabel.NON_INFERIOR
    assert first_matching_label(limits(-0.04, 0.04, missing=(-0.045, 0.045)), QUIET) is TaskLabel.EQUIVALENT


bound = st.floats(-0.2, 0.2) | st.sampled_from([-M, M])


@settings(max_examples=400, deadline=None)
@given(bound, bound, st.booleans(), st.sampled_from([QUIET, LOSS, GAIN, TRUNCATION]), st.booleans())
def test_labels_exclude_each_other_and_leave_no_hole(
    one: float, other: float, invalid: bool, rung: Alarms, attains: bool
) -> None:
    low, high = sorted((one, other))
    alarmed = rung.loss or rung.truncation
    # Each label's own condition, written out in full; exactly one must hold.
    valid, degraded, undecided = not invalid, high < -M, low <= -M
    conditions = {
        TaskLabel.INVALID: invalid,
        TaskLabel.DEGRADED: valid and degraded,
        TaskLabel.SUSPECT: valid and not degraded and undecided and alarmed,
        TaskLabel.INCONCLUSIVE: valid and not degraded and (not alarmed if undecided else not attains),
        TaskLabel.DETECTED_WITHIN_MARGIN: valid and not undecided and attains and alarmed,
        TaskLabel.EQUIVALENT: valid
        and not undecided
        and attains
        and not alarmed
        and high < M
        and not rung.gain,
        TaskLabel.NON_INFERIOR: valid
        and not undecided
        and attains
        and not alarmed
        and (high >= M or rung.gain),
    }
    true = [label for label, holds in conditions.items() if holds]
    assert len(true) == 1
    got = first_matching_label(limits(low, high), rung, invalid=invalid, noise_attains_margin=attains)
    assert got is true[0]


def test_degraded_is_decided_at_the_level_that_looks_have_left() -> None:
    spent = Limits(
        lower=-0.1, upper=-0.055, missing_lower=-0.1, missing_upper=-0.055, nogo_upper=-0.045, margin=M
    )
    assert first_matching_label(spent, NO_ALARM) is TaskLabel.INCONCLUSIVE
    assert first_matching_label(replace(spent, nogo_upper=-0.055), NO_ALARM) is TaskLabel.DEGRADED

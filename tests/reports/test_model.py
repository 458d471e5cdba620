"""A report holds plain values, and refuses to say what it must not."""

import dataclasses

import numpy as np
import pytest

from equipoise.reports.model import Excerpt, Interval, Missing, Run, TaskRow


def test_nan_and_infinity_become_null_with_a_reason():
    interval = Interval(lo=float("nan"), hi=float("-inf"))
    assert (interval.lo, interval.hi) == (None, None)
    assert interval.undefined == {"lo": "not a number", "hi": "infinite"}


def test_the_callers_reason_for_a_nan_is_kept():
    interval = Interval(lo=float("nan"), hi=0.1, undefined={"lo": "no discordant pairs"})
    assert interval.undefined == {"lo": "no discordant pairs"}


def test_a_number_that_must_exist_is_not_allowed_to_be_nan():
    with pytest.raises(ValueError, match=r"Interval\.level is nan"):
        Interval(lo=0.0, hi=0.1, level=float("nan"))


def test_numpy_scalars_become_plain_numbers():
    row = Missing(arm="B", planned=np.int64(3), missing=np.int32(0))
    assert type(row.planned) is int
    assert type(Interval(lo=np.float64(0.1), hi=np.float32(0.5)).hi) is float


def test_an_object_that_is_not_plain_is_refused_by_name():
    with pytest.raises(TypeError, match=r"Missing\.arm is a builtins\.bytes"):
        Missing(arm=b"B", planned=1, missing=0)


def test_lone_surrogates_do_not_enter_a_report():
    assert Excerpt.of("a\ud800b").text == "a\ufffdb"


def test_an_excerpt_keeps_the_length_of_what_was_cut():
    excerpt = Excerpt.of("x" * 5_000_000)
    assert len(excerpt.text) == 4_000
    assert excerpt.chars == 5_000_000


@pytest.mark.parametrize("state", ["incomplete", "no verdict"])
@pytest.mark.parametrize("claim", [{"verdict": "SIGNED OFF"}, {"exit_code": 0}, {"indistinguishable": True}])
def test_a_run_that_is_not_final_cannot_claim_anything(samples, state, claim):
    values = {"verdict": None, "exit_code": 4} | claim
    with pytest.raises(ValueError, match="has no verdict"):
        samples.run(state, headline="x", **values)


@pytest.mark.parametrize(("verdict", "wrong"), [("SIGNED OFF", 1), ("DEGRADED", 0), ("INVALID", 3)])
def test_the_exit_code_must_be_that_of_the_verdict(samples, verdict, wrong):
    with pytest.raises(ValueError, match="exits"):
        samples.run("final", verdict, wrong, "x")


def test_unknown_verdicts_are_refused(samples):
    with pytest.raises(ValueError, match="'PASSED'"):
        samples.run("final", "PASSED", 0, "x")
    with pytest.raises(ValueError, match="'OK'"):
        samples.task("sort", 1, 1, "OK")


def test_a_run_that_is_not_final_shows_no_results(samples):
    rows = samples.signed_off().models[0]
    for model in (rows, dataclasses.replace(rows, verdict=None)):
        with pytest.raises(ValueError, match="'incomplete' shows no results, but kimi-tiny has some"):
            dataclasses.replace(samples.incomplete(), models=(model,))


def _without_noise_floor(model):
    return dataclasses.replace(model, noise_floor=None)


def _uncaught(model):
    controls = tuple(dataclasses.replace(c, caught=False) for c in model.controls)
    return dataclasses.replace(model, controls=controls)


def _suspect_task(model):
    tasks = (dataclasses.replace(model.tasks[0], verdict="NON-INFERIOR"), *model.tasks[1:])
    return dataclasses.replace(model, tasks=tasks)


def _pooled_non_inferior(model):
    return dataclasses.replace(model, pooled=dataclasses.replace(model.pooled, verdict="NON-INFERIOR"))


@pytest.mark.parametrize("spoil", [_without_noise_floor, _uncaught, _suspect_task, _pooled_non_inferior])
def test_indistinguishable_is_refused_unless_the_rows_carry_it(samples, spoil):
    good = samples.signed_off()
    with pytest.raises(ValueError, match="cannot say indistinguishable: glm-tiny"):
        dataclasses.replace(good, models=(good.models[0], spoil(good.models[1])))


def test_a_blind_supporting_task_does_not_forbid_indistinguishable(samples):
    assert any(row.blind and not row.critical for row in samples.signed_off().models[0].tasks)
    assert samples.signed_off().run.indistinguishable


def test_parts_are_frozen_and_slotted(samples):
    for kind in (Run, TaskRow, Interval):
        assert "__slots__" in vars(kind)
    with pytest.raises(dataclasses.FrozenInstanceError):
        samples.signed_off().run.verdict = "DEGRADED"

"""What pairs, what is refused and what is counted; nothing is dropped in silence."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.evals.errors import ParityError
from equipoise.evals.interop.pairing import PairedResults, pair_results
from equipoise.evals.interop.result_set import ItemResult, TaskResults
from equipoise.evals.types import ScoreStatus


def item(name: str, score: float | None = 1.0, **more) -> ItemResult:
    status = ScoreStatus.SCORED if score is not None else ScoreStatus.ERRORED
    return ItemResult(**({"item_id": name, "score": score, "status": status} | more))


def results(items: Iterable[ItemResult], **more) -> TaskResults:
    return TaskResults(**({"task": "t", "metric": "m", "items": tuple(items)} | more))


def pair(one: TaskResults, other: TaskResults, **more) -> PairedResults:
    return pair_results(
        one, other, model="m", task="t", baseline_arm="baseline", candidate_arm="candidate", **more
    )


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ([], [item("a")], "no item id is in both sets"),
        ([item("a")], [], "no item id is in both sets"),
        ([item("a")], [item("b")], "no item id is in both sets .*such as 'a'.* such as 'b'"),
        ([item("a"), item("a", 0.0)], [item("a")], "baseline: item 'a' is there twice"),
        ([item("a", float("nan"))], [item("a")], r"item 'a': score nan is not in \[0, 1\]"),
        ([item("a", 2.0)], [item("a")], r"score 2\.0 is not in \[0, 1\]"),
        (
            [item("a", content_hash="x")],
            [item("a", content_hash="y")],
            r"\['x'\] in baseline, \['y'\] in cand",
        ),
        (
            [item("a", content_hash="x"), item("a", repeat=1, content_hash="y")],
            [item("a")],
            "another question under the same id",
        ),
        ([item("a", cluster_id="p"), item("b")], [item("a"), item("b")], "item 'b' has the cluster ids None"),
        ([item("a", cluster_id="p")], [item("a", cluster_id="q")], "the cluster ids p, q"),
    ],
)
def test_what_cannot_pair_is_refused_by_name(one: list, other: list, said: str) -> None:
    with pytest.raises(ParityError, match=said):
        pair(results(one, hash_kind="k"), results(other, hash_kind="k"))


def test_another_metric_is_refused() -> None:
    with pytest.raises(ParityError, match="scored by 'acc', candidate by 'acc_norm'"):
        pair(results([item("a")], metric="acc"), results([item("a")], metric="acc_norm"))


def test_hashes_of_different_kinds_are_not_compared() -> None:
    one = results([item("a", content_hash="x")], hash_kind="lm-eval")
    other = results([item("a", content_hash="y")], hash_kind="inspect", metric="other")
    assert pair(one, other).hash_checked == 0


def test_every_item_is_paired_or_counted() -> None:
    one = results([item("a"), item("b", None, reason="timeout"), item("c"), item("d"), item("e", 0.0)])
    other = results([item("a", 0.0), item("b"), item("c", None), item("e", None), item("f")])
    table = pair(one, other).table
    assert table.item_ids == ("a",)
    assert table.excluded == {
        "errored in baseline (timeout)": 1,
        "errored in candidate": 2,
        "not in candidate": 1,
        "not in baseline": 1,
    }
    assert (table.n_planned, table.missing_baseline, table.missing_candidate) == (6, 2, 3)
    assert sorted(table.unpaired_baseline.tolist()) == [0.0, 1.0, 1.0]
    assert table.unpaired_candidate.tolist() == [1.0, 1.0]


def test_common_items_alone_leave_the_others_out_of_the_plan_and_say_so() -> None:
    one = results([item("a"), item("b"), item("c", None)], planned_ids=("a", "b", "c", "z"))
    other = results([item("a"), item("c"), item("d")])
    paired = pair(one, other, common_only=True)
    assert paired.outside == {"only in baseline": 1, "only in candidate": 1}
    assert paired.table.n_planned == 2
    assert paired.table.excluded == {"errored in baseline": 1}


def test_items_that_were_planned_and_never_asked_are_missing() -> None:
    one = results([item("a")], planned_ids=("a", "b"))
    table = pair(one, results([item("a")])).table
    assert table.excluded == {"not in baseline and not in candidate": 1}


def test_sets_with_other_numbers_of_repeats_pair_by_item() -> None:
    one = results([item("a"), item("a", 0.0, repeat=1), item("b"), item("b", repeat=1)])
    table = pair(one, results([item("a"), item("b", 0.0)])).table
    assert (table.baseline.shape, table.candidate.shape) == ((2, 2), (2, 1))


def test_an_item_that_lacks_a_repeat_is_missing_not_shorter() -> None:
    one = results([item("a"), item("a", repeat=1), item("b")])
    table = pair(one, results([item("a"), item("b")])).table
    assert table.excluded == {"1 of 2 repeats in baseline": 1}
    planned = results([item("a"), item("b")], planned_repeats=2)
    assert pair(planned, results([item("a"), item("b")])).table.n == 0


def test_truncated_answers_are_wrong_whatever_the_tool_scored() -> None:
    cut = item("a", 1.0, status=ScoreStatus.TRUNCATED)
    paired = pair(results([cut, item("b")]), results([item("a"), item("b")]))
    assert paired.table.baseline[:, 0].tolist() == [0.0, 1.0]
    assert paired.table.baseline_truncated[:, 0].tolist() == [True, False]
    assert paired.truncated_scored_right == (1, 0)


def test_a_cluster_named_in_one_set_holds_for_both() -> None:
    one = results([item("a", cluster_id="p"), item("b", cluster_id="p")])
    assert pair(one, results([item("a"), item("b")])).table.cluster_ids == ("p", "p")


SCORES = st.dictionaries(
    st.sampled_from("abcdefgh"), st.sampled_from([0.0, 0.5, 1.0, None]), min_size=1, max_size=8
)


@given(SCORES, SCORES)
def test_counts_always_add_up(one: dict, other: dict) -> None:
    if not one.keys() & other.keys():
        return
    paired = pair(results(item(k, v) for k, v in one.items()), results(item(k, v) for k, v in other.items()))
    table = paired.table
    both = {k for k in one if k in other and one[k] is not None and other[k] is not None}
    assert set(table.item_ids) == both
    assert table.n + sum(table.excluded.values()) == table.n_planned == len(one.keys() | other.keys())
    assert table.missing_baseline == table.n_planned - sum(v is not None for v in one.values())
    assert np.array_equal(table.baseline[:, 0], [one[k] for k in table.item_ids])
    assert np.array_equal(table.candidate[:, 0], [other[k] for k in table.item_ids])
    alone = sorted(v for k, v in one.items() if v is not None and k not in both)
    assert sorted(table.unpaired_baseline.tolist()) == alone

"""`equipoise compare` from end to end: exit codes, words, protections, every format."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from cli_runs import cli, error_of, plan_file, record_run, replay_arms
from click.testing import Result

from equipoise.reports import json as json_report
from equipoise.reports.model import Report

N = 400


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def table(path: Path, scores: Sequence[float | str], **columns: Sequence[object]) -> Path:
    with path.open("w", newline="") as f:
        writer = csv.writer(f)
        names = columns.pop("item_name", range(len(scores)))
        writer.writerow(["item", "score", *columns])
        writer.writerows(zip(names, scores, *columns.values(), strict=True))
    return path


def right(n: int, wrong: range) -> list[int]:
    return [int(i not in wrong) for i in range(n)]


def report(result: Result) -> Report:
    return json_report.load(result.stdout)


@pytest.mark.parametrize(
    ("wrong", "code", "word"),
    [(range(40, 81), 0, "GATES PASSED"), (range(40, 120), 1, "DEGRADED"), (range(40, 90), 3, "INCONCLUSIVE")],
)
def test_the_gates_alone_decide_the_exit_code(tmp_path: Path, wrong: range, code: int, word: str) -> None:
    a, b = table(tmp_path / "a.csv", right(N, range(40, 80))), table(tmp_path / "b.csv", right(N, wrong))
    result = cli("compare", a, b, "--margin", ".02", "--json")
    assert result.exit_code == code
    run = report(result).run
    assert (run.verdict, run.exit_code, run.kind, run.eligible_for_sign_off) == (
        word,
        code,
        "comparison",
        False,
    )
    shown = cli("compare", a, b, "--margin", ".02")
    assert shown.exit_code == code
    assert shown.stdout.count(f"{word}   exit code {code}") == 2


@pytest.mark.parametrize("form", ["terminal", "markdown", "json"])
def test_even_two_equal_sets_are_never_signed_off_nor_called_the_same(tmp_path: Path, form: str) -> None:
    sets = [table(tmp_path / f"{name}.csv", right(4000, range(40))) for name in ("a", "b", "a2")]
    control = table(tmp_path / "p.csv", right(4000, range(1000)))
    more = ["--baseline-repeat", sets[2], "--control", control]
    for extra in ([], more):
        result = cli("compare", *sets[:2], "--format", form, *extra)
        assert result.exit_code == 0
        text = (result.stdout + result.stderr).lower()
        assert "gates passed" in text
        assert "indistinguishable" not in text
        assert "signed off" not in text
        assert "not eligible for sign-off" in text or '"eligible_for_sign_off": false' in text


def test_the_report_names_the_protections_that_existing_results_lack(tmp_path: Path) -> None:
    a, b = table(tmp_path / "a.csv", right(N, range(40))), table(tmp_path / "b.csv", right(N, range(40)))
    limits = " ".join(report(cli("compare", a, b, "--json")).run.limits)
    for said in (
        "nothing was registered before the results existed",
        "task margin 0.02 (the default, not chosen for this case",
        "no A/A noise floor",
        "no planted control",
        "no parity",
        "400 of 400 pairs rest on the item id alone",
        "whether answers were truncated is not recorded (baseline, candidate)",
    ):
        assert said in limits
    given = report(cli("compare", a, b, "--json", "--margin", ".03", "--suite-margin", ".01")).run
    assert "task margin 0.03 (as given), pooled margin 0.01" in " ".join(given.limits)
    assert given.suite_margin == 0.01


def test_truncation_is_undefined_where_it_is_not_recorded(tmp_path: Path) -> None:
    a, b = table(tmp_path / "a.csv", right(N, range(40))), table(tmp_path / "b.csv", right(N, range(40)))
    (model,) = report(cli("compare", a, b, "--json")).models
    (row,) = model.tasks
    assert (row.truncation_baseline, row.p_truncation_alarm) == (None, None)
    assert "not recorded" in row.undefined["truncation"]
    ends = ["length" if i == 50 else "stop" for i in range(N)]
    c = table(tmp_path / "c.csv", right(N, range(40)), finish_reason=ends)
    d = table(tmp_path / "d.csv", right(N, range(40)), finish_reason=["stop"] * N)
    (model,) = report(cli("compare", c, d, "--json")).models
    assert model.tasks[0].truncation_baseline == 1 / N
    assert (model.tasks[0].lost, model.tasks[0].gained) == (0, 1)


def test_a_baseline_asked_twice_and_a_control_count_as_in_a_run(tmp_path: Path) -> None:
    a, b = table(tmp_path / "a.csv", right(N, range(40))), table(tmp_path / "b.csv", right(N, range(38)))
    same, bad = (
        table(tmp_path / "a2.csv", right(N, range(41))),
        table(tmp_path / "p.csv", right(N, range(120))),
    )
    margin = ("--margin", ".05", "--json")
    (model,) = report(cli("compare", a, b, "--baseline-repeat", same, "--control", bad, *margin)).models
    assert model.noise_floor is not None
    assert (model.noise_floor.lost, model.noise_floor.gained, model.noise_floor.passed) == (1, 0, True)
    (control,) = model.controls
    assert (control.caught, control.required, control.task_verdicts) == (
        True,
        True,
        {"all items": "DEGRADED"},
    )
    missed = cli("compare", a, b, "--control", same, *margin)
    assert missed.exit_code == 4
    assert any("the gross control was not caught" in r for r in report(missed).run.reasons)
    shaky = table(tmp_path / "a3.csv", right(N, range(0)))
    noisy = cli("compare", a, b, "--baseline-repeat", shaky, *margin)
    assert noisy.exit_code == 4
    assert any("the baseline differs from itself" in r for r in report(noisy).run.reasons)


def test_too_many_missing_answers_are_invalid_and_never_dropped(tmp_path: Path) -> None:
    a = table(tmp_path / "a.csv", right(N, range(40)))
    b = table(tmp_path / "b.csv", [*right(N, range(40))[:-20], *[""] * 20])
    result = cli("compare", a, b, "--margin", ".05", "--json")
    assert result.exit_code == 4
    (model,) = report(result).models
    assert [(m.arm, m.planned, m.missing) for m in model.missing] == [
        ("baseline", N, 0),
        ("candidate", N, 20),
    ]
    assert [(e.reason, e.count) for e in model.exclusions] == [("errored in candidate (no score)", 20)]
    lenient = cli("compare", a, b, "--margin", ".05", "--max-missing", ".1", "--json")
    assert lenient.exit_code in (3, 4)  # the worst case of the missing answers, and arms that miss unequally


def test_items_of_one_set_alone_are_missing_or_left_out_on_request(tmp_path: Path) -> None:
    a, b = (
        table(tmp_path / "a.csv", right(2000, range(40))),
        table(tmp_path / "b.csv", right(1900, range(40))),
    )
    whole = cli("compare", a, b, "--json")
    assert whole.exit_code == 4
    common = cli("compare", a, b, "--common", "--json")
    assert common.exit_code == 0
    (model,) = report(common).models
    assert [(e.reason, e.count) for e in model.exclusions] == [("only in baseline (--common)", 100)]


def test_one_file_of_both_is_compared_by_row(tmp_path: Path) -> None:
    rows = [{"text": f"q{i}", "old": {"ok": i >= 40}, "new": {"ok": i >= 38}} for i in range(N)]
    path = tmp_path / "wide.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--margin", ".03", "--json")
    by_row = cli("compare", path, "--baseline-column", "old.ok", "--candidate-column", "new.ok", *options)
    (model,) = report(by_row).models
    assert (model.tasks[0].n, model.tasks[0].lost, model.tasks[0].gained) == (N, 0, 2)
    by_id = cli("compare", f"{path}:old.ok", f"{path}:new.ok", "--item-column", "text", *options)
    assert report(by_id).models[0].tasks[0].delta == model.tasks[0].delta


@pytest.mark.parametrize(
    ("scores", "columns", "method"),
    [
        ("binary", {}, "Tango"),
        ("graded", {}, "bootstrap-t"),
        ("binary", {"cluster_id": [i // 4 for i in range(N)]}, "cluster"),
    ],
)
def test_the_shape_of_the_scores_decides_the_method(
    tmp_path: Path, scores: str, columns: dict, method: str
) -> None:
    rng = np.random.default_rng(5)
    draw = (lambda: rng.random(N) < 0.8) if scores == "binary" else (lambda: rng.random(N).round(2))
    base = draw().astype(float)
    a = table(tmp_path / "a.csv", base.tolist(), **columns)
    b = table(
        tmp_path / "b.csv", np.where(rng.random(N) < 0.9, base, draw()).astype(float).tolist(), **columns
    )
    (model,) = report(cli("compare", a, b, "--margin", ".05", "--json")).models
    interval = model.tasks[0].interval
    assert interval is not None
    assert method.lower() in interval.method.lower()


def test_repeats_of_both_sets_are_averaged_by_item(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    ids = np.repeat(np.arange(150), 4)
    columns = {"repeat": np.tile(np.arange(4), 150).tolist(), "item_name": ids.tolist()}
    scores = [(rng.random(600) < 0.7).astype(int).tolist() for _ in range(2)]
    a, b = (table(tmp_path / f"{n}.csv", s, **columns) for n, s in zip("ab", scores, strict=True))
    (model,) = report(cli("compare", a, b, "--margin", ".1", "--json")).models
    row = model.tasks[0]
    assert (row.n, row.repeats) == (150, 4)
    assert row.delta == pytest.approx((sum(scores[1]) - sum(scores[0])) / 600)
    one = table(tmp_path / "one.csv", [1] * 150)
    assert report(cli("compare", a, one, "--margin", ".1", "--json")).models[0].tasks[0].n == 150


def test_lm_eval_logs_are_compared(lm_eval_logs: Path) -> None:
    sets = (lm_eval_logs / "baseline", lm_eval_logs / "candidate")
    result = cli("compare", *sets, "--task", "s*s", "--max-missing", ".2", "--margin", ".4", "--json")
    got = report(result)
    (model,) = got.models
    assert [(t.task, t.n, t.lost, t.gained) for t in model.tasks] == [("signs", 40, 1, 0), ("sums", 39, 4, 1)]
    assert model.name == "org/candidate against org/baseline"
    assert model.flips is not None
    flip = next(f for f in model.flips.shown if (f.task, f.item_id) == ("sums", "8"))
    assert (flip.target.text, flip.baseline.text, flip.candidate.text) == ("9", "9", "it is 9")  # type: ignore[union-attr]
    assert "Q: 8 + 1" in flip.prompt.text
    assert any("does not log why a generation ended" in limit for limit in got.run.limits)
    refused = cli("compare", lm_eval_logs / "baseline", lm_eval_logs / "prompt", "--task", "sums")
    assert "another question under the same id" in error_of(refused, code=4)
    other = cli("compare", lm_eval_logs / "baseline", lm_eval_logs / "prompt")
    assert "has the tasks signs, sums, the candidate" in error_of(other, code=2)


def test_inspect_logs_are_compared(inspect_logs: Path) -> None:
    sets = (inspect_logs / "baseline", inspect_logs / "candidate")
    options = ("--margin", ".3", "--max-missing", ".2", "--max-truncation", ".2")
    (model,) = report(cli("compare", *sets, *options, "--json")).models
    row = model.tasks[0]
    assert (row.task, row.n, row.repeats) == ("sums", 17, 2)
    assert row.delta == pytest.approx(-5 / 34)
    assert row.truncation_baseline == pytest.approx(4 / 34)
    assert sum(e.count for e in model.exclusions) == 3


def test_an_arm_of_a_run_compares_as_the_run_compared_it(tmp_path: Path) -> None:
    wrong = {"A1": 0.1, "A2": 0.1, "B": 0.15, "P": 0.6, "M": 0.3}
    record_run(
        tmp_path / "recorded",
        {"copy": 100, "sort": 100},
        lambda arm, task, i: (i * 37 % 100) / 100 >= wrong[arm] + 0.01 * (task == "sort"),
    )
    tasks = [{"name": n, "critical": True, "items": 100, "margin": 0.1} for n in ("copy", "sort")]
    arms = replay_arms(tmp_path / "recorded", ["A1", "A2", "B", "P"])
    run = cli("run", plan_file(tmp_path / "p.toml", arms, tasks), "--out", "out")
    assert run.exit_code in (0, 1, 3, 4), run.output
    theirs = json_report.load(Path("out/report.json").read_text()).models[0]
    options = ("--margin", ".1", "--suite-margin", ".05", "--json")
    ours = report(cli("compare", "out:A1", "out", *options)).models[0]
    for mine, original in zip(ours.tasks, theirs.tasks, strict=True):
        assert (mine.task, mine.n, mine.lost, mine.gained) == (
            original.task,
            original.n,
            original.lost,
            original.gained,
        )
        assert (mine.delta, mine.interval) == (original.delta, original.interval)
    assert ours.pooled is not None
    assert theirs.pooled is not None
    assert ours.pooled.interval == theirs.pooled.interval
    whole = ("--baseline-repeat", "out:A2", "--control", "out:P")
    also = report(cli("compare", "out:A1", "out:B", *whole, *options))
    assert also.models[0].noise_floor == theirs.noise_floor
    assert also.models[0].controls[0].task_deltas == theirs.controls[0].task_deltas
    assert not any("pairs rest on the item id alone" in limit for limit in also.run.limits)
    assert "out has no arm 'C'; there are out:A1 (baseline)" in error_of(
        cli("compare", "out:A1", "out:C"), code=2
    )
    for one, other in (("out:B", "out:B"), ("out", "out:B"), ("out/journal.sqlite:B", "out")):
        assert "compared with itself always passes" in error_of(cli("compare", one, other), code=2)


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["a.csv"], 2, "needs two result sets"),
        (["a.csv", "none.csv"], 2, "none.csv: no such file or directory"),
        (["a.csv", "a.csv"], 2, "a.csv is both the baseline and the candidate: a set compared with itself"),
        (["a.csv", "./a.csv"], 2, "a.csv and ./a.csv are one set, both the baseline and the candidate"),
        (["a.csv", "link.csv"], 2, "always passes"),
        (["a.csv", "a.csv:score"], 2, "always passes"),
        (["a.csv", "b.csv", "--control", "./b.csv"], 2, "both the candidate and the control"),
        (["a.csv", "b.csv", "--score-column", "x"], 2, "no score column 'x'; there are item, score"),
        (["a.csv", "b.csv", "--baseline-column", "x"], 2, "go together"),
        (["a.csv", "b.csv", "--task", "gsm8k"], 2, "a.csv has no task 'gsm8k'; there are one without a name"),
        (["a.csv", "twice.csv"], 4, "item '3' is there twice"),
        (["a.csv", "other.csv"], 4, "no item id is in both sets"),
        (["a.csv", "b.csv", "--input-format", "inspect"], 2, "a.csv"),
        (["a.csv", "b.csv", "--output", "no/such/folder/r.md"], 2, "cannot be written"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_remedy(
    tmp_path: Path, args: list[str], code: int, said: str
) -> None:
    for name, names in (
        ("a", range(9)),
        ("b", range(9)),
        ("twice", [0, 1, 2, 3, 3, 5, 6, 7, 8]),
        ("other", range(20, 29)),
    ):
        table(tmp_path / f"{name}.csv", [1] * 9, item_name=list(names))
    (tmp_path / "link.csv").symlink_to(tmp_path / "a.csv")
    assert said in error_of(cli("compare", *args), code=code)


@pytest.mark.parametrize("margin", ["0", "1", "-.1", "nan", "much"])
def test_a_margin_that_is_none_is_refused(tmp_path: Path, margin: str) -> None:
    a = table(tmp_path / "a.csv", [1])
    result = cli("compare", a, a, f"--margin={margin}")
    assert result.exit_code == 2
    assert "give a margin" in result.stderr


@pytest.mark.parametrize(("option", "value"), [("--seed", "-1"), ("--alpha", "1e-300"), ("--alpha", "nan")])
def test_numbers_that_no_test_can_use_are_refused_by_their_option(
    tmp_path: Path, option: str, value: str
) -> None:
    a, b = table(tmp_path / "a.csv", [1]), table(tmp_path / "b.csv", [1])
    result = cli("compare", a, b, option, value)
    assert result.exit_code == 2
    assert f"'{option}'" in result.stderr


def test_a_report_can_be_written_to_a_file(tmp_path: Path) -> None:
    a, b = table(tmp_path / "a.csv", right(N, range(9))), table(tmp_path / "b.csv", right(N, range(9)))
    result = cli("compare", a, b, "--margin", ".05", "--format", "markdown", "--output", "r.md")
    assert (result.exit_code, result.stdout) == (0, "")
    assert Path("r.md").read_text().startswith("# ")


def test_one_item_is_a_comparison_that_says_nothing(tmp_path: Path) -> None:
    a, b = table(tmp_path / "a.csv", [1]), table(tmp_path / "b.csv", [1])
    assert cli("compare", a, b).exit_code == 3

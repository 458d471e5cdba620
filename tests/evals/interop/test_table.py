"""Plain tables: columns, nested paths, JSON documents, and rows that are wrong."""

import json
from pathlib import Path

import pytest

from equipoise.evals.errors import UsageError
from equipoise.evals.interop.columns import ABSENT, find
from equipoise.evals.interop.result_set import ReadOptions, ResultSet, short_id
from equipoise.evals.interop.scores import ScoreError, to_score
from equipoise.evals.interop.table import read_table
from equipoise.evals.types import ScoreStatus

OPTIONS = ReadOptions()


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def only(results: ResultSet):
    (task,) = results.tasks.values()
    return task


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "item,score\na,1\nb,0\nc,0.5\n"),
        ("t.csv", "\ufeffitem,score\r\na,true\r\n\r\nb,false\r\nc,.5\r\n"),
        ("t.tsv", "item\tscore\na\tCorrect\nb\tincorrect\nc\t0.5\n"),
        (
            "t.jsonl",
            '{"item": "a", "score": true}\n\n{"item": "b", "score": 0}\n{"item": "c", "score": 0.5}\n',
        ),
        ("t.json", '[{"item": "a", "score": 1}, {"item": "b", "score": false}, {"item": "c", "score": 0.5}]'),
        ("t.json", '{"a": {"score": 1}, "b": {"score": 0}, "c": {"score": 0.5}}'),
        ("t.json", '{"a": 1, "b": 0, "c": 0.5}'),
    ],
)
def test_the_same_scores_are_read_from_every_kind_of_table(tmp_path: Path, name: str, text: str) -> None:
    items = only(read_table(write(tmp_path / name, text), OPTIONS)).items
    assert [(i.item_id, i.score) for i in items] == [("a", 1.0), ("b", 0.0), ("c", 0.5)]


def test_what_follows_the_colon_is_a_column_or_a_part_of_a_document(tmp_path: Path) -> None:
    rows = write(tmp_path / "wide.csv", "id,m1,m2\na,1,0\nb,0,0\n")
    assert [i.score for i in only(read_table(rows, OPTIONS, "m1")).items] == [1.0, 0.0]
    document = write(
        tmp_path / "d.json", json.dumps({"model-2.5": {"a": {"x": {"y": 1}}}, "other": {"a": {}}})
    )
    options = ReadOptions(score_column="x.y")
    assert [i.score for i in only(read_table(document, options, "model-2.5")).items] == [1.0]


def test_right_can_be_one_value_of_a_column(tmp_path: Path) -> None:
    text = '{"id": 1, "finish": "tool_calls"}\n{"id": 2, "finish": "stop"}\n{"id": 3, "finish": null}\n'
    options = ReadOptions(score_column="finish", score_is="tool_calls")
    items = only(read_table(write(tmp_path / "t.jsonl", text), options)).items
    assert [i.score for i in items] == [1.0, 0.0, None]


def test_tasks_repeats_clusters_and_hashes_come_from_their_columns(tmp_path: Path) -> None:
    text = "id,score,task,repeat,cluster_id,content_hash\na,1,t,0,p,h1\na,0,t,1,p,h1\nb,1,u,0,q,h2\n"
    read = read_table(write(tmp_path / "t.csv", text), OPTIONS)
    assert list(read.tasks) == ["t", "u"]
    assert [(i.repeat, i.cluster_id, i.content_hash) for i in read.tasks["t"].items] == [
        (0, "p", "h1"),
        (1, "p", "h1"),
    ]
    assert list(read_table(tmp_path / "t.csv", ReadOptions(tasks=("u",))).tasks) == ["u"]


def test_errors_cut_answers_and_empty_answers_are_told_apart_where_columns_say_so(tmp_path: Path) -> None:
    text = (
        "id,score,error,finish_reason,response\n"
        "a,0,timeout,stop,\nb,1,,length,x\nc,0,,stop,\nd,0,,stop,wrong\ne,,,stop,x\nf,nan,,stop,x\n"
    )
    items = only(read_table(write(tmp_path / "t.csv", text), OPTIONS)).items
    assert [(i.status, i.score, i.reason) for i in items] == [
        (ScoreStatus.ERRORED, None, "error column is set"),
        (ScoreStatus.TRUNCATED, 1.0, ""),
        (ScoreStatus.ERRORED, None, "empty answer"),
        (ScoreStatus.SCORED, 0.0, ""),
        (ScoreStatus.ERRORED, None, "no score"),
        (ScoreStatus.ERRORED, None, "no score"),
    ]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.csv", "", "no rows"),
        ("t.csv", "item,score\n", "no rows"),
        (
            "t.csv",
            "item,points\na,1\n",
            "no score column; there are item, points; name it with --score-column",
        ),
        ("t.csv", "name,score\na,1\n", "no item column; there are name, score; name it with --item-column"),
        ("t.csv", "item,score\na,1\n,0\n", r"t\.csv:3: no item id"),
        ("t.csv", "item,score\na,1,2\n", r"t\.csv:2: 3 cells, but the header has 2"),
        ("t.csv", "item,score,score\na,1,2\n", "column 'score' is there twice"),
        ("t.csv", 'item,score\n"a,1\n', "not valid CSV"),
        ("t.csv", "item,score\na,85\n", r"item 'a', column 'score': 85\.0 is not in \[0, 1\]"),
        ("t.csv", "item,score\na,-0.5\n", r"-0\.5 is not in \[0, 1\]"),
        ("t.csv", "item,score\na,inf\n", r"inf is not in \[0, 1\]"),
        ("t.csv", "item,score\na,B\n", r"'B' is not a score; .*--score-is"),
        ("t.csv", "item,score,repeat\na,1,first\n", "repeat 'first' is not a whole number"),
        ("t.csv", "item,score,cluster_id\na,1,p\nb,0,\n", r"t\.csv:3: no cluster id"),
        ("t.jsonl", '{"item": "a", "score": 1}\n{"item": "b", "sc', r"t\.jsonl:2 is not valid JSON"),
        ("t.jsonl", "[1, 2]\n", "is list, not a JSON object"),
        ("t.jsonl", '{"item": [1], "score": 1}\n', "the item id .* is list"),
        ("t.jsonl", '{"item": "a", "score": [1]}\n', "a list is not a score"),
        ("t.json", '{"rows": [{"item": "a"}], "more": []}', r"several lists; name one: .*t\.json:rows"),
        ("t.json", "3", "neither a list of rows nor an object"),
        ("t.json", "[" * 100_000, "not valid JSON"),
    ],
)
def test_a_table_that_cannot_be_read_says_where_and_why(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        read_table(write(tmp_path / name, text), OPTIONS)


def test_text_that_is_not_utf8_is_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"item,score\n\xff\xfe,1\n")
    with pytest.raises(UsageError, match=r"t\.csv:2 is not UTF-8"):
        read_table(path, OPTIONS)


def test_a_path_may_have_dots_inside_its_keys() -> None:
    row = {"Qwen2.5-7B": {"strict": 1}, "a": {"b": {"c": 2}}, "a.b": {"d": 3}, "plain.key": 4}
    assert find(row, "Qwen2.5-7B.strict") == 1
    assert find(row, "a.b.c") == 2
    assert find(row, "a.b.d") == 3
    assert find(row, "plain.key") == 4
    assert find(row, "a.b.x") is ABSENT
    assert find(row, "plain.key.more") is ABSENT


def test_long_ids_stay_different() -> None:
    long = "question " * 100
    assert short_id(long + "a") != short_id(long + "b")
    assert len(short_id(long)) < 250
    assert short_id("x") == "x"


@pytest.mark.parametrize("value", [2, -1, float("inf"), "1e9", [], {}, object(), "maybe"])
def test_what_is_no_score_is_refused(value: object) -> None:
    with pytest.raises(ScoreError):
        to_score(value)


@pytest.mark.parametrize("value", [None, "", " ", "None", "NaN", "n/a", float("nan")])
def test_what_is_no_value_is_no_score_and_never_0(value: object) -> None:
    score, reason = to_score(value)
    assert score is None
    assert reason


def jsonl(path: Path, *rows: dict[str, object]) -> Path:
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


def test_what_only_later_rows_say_of_an_answer_counts_too(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "score": 1},
        {"id": "b", "score": 0, "error": "timeout"},
        {"id": "c", "score": 1, "finish_reason": "length", "content_hash": "f00"},
        {"id": "d", "score": 0, "response": ""},
        {"id": "e", "score": 0, "completion_tokens": 7},
    ]
    task = only(read_table(jsonl(tmp_path / "late.jsonl", *rows), OPTIONS))
    assert [i.status for i in task.items] == [
        ScoreStatus.SCORED,
        ScoreStatus.ERRORED,
        ScoreStatus.TRUNCATED,
        ScoreStatus.ERRORED,
        ScoreStatus.SCORED,
    ]
    assert task.items[1].score is None, "an error is never a wrong answer"
    assert (task.items[2].content_hash, task.items[4].completion_tokens) == ("f00", 7)
    assert task.truncation_known
    assert "error from column 'error'" in task.notes[0]
    assert "finish from column 'finish_reason'" in task.notes[0]


@pytest.mark.parametrize("column", ["task", "cluster_id", "repeat", "epoch"])
def test_a_column_that_says_which_answer_a_row_is_cannot_come_late(tmp_path: Path, column: str) -> None:
    file = jsonl(tmp_path / "late.jsonl", {"id": "a", "score": 1}, {"id": "b", "score": 1, column: 1})
    with pytest.raises(UsageError, match=rf"late\.jsonl:2: the \w+ column '{column}', which the rows before"):
        read_table(file, OPTIONS)


def test_a_finish_reason_in_the_servers_own_form_is_understood(tmp_path: Path) -> None:
    file = jsonl(
        tmp_path / "t.jsonl",
        {"id": "a", "score": 1, "finish_reason": {"type": "length", "length": 512}},
        {"id": "b", "score": 1, "finish_reason": {"type": "stop", "matched": 2}},
        {"id": "c", "score": 1, "finish_reason": ["length"]},
    )
    assert [(i.status, i.finish_reason) for i in only(read_table(file, OPTIONS)).items] == [
        (ScoreStatus.TRUNCATED, "length"),
        (ScoreStatus.SCORED, "stop"),
        (ScoreStatus.SCORED, ""),
    ]


def test_numbers_with_thousands_of_digits_are_no_numbers(tmp_path: Path) -> None:
    huge = "1" * 5000
    tokens = write(
        tmp_path / "tokens.csv", f"id,score,completion_tokens\na,1,{huge}\nb,1,{huge[:400]}\nc,1,12\n"
    )
    assert [i.completion_tokens for i in only(read_table(tokens, OPTIONS)).items] == [None, None, 12]
    with pytest.raises(UsageError, match="is not a whole number") as refused:
        read_table(write(tmp_path / "r.csv", f"id,score,repeat\na,1,{huge}\n"), OPTIONS)
    assert len(str(refused.value)) < 300

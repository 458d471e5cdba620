"""Knowledge, mathematics and reasoning in chats: their data's forms, their prompts, their graders."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hub_rows import serve_rows
from kimi_chat import count_tokens, encode, render, tokenizer

from equipoise.evals.errors import UsageError
from equipoise.evals.types import Task
from equipoise.tasks.aime import Aime
from equipoise.tasks.bbh import Bbh
from equipoise.tasks.chat import ChatTask
from equipoise.tasks.gpqa_diamond import GpqaDiamond
from equipoise.tasks.gsm8k import Gsm8k
from equipoise.tasks.math_500 import Math500
from equipoise.tasks.mgsm import Mgsm
from equipoise.tasks.mmlu_pro import MmluPro
from equipoise.tasks.mmlu_redux import SUBJECTS, MmluRedux
from equipoise.tasks.options import with_options
from equipoise.tasks.validate import validate_task

DATA = Path(os.environ.get("EQUIPOISE_DATA", ""))
LOCAL_SUBSETS = (
    "boolean_expressions",
    "causal_judgement",
    "date_understanding",
    "dyck_languages",
    "logical_deduction_three_objects",
    "multistep_arithmetic_two",
    "navigate",
    "object_counting",
    "reasoning_about_colored_objects",
    "sports_understanding",
    "tracking_shuffled_objects_three_objects",
    "web_of_lies",
    "word_sorting",
)
#: task, items, a known item and its content hash, which changes only with a new version
LOCAL = {
    "gsm8k": (Gsm8k(), 1319, "gsm8k-00000", "48cf9218dda1ae2e"),
    "mgsm": (Mgsm(), 2750, "mgsm-sw-00001", "85a00c2b01a78ac8"),
    "bbh": (Bbh(subsets=LOCAL_SUBSETS), 3187, "bbh-navigate-00003", "8534ad4746d7c058"),
}
MMLU_PRO = {
    "question_id": 70,
    "question": "Which is even?",
    "options": ["1", "3", "4 "],
    "answer": "C",
    "answer_index": 2,
    "category": "math",
    "src": "x",
    "cot_content": "",
}
REDUX = {"question": "Which is even?", "choices": ["1", "3", "5", "4"], "answer": 3, "error_type": "ok"}
GPQA = {
    "Record ID": "rec1",
    "Question": "How big?",
    "Correct Answer": "ten\n",
    "Incorrect Answer 1": "one",
    "Incorrect Answer 2": "two",
    "Incorrect Answer 3": "three",
    "High-level domain": "Physics",
}
GSM8K = {"question": "One and one?", "answer": "It is <<1+1=2>>2.\n#### 1,002"}
MATH_500 = {
    "problem": "Convert $(0,3)$.",
    "solution": "",
    "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
    "subject": "Precalculus",
    "level": 2,
    "unique_id": "test/precalculus/807.json",
}
AIME = {"problem_idx": 1, "problem": "Find it.", "answer": 33}
MGSM = {"question": "Wie viele?", "answer": None, "answer_number": 70000, "equation_solution": None}
BBH = {"input": "Is it so?\nOptions:\n- Yes\n- No", "target": "No"}
#: task, its rows on the hub, the id of the first row
HUB: dict[str, tuple[ChatTask, Mapping[str, Any], str]] = {
    "mmlu_pro": (MmluPro(), MMLU_PRO, "mmlu_pro-70"),
    "mmlu_redux": (MmluRedux(subjects=("virology",)), REDUX, "mmlu_redux-virology-00000"),
    "gpqa_diamond": (GpqaDiamond(), GPQA, "gpqa_diamond-rec1"),
    "gsm8k": (Gsm8k(), GSM8K, "gsm8k-00000"),
    "math_500": (Math500(), MATH_500, "math_500-test-precalculus-807"),
    "aime": (Aime(years=(2026,)), AIME, "aime-2026-00000"),
    "mgsm": (Mgsm(languages=("de",)), MGSM, "mgsm-de-00000"),
    "bbh": (Bbh(subsets=("navigate",)), BBH, "bbh-navigate-00000"),
}


def on_hub(monkeypatch: pytest.MonkeyPatch, task: ChatTask, rows: Sequence[Mapping[str, Any]]) -> None:
    (source,) = task.sources
    serve_rows(monkeypatch, {(source.hub, source.config): rows})


def local(name: str) -> Task:
    task = LOCAL[name][0]
    assert isinstance(task, ChatTask)
    missing = [
        s.local
        for s in task.sources
        if not os.environ.get("EQUIPOISE_DATA") or not (DATA / s.local).is_file()
    ]
    if missing:
        pytest.skip(f"EQUIPOISE_DATA has no {missing[0]}")
    return task


@pytest.mark.parametrize("name", LOCAL)
def test_all_items_load_and_are_graded_right_and_wrong(name: str) -> None:
    task, (_, items, _, _) = local(name), LOCAL[name]
    found = validate_task(task)
    assert found.faults == ()
    assert (found.items, found.right, found.wrong) == (items, items, items)


@pytest.mark.parametrize("name", LOCAL)
def test_prompts_are_those_of_the_version(name: str) -> None:
    task, (_, items, known, content) = local(name), LOCAL[name]
    (item,) = (i for i in task.items(items, 1) if i.id == known)
    assert item.content_hash == content


@pytest.mark.parametrize("name", LOCAL)
def test_a_longer_list_begins_with_a_shorter(name: str) -> None:
    task = local(name)
    assert list(task.items(40, 5))[:15] == list(task.items(15, 5))


@pytest.mark.parametrize("name", HUB)
def test_rows_of_the_hub_are_asked_and_graded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, row, item_id = HUB[name]
    on_hub(monkeypatch, task, [row])
    found = validate_task(task)
    assert (found.items, found.right, found.wrong, found.faults) == (1, 1, 1, ())
    (item,) = task.items(1, 1)
    assert item.id == item_id
    assert item.task == task.name == name
    request = task.next_request(item, ())
    assert request is not None and request.messages is not None
    text = render(request.messages)
    assert text.count(item.inputs["prompt"]) == 1
    assert "ANSWER:" in text or "boxed{}" in text
    assert 40 < count_tokens(text) < 200


@pytest.mark.parametrize("name", ["mmlu_pro", "mmlu_redux", "gpqa_diamond", "math_500", "aime"])
def test_a_local_file_has_the_hubs_rows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, row, _ = HUB[name]
    on_hub(monkeypatch, task, [row])
    expected = task.items(1, 1)
    path = tmp_path / task.sources[0].local
    path.parent.mkdir()
    path.write_text(json.dumps(row) + "\n")
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    assert task.items(1, 1) == expected


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mmlu_pro", {"answer": "D"}, "mmlu_pro row 0 is malformed.*'D' is none of 3"),
        ("mmlu_pro", {"options": ["one"], "answer": "A"}, "row 0 is malformed.*1 choices"),
        ("mmlu_redux", {"answer": 4}, "row 0 of virology is malformed.*4 is none of 4"),
        ("gsm8k", {"answer": "It is two."}, "gsm8k row 0 is malformed.*no number behind ####"),
        ("math_500", {"answer": " "}, "math_500 row 0 is malformed.*answer is empty"),
        ("aime", {"answer": 1000}, "aime row 0 of 2026 is malformed.*1000 is no integer"),
        ("mgsm", {"answer_number": "many"}, "mgsm row 0 of de is malformed.*'many' is not a number"),
        ("bbh", {"target": "Maybe"}, "bbh row 0 of navigate is malformed.*'Maybe' is not of the kind yes/no"),
    ],
)
def test_a_malformed_row_is_named(
    name: str, change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, row, _ = HUB[name]
    on_hub(monkeypatch, task, [{**row, **change}])
    with pytest.raises(UsageError, match=message):
        task.items(1, 1)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("mmlu_pro", "options"),
        ("mmlu_redux", "choices"),
        ("gpqa_diamond", "Record ID"),
        ("gsm8k", "question"),
        ("math_500", "unique_id"),
        ("aime", "problem"),
        ("mgsm", "answer_number"),
        ("bbh", "input"),
    ],
)
def test_a_missing_field_is_named(name: str, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, row, _ = HUB[name]
    on_hub(monkeypatch, task, [{k: v for k, v in row.items() if k != field}])
    with pytest.raises(UsageError, match=f"{name} row 0.* has no field '{field}'"):
        task.items(1, 1)


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        (Aime(), {"years": [2023]}, "years must be different ones of 2024, 2025, 2026"),
        (Mgsm(), {"languages": ["de", "de"]}, "languages must be different ones"),
        (Bbh(), {"subsets": ["navigation"]}, "subsets must be different ones"),
        (MmluRedux(), {"subjects": ["alchemy"]}, r"subjects must be .*\['alchemy'\]"),
        (Aime(), {"year": 2025}, "no option 'year'; did you mean 'years'"),
    ],
)
def test_options_that_the_data_does_not_have_are_refused(
    task: Task, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        with_options(task, options)


def test_options_choose_the_sources() -> None:
    assert [s.label for s in with_options(Aime(), {"years": [2026, 2024]}).sources] == ["2026", "2024"]  # type: ignore[attr-defined]
    assert len(MmluRedux().sources) == len(SUBJECTS) == 57
    assert len(Bbh().sources) == 27
    assert len(Mgsm().sources) == 11


def test_gpqa_orders_choices_by_the_items_id_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{**GPQA, "Record ID": f"rec{i}"} for i in range(60)]
    on_hub(monkeypatch, GpqaDiamond(), rows)
    first = {i.id: i for i in GpqaDiamond().items(60, 1)}
    second = {i.id: i for i in GpqaDiamond().items(60, 2)}
    assert first == second
    assert {i.target for i in first.values()} == set("ABCD")
    for item in first.values():
        assert f"\n{item.target}) ten" in item.inputs["prompt"]


def test_mmlu_redux_asks_only_what_was_found_without_error(monkeypatch: pytest.MonkeyPatch) -> None:
    task = MmluRedux(subjects=("virology",))
    on_hub(monkeypatch, task, [REDUX, {**REDUX, "error_type": "wrong_groundtruth"}, REDUX])
    assert task.count() == 2
    assert sorted(i.id for i in task.items(2, 1)) == [
        "mmlu_redux-virology-00000",
        "mmlu_redux-virology-00002",
    ]
    with pytest.raises(UsageError, match="has 2 items"):
        task.items(3, 1)


def test_the_languages_of_a_problem_are_a_cluster() -> None:
    local("mgsm")
    items = Mgsm(languages=("en", "ja")).items(500, 1)
    by_cluster: dict[str, set[str]] = {}
    for item in items:
        by_cluster.setdefault(item.cluster_id, set()).add(item.strata["language"])
    assert len(by_cluster) == 250
    assert all(languages == {"en", "ja"} for languages in by_cluster.values())


def test_numbers_are_read_as_the_language_writes_them() -> None:
    local("mgsm")
    (german,) = (i for i in Mgsm(languages=("de",)).items(250, 1) if i.id == "mgsm-de-00002")
    assert german.target == "70000"
    assert Mgsm().grade(german, "Er verdient 70.000 $.").value == 1.0
    (english,) = (i for i in Mgsm(languages=("en",)).items(250, 1) if i.id == "mgsm-en-00002")
    assert Mgsm().grade(english, "He makes 70.000 dollars.").value == 0.0


@pytest.mark.parametrize("name", LOCAL)
def test_kimi_reads_back_every_prompt_without_control_tokens(name: str) -> None:
    task = local(name)
    for item in task.items(150, 1):
        request = task.next_request(item, ())
        assert request is not None and request.messages is not None
        text = render(request.messages)
        ids = encode(text)
        assert tokenizer().decode(ids) == text
        control = [i for i in ids if i >= 163_584]
        # Three control tokens open and close each of the two turns, two open the answer.
        assert len(control) == 8
        assert len(ids) < 1500


def test_aime_answers_may_carry_noughts_or_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Aime(years=(2026,))
    on_hub(monkeypatch, task, [{**AIME, "answer": a} for a in ("033", "336^\\circ", 7)])
    assert sorted(i.target for i in task.items(3, 1)) == ["33", "336", "7"]


def test_hub_and_revision_are_what_the_source_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = serve_rows(monkeypatch, {("MathArena/aime_2026", "default"): [AIME]})
    Aime(years=(2026,)).items(1, 1)
    assert asked == [
        ("MathArena/aime_2026", "default", "train", "d2de22f3c656b4f56cf8981212186377d1e23bc3"),
    ]

"""Code tasks: every reference solution passes, a function that returns None never does."""

import base64
import hashlib
import json
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from equipoise.evals.errors import UsageError
from equipoise.evals.types import Output, Sample, SampleKey, ScoreStatus, TaskItem
from equipoise.tasks import code_task
from equipoise.tasks.code_task import CodeTask
from equipoise.tasks.contest_tests import read_tests
from equipoise.tasks.graders.code_block import code_of
from equipoise.tasks.humaneval import HumanEval
from equipoise.tasks.livecodebench import LiveCodeBench
from equipoise.tasks.mbpp import MBPP
from equipoise.tasks.reference import reply
from equipoise.tasks.registry import TASKS
from equipoise.tasks.sandbox.sandbox import Sandbox
from equipoise.tasks.sandbox.server import LAYERS

HUMANEVAL_ROW = {
    "task_id": "HumanEval/7",
    "prompt": 'from typing import List\n\n\ndef total(xs: List[int]) -> int:\n    """The sum."""\n',
    "entry_point": "total",
    "canonical_solution": "    return sum(xs)\n",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n",
}
MBPP_ROW = {
    "task_id": 3,
    "prompt": "Write a function to find primes.",
    "code": "import math\ndef is_prime(n):\n    return all(n % i for i in range(2, math.isqrt(n) + 1))",
    "test_imports": ["import math"],
    "test_list": ["assert is_prime(7)", "assert not is_prime(9)", "assert is_prime(math.isqrt(49))"],
}


def packed(tests: list[dict[str, str]], protocol: int = 4) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests), protocol=protocol))).decode()


def contest_row(**changes: Any) -> dict[str, Any]:
    tests = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
    private = [{"input": f"{n} {n}", "output": str(2 * n), "testtype": "stdin"} for n in range(3)]
    row = {
        "question_title": "Sum",
        "question_content": "Add two numbers.",
        "platform": "atcoder",
        "question_id": "abc387_c",
        "contest_id": "abc387",
        "contest_date": "2025-01-04T00:00:00",
        "starter_code": "",
        "difficulty": "easy",
        "public_test_cases": json.dumps(tests),
        "private_test_cases": packed(private),
        "metadata": "{}",
    }
    return row | changes


METHOD = contest_row(
    question_id="3779",
    platform="leetcode",
    starter_code="class Solution:\n    def add(self, a: List[int], b: int) -> List[int]:\n        ",
    public_test_cases=json.dumps([{"input": "[1, 2]\n1", "output": "[2, 3]", "testtype": "functional"}]),
    private_test_cases=json.dumps([{"input": "[]\n5", "output": "[]", "testtype": "functional"}]),
    metadata='{"func_name": "add"}',
)


def item_of(task: CodeTask, row: dict[str, Any], *, local: bool = True) -> TaskItem:
    return task._item(task.sources[0], 0, row, local)


def sample(item: TaskItem, *outputs: Output) -> Sample:
    key = SampleKey(model="m", arm="A1", task=item.task, item_id=item.id)
    return Sample(
        key=key,
        content_hash=item.content_hash,
        outputs=outputs,
        attempts=1,
        started_unix_s=0.0,
        latency_s=0.0,
    )


def _offline(name: str) -> Path:
    root = os.environ.get("EQUIPOISE_DATA")
    if not root or not (Path(root) / name).is_file():
        pytest.skip(f"EQUIPOISE_DATA has no {name}")
    return Path(root) / name


@pytest.mark.parametrize(("task", "count"), [(HumanEval(), 164), (MBPP(), 427)], ids=["humaneval", "mbpp"])
def test_every_reference_passes_and_every_wrong_answer_fails(task: CodeTask, count: int) -> None:
    _offline(task.sources[0].local)
    items = task.items(task.count(), seed=1)
    assert len({i.id for i in items}) == len(items) == count == task.card.items
    pairs = []
    for item in items:
        right, wrong = task.right(item), task.wrong(item)
        assert right is not None
        assert wrong is not None
        pairs += [(item, sample(item, *right), 1.0), (item, sample(item, *wrong), 0.0)]
    task.prepare([(item, s) for item, s, _ in pairs])
    mistaken = []
    for item, s, expected in pairs:
        score = task.score(item, s)
        if score.value != expected:
            mistaken.append((item.id, expected, score.reason))
        assert score.extracted is not None
        assert bool(score.reason) >= (expected == 0.0)
    assert not mistaken


@pytest.mark.parametrize(
    ("task", "item_id", "digest"),
    [(HumanEval(), "humaneval-000", "84ef236839ef3b98"), (MBPP(), "mbpp-003", "9f564467a43833c3")],
)
def test_prompts_do_not_change(task: CodeTask, item_id: str, digest: str) -> None:
    _offline(task.sources[0].local)
    (item,) = [i for i in task.items(task.count(), seed=1) if i.id == item_id]
    assert hashlib.sha256(item.inputs["prompt"].encode()).hexdigest()[:16] == digest


def test_a_longer_list_adds_to_a_shorter_one() -> None:
    _offline("mbpp/sanitized-mbpp.json")
    assert MBPP().items(40, seed=3)[:10] == MBPP().items(10, seed=3)


@pytest.mark.parametrize(
    ("task", "row"),
    [
        (HumanEval(), HUMANEVAL_ROW),
        (MBPP(), MBPP_ROW),
        (LiveCodeBench(), contest_row()),
        (LiveCodeBench(), METHOD),
    ],
)
def test_both_forms_of_a_row_are_asked_alike(task: CodeTask, row: dict[str, Any]) -> None:
    assert item_of(task, row) == item_of(task, row, local=False)


ANSWERS = [
    (HumanEval(), HUMANEVAL_ROW, "Here:\n```python\ndef total(xs):\n    return sum(xs)\n```\nIt adds.", 1.0),
    (HumanEval(), HUMANEVAL_ROW, "def total(xs: List[int]) -> int:\n    return sum(xs)\n\nThis adds.", 1.0),
    (HumanEval(), HUMANEVAL_ROW, "    return sum(xs)\n", 1.0),
    (HumanEval(), HUMANEVAL_ROW, "```\nreturn sum(xs)\n```", 1.0),
    (HumanEval(), HUMANEVAL_ROW, "```python\ndef total(xs):\n    return 3\n```", 0.0),
    (HumanEval(), HUMANEVAL_ROW, "```python\ndef sum_up(xs):\n    return sum(xs)\n```", 0.0),
    (MBPP(), MBPP_ROW, f"```python\n{MBPP_ROW['code']}\n```\n```python\nprint(is_prime(7))\n```", 1.0),
    (MBPP(), MBPP_ROW, "```python\ndef is_prime(n):\n    return True\n```", 0.0),
    (LiveCodeBench(), contest_row(), "```python\nprint(sum(map(int, input().split())))\n```", 1.0),
    (LiveCodeBench(), contest_row(), "```python\nprint(3)\n```", 0.0),
    (LiveCodeBench(), METHOD, "```python\nclass Solution:\n    def add(self, a: List[int], b):\n        "
     "return tuple(x + b for x in a)\n```", 1.0),
    (LiveCodeBench(), METHOD, "```\nclass Solution:\n    def add(self, a, b):\n        return [2]\n```", 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("task", "row", "answer", "value"), ANSWERS, ids=range(len(ANSWERS)))
def test_answers_are_run_with_all_their_tests(
    task: CodeTask, row: dict[str, Any], answer: str, value: float
) -> None:
    item = item_of(task, row)
    score = task.score(item, sample(item, reply(answer)))
    assert (score.value, score.status) == (value, ScoreStatus.SCORED), score.reason
    assert score.extracted


@pytest.mark.parametrize(
    "answer", ["", "I cannot.", "I would sum them.", "```\n\n```", "```json\n{}\n```", "~" * 10**6]
)
def test_an_answer_without_code_is_unextracted(answer: str) -> None:
    item = item_of(HumanEval(), HUMANEVAL_ROW)
    score = HumanEval().score(item, sample(item, reply(answer)))
    assert (score.value, score.extracted, score.reason) == (0.0, None, "no code in the answer")


@pytest.mark.parametrize(
    "answer",
    [
        *(
            "```python\n" * 10**5,
            "``` " + " " * 10**6,
            "from " * 2 * 10**5,
            "from" + " " * 10**6,
            "(" * 10**6,
        ),
        *("```\n" + "\\" * 10**6, "def f(" * 10**5, "import x\n" + "x" * 10**6, "\n" * 10**6, "`" * 10**6),
        *("```python\nx = '\ud800\x00'\n```", "```python\n\ud800\n```", "import x\x00"),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_no_answer_breaks_the_grader(answer: str) -> None:
    for task, row in ((HumanEval(), HUMANEVAL_ROW), (LiveCodeBench(), contest_row())):
        item = item_of(task, row)
        assert task.score(item, sample(item, reply(answer))).value == 0.0


@pytest.mark.parametrize(
    ("answer", "names", "code"),
    [
        ("```python\nx = 1\n```", (), "x = 1\n"),
        ("```python\ndef f(): 1\n```\nor\n```py\ndef f(): 2\n```", ("f",), "def f(): 2\n"),
        ("```python\ndef f(): 1\n```\nUse:\n```python\nf()\n```", ("f",), "def f(): 1\n"),
        ("```bash\nls\n```\n```python\ny\n```\n```text\nout\n```", (), "y\n"),
        ("```python\ndef f():\n    return 1", ("f",), "def f():\n    return 1\n"),
        ("````python\na = '''\n```\n'''\n````", (), "a = '''\n```\n'''\n"),
        ("```python\nif x:\n    '''\n    ```\n    '''\n```", (), "if x:\n    '''\n    ```\n    '''\n"),
        ("```python\n    return 1\n    ```\nIt works.", (), "    return 1\n"),
        ("~~~python\nx\n~~~", (), "x\n"),
        ("1. First\n   ```python\n   if x:\n       y\n   ```", (), "if x:\n    y\n"),
        ("Sure.\nimport os\n\ndef f():\n    1\nf()\nIt works", (), "import os\n\ndef f():\n    1\nf()\n"),
        ("class A:\n    x = (1,\n)\n# end", (), "class A:\n    x = (1,\n)\n# end\n"),
        ("from here on I will think", (), None),
    ],
)  # fmt: skip
def test_code_is_found(answer: str, names: tuple[str, ...], code: str | None) -> None:
    found = code_of(answer, names=names)
    assert (found.code if found else None) == code


def test_code_that_is_too_long_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_task, "shared_sandbox", lambda: pytest.fail("it was run"))
    item = item_of(HumanEval(), HUMANEVAL_ROW)
    score = HumanEval().score(item, sample(item, reply("```python\n" + "x = 1\n" * 10**5 + "```")))
    assert score.value == 0.0
    assert "at most 200000 are run" in score.reason


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [1, 300, 100_000])
def test_tests_in_a_pickled_text_are_read_by_their_bytes(protocol: int, size: int) -> None:
    tests = [{"input": "é" * size, "output": "b", "testtype": "stdin"}]
    (found,) = read_tests(packed(tests, protocol))
    assert (found.given, found.expected) == ("é" * size, "b")


class _Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("/tmp/equipoise-was-unpickled",)


@pytest.mark.parametrize(
    "field",
    [
        *(base64.b64encode(zlib.compress(pickle.dumps(v))).decode() for v in (_Runs(), ["a"], b"a", 1, None)),
        base64.b64encode(zlib.compress(pickle.dumps("[]")[:-1])).decode(),
        base64.b64encode(zlib.compress(pickle.dumps("[]") + b"x")).decode(),
        base64.b64encode(zlib.compress(pickle.dumps("[]", protocol=0))).decode(),
        base64.b64encode(b"not deflated").decode(),
        base64.b64encode(zlib.compress(b"[]" * 100)[:-8]).decode(),
        *("not base64!", '{"input": 1}', '[{"input": "a"}]', "[1]", ""),
    ],
)
def test_any_other_pickle_is_refused_and_the_row_named(field: str) -> None:
    with pytest.raises(UsageError, match="livecodebench row 0"):
        item_of(LiveCodeBench(), contest_row(private_test_cases=field))
    assert not Path("/tmp/equipoise-was-unpickled").exists()


@pytest.mark.parametrize(
    ("task", "row", "says"),
    [
        *((HumanEval(), {k: v for k, v in HUMANEVAL_ROW.items() if k != f}, f) for f in HUMANEVAL_ROW),
        *((MBPP(), {k: v for k, v in MBPP_ROW.items() if k != f}, f) for f in MBPP_ROW),
        (HumanEval(), HUMANEVAL_ROW | {"entry_point": "other"}, "entry_point"),
        (MBPP(), MBPP_ROW | {"test_list": ["assert True"]}, "test_list"),
        (LiveCodeBench(), METHOD | {"public_test_cases": '[{"input": "x", "output": "1"}]'}, "malformed"),
        (LiveCodeBench(), contest_row(metadata="{"), "malformed"),
    ],
)
def test_a_malformed_row_is_named_with_its_field(task: CodeTask, row: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=f"{task.name} row 0.*{says}"):
        item_of(task, row)


def test_items_are_refused_where_code_would_run_unisolated(monkeypatch: pytest.MonkeyPatch) -> None:
    weak = Sandbox(without=dict.fromkeys(LAYERS, "off"))
    monkeypatch.setattr(code_task, "shared_sandbox", lambda: weak)
    with pytest.raises(UsageError, match=r"without isolation here .*EQUIPOISE_SANDBOX=limits"):
        HumanEval().items(1, seed=1)
    weak.close()


def test_weaker_isolation_is_said_in_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    partial = Sandbox(without={"namespaces": "off"})
    if "seccomp" in partial.probe().missing:
        partial.close()
        pytest.skip("this machine has no filter of system calls")
    monkeypatch.setattr(code_task, "shared_sandbox", lambda: partial)
    item = item_of(HumanEval(), HUMANEVAL_ROW)
    assert HumanEval().score(item, sample(item, reply("    return sum(xs)"))).reason == "(isolation: partial)"
    partial.close()


def test_the_tasks_are_registered() -> None:
    assert {"humaneval", "mbpp", "livecodebench"} <= set(TASKS)

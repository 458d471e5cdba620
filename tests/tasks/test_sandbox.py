"""The sandbox judges as plain Python would: values travel whole, tests see what functions return."""

import dataclasses
import os
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import psutil
import pytest

from equipoise.evals.errors import EquipoiseError
from equipoise.tasks.sandbox import server
from equipoise.tasks.sandbox.inside.outputs import difference
from equipoise.tasks.sandbox.inside.wire import Ref, WireError, decode, encode
from equipoise.tasks.sandbox.sandbox import Sandbox
from equipoise.tasks.sandbox.types import Call, Code, Isolation, Limits, Program, Status


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    found = Sandbox(minimum=Isolation.LIMITS)
    yield found
    found.close()


VALUES = [
    *(None, True, 0, -7, 2**200, 1.5, float("inf"), "a\ud800\x00", b"\xff", bytearray(b"x"), 1 + 2j),
    *([1, [2]], (1, (2,)), {1: {"a": (2,)}, (3,): 4}, {1, 2}, frozenset({1}), range(1, 9, 2), deque([1])),
    *(Fraction(1, 3), Decimal("1.20"), date(2020, 2, 29), {}.keys(), Counter("aab"), Ref(3)),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_travel_whole(value: Any) -> None:
    assert decode(encode(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        *(
            {"t": "no such"},
            {"v": 1},
            {"t": "set", "v": [[1]]},
            {"t": "int", "v": 3},
            {"t": "dict", "v": [1]},
        ),
        *({"t": "range", "v": [1] * 9}, {"t": "fraction", "v": "1/0"}, {"t": "decimal", "v": "x"}, {"t": []}),
    ],
    ids=repr,
)
def test_what_is_no_value_is_refused(value: Any) -> None:
    with pytest.raises(WireError):
        decode(value)


CATCHES = "try:\n    f(1)\n    ok = False\nexcept ValueError:\n    ok = True\nassert ok"
POINTS = "class P:\n    def __init__(s, a): s.a = a\ndef f(p): return [q.a for q in p]"
DATACLASS = "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\ndef f(): return A(3).x"
THREAD = """
import threading
def f():
    r = []
    t = threading.Thread(target=r.append, args=(1,))
    t.start()
    t.join()
    return r
"""
DEEP = """
import functools, sys
sys.setrecursionlimit(10**6)
@functools.lru_cache(None)
def f(n): return f(n - 1) + 1 if n else 0
print(f(30_000))
"""
# code, test, whether it passes
JUDGED = [
    ("def f(x): return x + 1", "assert f(1) == 2 and f(x=2) == 3", True),
    ("def f(x): return x", "assert f(1) == 2", False),
    ("def f(x): x.sort()", "v = [2, 1]\nf(v)\nassert v == [1, 2]", True),
    ("def f(x): x['a'] = 1", "v = {}\nf(v)\nassert v == {'a': 1}", True),
    ("def f(x): return iter(x)", "assert list(f([1])) == [1]", True),
    ("def f(x): yield from x", "assert f([1]) == [1]", False),
    ("def f(x): raise ValueError('no')", CATCHES, True),
    ("def f(x): raise ValueError('no')", "assert f(1) is None", False),
    (POINTS, "assert f([P(1), P(2)]) == [1, 2]", True),
    ("import math\ndef f(x): return math.pi", "assert math.isclose(f(1), math.pi)", True),
    (DATACLASS, "assert f() == 3", True),
    ("def f(): return {3, 1}", "assert f() == set([1, 3])", True),
    ("def f(:", "assert True", False),
    ("raise SystemExit(0)", "assert True", False),
    ("x = 1", "assert f(1) == 1", False),
    ("def f(): return input()", "assert f() == ''", False),
    ("def f(): return __name__", "assert f() != '__main__'", True),
    (THREAD, "assert f() == [1]", True),
    ("def f(n): return f(n - 1) + 1 if n else 0", "assert f(500) == 500", True),
]


@pytest.mark.parametrize(("code", "test", "passes"), JUDGED, ids=range(len(JUDGED)))
def test_functions_are_judged_as_in_one_process(sandbox: Sandbox, code: str, test: str, passes: bool) -> None:
    result = sandbox.run(Code(code=code, tests=(test,)))
    assert result.ok is passes, result
    assert bool(result.reason) is not passes
    assert (result.passed == result.tests) is passes


def test_a_failure_says_the_line_and_the_value(sandbox: Sandbox) -> None:
    tests = ("assert f(1) == 1", "def check(g):\n    assert g(1) == 1\n    assert g(2) == 5\ncheck(f)")
    result = sandbox.run(Code(code="def f(x):\n    print('seen')\n    return x", tests=tests))
    assert (result.status, result.passed, result.tests) == (Status.FAILED, 1, 2)
    assert result.reason == "assert g(2) == 5: the last call returned 2"
    assert result.stdout == "seen\n" * 3 or result.stdout == ""  # what was flushed when it ended


@pytest.mark.parametrize(
    ("code", "cases", "passed"),
    [
        ("print(int(input()) * 2)", [("1", "2"), ("2\n", "4\n")], 2),
        ("import sys\nprint(sum(map(int, sys.stdin.read().split())))", [("1 2\n3", "6")], 1),
        ("print(open(0).read(), end='')", [("a\nb", "a\nb")], 1),
        ("if __name__ == '__main__':\n    print('x')\n    raise SystemExit(3)", [("", "x")], 1),
        ("import atexit\natexit.register(print, 'end')", [("", "end")], 1),
        ("import threading\nthreading.Thread(target=lambda: print('t')).start()", [("", "t")], 1),
        ("print('a')\n1 / 0", [("", "a")], 0),
        ("print('b')", [("", "b"), ("", "c")], 1),
        ("x =", [("", "")], 0),
        ("print(1)\nexit()", [("", "1")], 1),
        ("print(1)\nquit(1)", [("", "1")], 1),
        (DEEP, [("", "30000")], 1),
    ],
)
def test_programs_are_run_anew_for_every_input(
    sandbox: Sandbox, code: str, cases: list[tuple[str, str]], passed: int
) -> None:
    result = sandbox.run(Program(code=code, cases=cases))
    assert (result.passed, result.ok) == (passed, passed == len(cases)), result


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        *(("1\n", "1", True), ("1 \n2\n\n", "1\n2", True), ("1", "2", False), ("1.0 2", "1 2.00", True)),
        *(("1\n2", "1", False), ("a b", "a  b", False), ("50000000000000001", "50000000000000000", False)),
        *(("nan", "1", False), ("", "", True), ("YES", "yes", False)),
    ],
)
def test_outputs_are_compared_by_lines_and_numbers(printed: str, expected: str, same: bool) -> None:
    assert (difference(printed, expected) == "") is same


BUSY = """
import time
def f(x):
    while time.process_time() < 0.6:
        pass
    return x
"""
SLEEPS = "import time\ndef f(x): time.sleep(100)\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the processor time of another process is not told")
@pytest.mark.parametrize(("code", "status"), [(BUSY, Status.OK), (SLEEPS, Status.TIMEOUT)])
def test_the_clock_ends_only_what_sleeps(sandbox: Sandbox, code: str, status: Status) -> None:
    limits = Limits(cpu_s=5, wall_s=0.3)
    for job in (
        Code(code=code, tests=("assert f(1) == 1",)),
        Call(code=code, function="f", cases=[([1], 1)]),
        Program(code=f"{code}print(f(1))", cases=[("", "1")]),
    ):
        assert sandbox.run(job, limits).status is status, job


def test_methods_are_called_on_a_solution_and_tuples_count_as_lists(sandbox: Sandbox) -> None:
    code = "class Solution:\n    def count(self, a: List[int], b): return a[0], b"
    job = Call(
        code=code,
        function="count",
        cases=[([[1], 2], [1, 2])],
        preamble="from typing import *\nfrom itertools import *",
    )
    assert sandbox.run(job).ok
    assert sandbox.run(dataclasses.replace(job, code="def count(a, b): return [a[0], b]")).ok
    wrong = sandbox.run(dataclasses.replace(job, code="def count(a, b): return b"))
    assert wrong.reason == "case 1: 2, not [1, 2]"


def test_sets_and_random_numbers_are_the_same_in_every_run() -> None:
    job = Code(
        code="import random\ndef f(): return list({'a', 'b', 'c', 'd'}), random.random()",
        tests=("assert f() == 0",),
    )
    reasons = set()
    for _ in range(2):
        fresh = Sandbox(minimum=Isolation.LIMITS)
        reasons.add(fresh.run(job).reason)
        fresh.close()
    assert len(reasons) == 1


def test_a_batch_keeps_its_order_and_results_are_remembered(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [Code(code=f"def f(): return {n}", tests=("assert f() % 3",)) for n in range(30)]
    results = sandbox.run_many(jobs)
    assert [r.ok for r in results] == [bool(n % 3) for n in range(30)]
    monkeypatch.setattr(server.Server, "run", lambda *_: pytest.fail("run again"))
    assert [sandbox.run(j) for j in jobs] == results


@pytest.mark.parametrize("again", ["ok", "killed"])
def test_what_was_killed_is_run_once_more(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    answers = [{"status": "killed", "reason": "by SIGKILL"}, {"status": again, "reason": ""}]
    monkeypatch.setattr(server.Server, "run", lambda *_: answers.pop(0))
    job = Code(code=f"def f(): return {again!r}", tests=("assert f()",))
    assert sandbox.run(job).status is Status(again)
    assert not answers


def test_a_killed_server_is_started_again_and_a_second_failure_is_no_score(sandbox: Sandbox) -> None:
    running = sandbox._running()
    running._process.kill()
    assert sandbox.run(Code(code="def f(): return 99", tests=("assert f() == 99",))).ok
    assert sandbox._running() is not running
    with pytest.raises(EquipoiseError, match="tests themselves fail: SyntaxError"):
        sandbox.run(Code(code="", tests=("def",)))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only the process group is known")
@pytest.mark.parametrize("without", [(), ("namespaces",), server.LAYERS], ids=str)
def test_what_runs_ends_with_us_however_we_end(without: tuple[str, ...]) -> None:
    code = f"""
from equipoise.tasks.sandbox.sandbox import Sandbox
from equipoise.tasks.sandbox.types import Code, Isolation
s = Sandbox(minimum=Isolation.LIMITS, without=dict.fromkeys({without!r}, "off"))
s.probe()
print("ready", flush=True)
s.run(Code(code="import time\\ndef f(): time.sleep(50)", tests=("f()",)))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as ours:
        assert ours.stdout is not None
        ours.stdout.readline()
        me = psutil.Process(ours.pid)
        below = _wait_for(lambda: me.children(recursive=True), lambda found: len(found) >= 4)
        ours.kill()
    left = _wait_for(lambda: [p for p in below if p.is_running() and p.status() != "zombie"], lambda p: not p)
    assert not left


def _wait_for(look: Callable[[], list[Any]], enough: Callable[[list[Any]], bool]) -> list[Any]:
    found = look()
    for _ in range(600):
        if enough(found):
            break
        time.sleep(0.05)
        found = look()
    return found


def test_the_inside_needs_the_standard_library_alone() -> None:
    home = str(Path(server.equipoise.__file__).parent.parent)
    code = "import sys; sys.path.append(sys.argv[1]); import equipoise.tasks.sandbox.inside.serve"
    subprocess.run(
        [sys.executable, "-S", "-P", "-c", code, home], check=True, env={"PATH": os.environ["PATH"]}
    )

"""The process that holds the tests and judges what the candidate's process returns.

The tests are Python of the data set, run here against stand-ins: a name of the candidate's is a function that
asks the other process. What comes back is plain data (see wire.py), so the code under test cannot reach the
tests, their expectations or the verdict: it can only answer, or stop answering.
"""

import ast
import builtins
import importlib
import os
import random
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from equipoise.tasks.sandbox.inside.outputs import difference
from equipoise.tasks.sandbox.inside.patience import SLOWEST, Patience
from equipoise.tasks.sandbox.inside.programs import end_of
from equipoise.tasks.sandbox.inside.wire import (
    WireError,
    decode,
    encode,
    exception_of,
    read_frame,
    write_frame,
)

__all__ = ["judge"]

_TESTS = "<tests>"
_SHOWN = 160


class Failed(Exception):
    """A test was not passed."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class BadTests(BaseException):
    """The data set's tests are no Python that runs: nobody's answer is judged by them."""


class Ended(BaseException):
    """The candidate's process does not answer any more. No test can catch this as an Exception."""


class TooLate(BaseException):
    """The candidate's process took too long. No test can catch this as an Exception."""


class Candidate:
    """The other process: its code's functions by name."""

    def __init__(self, requests: int, results: int, child: int, limits: dict[str, Any]) -> None:
        self.requests, self.results, self.child = requests, results, child
        self.limits = limits
        self.patience = Patience(child, limits["total_s"], with_us=True)
        self.error = ""  # the type of the last exception that came over
        self.returned = ""  # the last result, in short

    def ask(self, value: dict[str, Any], *, limit: int = 1 << 26) -> dict[str, Any]:
        """One request and its answer."""
        call = Patience(self.child, self.limits["wall_s"])
        return self.ask_within(lambda: min(call.left(), self.patience.left()), value, limit=limit)

    def ask_within(self, left: Callable[[], float], value: dict[str, Any], *, limit: int) -> dict[str, Any]:
        """As `ask`, with the seconds that are left told by ``left``."""
        waiting = True

        def look(number: int, frame: object) -> None:
            if not waiting:  # the answer came with the signal
                return
            if (seconds := left()) <= 0:
                raise TooLate
            signal.setitimer(signal.ITIMER_REAL, seconds)

        signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, max(1e-3, left()))
        try:
            write_frame(self.requests, value, limit=1 << 28)
            answer = read_frame(self.results, limit=limit)
        except BrokenPipeError as e:
            raise Ended from e
        finally:
            waiting = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        if answer is None:
            raise Ended
        if not isinstance(answer, dict):
            raise WireError("an answer must be an object")
        return answer

    def call(
        self, name: str, positional: tuple[Any, ...], named: dict[str, Any], *, method: bool = False
    ) -> Any:
        """Call a function; its exceptions are raised here, its changes of arguments made here."""
        args = [encode(v) for v in positional]
        kwargs = {k: encode(v) for k, v in named.items()}
        self.error = self.returned = ""
        answer = self.ask({"name": name, "method": method, "args": args, "kwargs": kwargs})
        if "error" in answer:
            self.error = str(answer["error"])[:100]
            raise exception_of(self.error, str(answer.get("message", ""))[:2000])
        try:
            changes = [(positional[int(i)], decode(v)) for i, v in answer.get("changed", ())]
            result = decode(answer["result"])
        except (LookupError, TypeError, ValueError) as e:
            raise WireError(f"an answer without a result ({type(e).__name__})") from e
        for value, changed in changes:
            _become(value, changed)
        self.returned = _short(result)
        return result

    def why_ended(self) -> tuple[str, str]:
        """Status and reason of a candidate that stopped answering."""
        ended = end_of(self.child, self.limits["wall_s"])
        if ended is None:  # it closed its end and goes on; it is killed with this process
            raise TooLate
        return ending(*ended, self.limits["cpu_s"])


class Function:
    """A function of the candidate's, as the tests see it."""

    def __init__(self, candidate: Candidate, name: str) -> None:
        self._candidate, self.__name__ = candidate, name

    def __call__(self, *positional: Any, **named: Any) -> Any:
        return self._candidate.call(self.__name__, positional, named)


def judge(body: dict[str, Any], candidate: Candidate) -> dict[str, Any]:
    """Run the tests of ``body``: status, reason, and how many passed of how many."""
    random.seed(0)
    run, tests = {
        "tests": (_run_tests, "tests"),
        "calls": (_run_calls, "cases"),
        "stdin": (_run_programs, "cases"),
    }[body["mode"]]
    found: dict[str, Any] = {"status": "ok", "reason": "", "passed": 0, "of": len(body[tests])}
    try:
        try:
            for _ in run(body, candidate, found):
                found["passed"] += 1
        except Ended:
            found["status"], found["reason"] = candidate.why_ended()
    except TooLate:
        found["status"], found["reason"] = "timeout", f"no end after {candidate.limits['wall_s']:g} s"
    except Failed as e:
        found["status"], found["reason"] = e.status, e.reason
    except MemoryError:
        found["status"], found["reason"] = "memory", "what the code returned takes too much memory"
    except Exception as e:  # noqa: BLE001 whatever a hostile value does to a comparison is its own failure
        reason = f"what the code returned cannot be judged: {type(e).__name__}: {str(e)[:_SHOWN]}"
        found["status"], found["reason"] = "failed", reason
    return found


def _start(body: dict[str, Any], candidate: Candidate) -> None:
    answer = candidate.ask({k: body[k] for k in ("mode", "code", "preamble")})
    if "error" in answer:
        error, message = str(answer["error"])[:100], str(answer.get("message", ""))[:_SHOWN]
        raise Failed(_status_of(error), f"the code raised {error}: {message}")


def _run_tests(body: dict[str, Any], candidate: Candidate, found: dict[str, Any]) -> Iterator[None]:
    space: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
    try:
        exec(compile(body["setup"], "<setup>", "exec", dont_inherit=True), space)  # noqa: S102 in the sandbox
        tests = [ast.parse(t) for t in body["tests"]]
    except Exception as e:
        raise BadTests(f"the tests themselves fail: {type(e).__name__}: {e}") from e
    _start(body, candidate)
    free = _free_names(tests).difference(space, dir(builtins))
    for name in free & sys.stdlib_module_names:  # the data's own solution imports them
        space[name] = importlib.import_module(name)
    for name in {*body["names"], *free.difference(space)}:
        space[name] = Function(candidate, name)
    for source, tree in zip(body["tests"], tests, strict=True):
        try:
            exec(compile(tree, _TESTS, "exec", dont_inherit=True), space)  # noqa: S102 in the sandbox
        except Exception as e:
            raise Failed(_status_of(candidate.error), _why_failed(e, source, candidate)) from e
        yield


def _run_calls(body: dict[str, Any], candidate: Candidate, found: dict[str, Any]) -> Iterator[None]:
    _start(body, candidate)
    for number, case in enumerate(body["cases"], 1):
        try:
            result = candidate.call(body["function"], tuple(case["args"]), {}, method=True)
        except Exception as e:
            if not candidate.error:
                raise
            reason = f"case {number}: the code raised {candidate.error}: {str(e)[:_SHOWN]}"
            raise Failed(_status_of(candidate.error), reason) from e
        if (list(result) if isinstance(result, tuple) else result) != case["expected"]:
            raise Failed("failed", f"case {number}: {_short(result)}, not {_short(case['expected'])}")
        yield


def _run_programs(body: dict[str, Any], candidate: Candidate, found: dict[str, Any]) -> Iterator[None]:
    write_frame(candidate.requests, {k: body[k] for k in ("mode", "code", "preamble")})
    limits = candidate.limits
    for number, case in enumerate(body["cases"], 1):
        if candidate.patience.left() <= 0:
            raise TooLate
        # The process that starts them sees to the time of each.
        longest = Patience(candidate.child, limits["wall_s"] + SLOWEST * limits["cpu_s"] + 10.0)
        answer = candidate.ask_within(longest.left, {"stdin": case["stdin"]}, limit=1 << 28)
        candidate.patience.add(answer["cpu_s"])
        found["stdout"], found["stderr"] = answer["stdout"][: limits["kept_bytes"]], answer["stderr"]
        status, reason = "ok", ""
        if not answer["in_time"]:
            status, reason = "timeout", f"no end after {limits['wall_s']:g} s"
        elif answer["stdout_bytes"] >= limits["output_bytes"]:
            status, reason = "output_limit", f"more than {limits['output_bytes']} bytes of output"
        elif os.WIFSIGNALED(answer["status"]):
            status, reason = ending(answer["status"], answer["cpu_s"], limits["cpu_s"])
        elif os.waitstatus_to_exitcode(answer["status"]) == 1 and answer["stderr"]:
            status, reason = _status_of(answer["stderr"].partition(":")[0]), answer["stderr"][:_SHOWN]
        elif differs := difference(answer["stdout"], case["expected"]):
            status, reason = "failed", differs
        if status != "ok":
            raise Failed(status, f"case {number}: {reason}")
        yield


def _status_of(error: str) -> str:
    return "memory" if error == "MemoryError" else "failed"


def _free_names(trees: list[ast.Module]) -> set[str]:
    """Names that the tests use and do not define."""
    used: set[str] = set()
    defined: set[str] = set()
    for node in (n for tree in trees for n in ast.walk(tree)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else defined).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.alias):
            defined.add((node.asname or node.name).partition(".")[0])
    return used - defined


def _why_failed(error: Exception, source: str, candidate: Candidate) -> str:
    """The line of the test, and what it saw."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == _TESTS and f.lineno]
    line = source.splitlines()[lines[-1] - 1].strip()[:_SHOWN] if lines else source.strip()[:_SHOWN]
    if candidate.error:
        return f"{line}: the code raised {candidate.error}: {str(error)[:_SHOWN]}"
    if isinstance(error, AssertionError):
        return f"{line}: the last call returned {candidate.returned or 'nothing'}"
    return f"{line}: {type(error).__name__}: {str(error)[:_SHOWN]}"


def ending(status: int, cpu_s: float, limit_s: float) -> tuple[str, str]:
    """What a process's exit status says of it."""
    if not os.WIFSIGNALED(status):
        return (
            "failed",
            f"the program ended (exit status {os.waitstatus_to_exitcode(status)}) before its tests did",
        )
    number = os.WTERMSIG(status)
    if number in (signal.SIGKILL, signal.SIGXCPU) and cpu_s > limit_s - 0.5:
        return "timeout", f"more than {limit_s:g} s of processor time"
    name = signal.Signals(number).name
    return ("killed" if number == signal.SIGKILL else "crashed"), f"the program was ended by {name}"


def _become(value: Any, changed: Any) -> None:
    if isinstance(value, list | bytearray) and isinstance(changed, type(value)):
        value[:] = changed
    elif isinstance(value, dict | set) and isinstance(changed, type(value)):
        value.clear()
        value.update(changed)
    elif isinstance(value, deque) and isinstance(changed, deque):
        value.clear()
        value.extend(changed)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError, MemoryError):
        return f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."

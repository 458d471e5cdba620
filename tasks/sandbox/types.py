"""What is asked of the sandbox and what it says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

__all__ = ["Call", "Code", "Isolation", "Keyed", "Limits", "Probe", "Program", "SandboxResult", "Status"]


class Isolation(IntEnum):
    """How well programs are kept apart from this machine.

    ``FULL``: namespaces and a system-call filter. ``PARTIAL``: no network and no file that can be written,
    by one of the two. ``LIMITS``: memory and time are limited, nothing else.
    """

    LIMITS = 0
    PARTIAL = 1
    FULL = 2


class Status(StrEnum):
    OK = "ok"
    FAILED = "failed"  # a test was not passed, or the code raised
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT_LIMIT = "output_limit"
    CRASHED = "crashed"  # by a signal of its own making, such as a segmentation fault
    KILLED = "killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one program. Processor time decides, so that a busy machine does not; ``wall_s`` ends what sleeps
    (see inside/patience.py).

    Both are of one call, or one input; all tests of a `Code` together have ``wall_s`` and thrice ``cpu_s``.
    """

    cpu_s: int = 10
    wall_s: float = 60.0
    memory_bytes: int = 1 << 30
    output_bytes: int = 8 << 20  # and the size of any file
    scratch_bytes: int = 16 << 20
    scratch_files: int = 256
    threads: int = 64
    open_files: int = 64
    kept_bytes: int = 4096  # of the output that a result shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Code whose functions are tested by Python of the data set.

    ``setup`` runs beside the tests, which see the code's functions by ``names`` or wherever they use a name
    that nothing else defines. ``preamble`` runs before the code.
    """

    code: str
    tests: tuple[str, ...]
    setup: str = ""
    names: tuple[str, ...] = ()
    preamble: str = ""

    def body(self) -> dict[str, Any]:
        """As the sandbox reads it."""
        tests = {"setup": self.setup, "tests": self.tests, "names": self.names}
        return {"mode": "tests", "code": self.code, "preamble": self.preamble, **tests}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Code with a function (or a method of its ``Solution``); pairs of arguments and result, JSON values."""

    code: str
    function: str
    cases: Sequence[tuple[Sequence[Any], Any]]
    preamble: str = ""

    def body(self) -> dict[str, Any]:
        """As the sandbox reads it."""
        cases = [{"args": list(args), "expected": expected} for args, expected in self.cases]
        common = {"mode": "calls", "code": self.code, "preamble": self.preamble}
        return {**common, "function": self.function, "cases": cases}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program with pairs of standard input and the output that it should write."""

    code: str
    cases: Sequence[tuple[str, str]]
    preamble: str = ""

    def body(self) -> dict[str, Any]:
        """As the sandbox reads it."""
        cases = [{"stdin": given, "expected": expected} for given, expected in self.cases]
        return {"mode": "stdin", "code": self.code, "preamble": self.preamble, "cases": cases}


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed:
    """A program that is made only when it is run; ``key`` stands for it, its tests included."""

    key: str
    make: Callable[[], Code | Call | Program]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResult:
    """How a program fared; ``reason`` says why not ok, ``passed`` of ``tests`` how far it came."""

    status: Status
    reason: str = ""
    passed: int = 0
    tests: int = 0
    stdout: str = ""
    stderr: str = ""
    isolation: Isolation = Isolation.LIMITS

    @property
    def ok(self) -> bool:
        return self.status is Status.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a machine gives: the level, and for each layer that is missing, why."""

    isolation: Isolation
    missing: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        level = self.isolation.name.lower()
        return level + "".join(f"; no {name}: {why}" for name, why in self.missing.items())

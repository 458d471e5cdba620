"""Runs model-written Python behind the layers that a machine gives. See README.md.

Results are remembered in this process by everything that decides them, so a report that scores an answer
again does not run it again.
"""

import functools
import hashlib
import json
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from equipoise.evals.errors import EquipoiseError, UsageError
from equipoise.tasks.sandbox.server import Server, start
from equipoise.tasks.sandbox.types import (
    Call,
    Code,
    Isolation,
    Keyed,
    Limits,
    Probe,
    Program,
    SandboxResult,
    Status,
)

__all__ = ["ENVIRONMENT_VARIABLE", "Sandbox", "required_isolation", "shared_sandbox"]

ENVIRONMENT_VARIABLE = "EQUIPOISE_SANDBOX"
_REMEMBERED = 100_000
_MAX_TOTAL_S = 900.0
_LINUX = hasattr(os, "sched_getaffinity")
Job = Code | Call | Program | Keyed


class Sandbox:
    """Runs programs, several at a time.

    Parameters
    ----------
    minimum : Isolation
        Below it nothing is run.
    without : dict, optional
        Layers that are not to be used, with the reason.
    workers : int, optional
        Programs at a time in `run_many`; by default one a processor, at most 8.
    """

    def __init__(
        self,
        *,
        minimum: Isolation = Isolation.PARTIAL,
        without: dict[str, str] | None = None,
        workers: int | None = None,
    ) -> None:
        self._minimum, self._without = minimum, without or {}
        self._workers = workers or min(8, len(os.sched_getaffinity(0)) if _LINUX else os.cpu_count() or 1)
        self._lock, self._alone = threading.Lock(), threading.Lock()
        self._server: Server | None = None
        self._results: OrderedDict[bytes, SandboxResult] = OrderedDict()

    def probe(self) -> Probe:
        """What this machine gives, found by trying."""
        return self._running().probe

    def require(self) -> Probe:
        """The probe, if it reaches the minimum.

        Raises
        ------
        UsageError
            It does not; says why, and how to run all the same.
        """
        probe = self.probe()
        if probe.isolation < self._minimum:
            raise UsageError(
                f"model-written code would run without isolation here ({probe}); run where Linux gives user "
                f"namespaces or seccomp, or accept it with {ENVIRONMENT_VARIABLE}="
                f"{probe.isolation.name.lower()} on a machine that holds nothing of value"
            )
        return probe

    def run(self, job: Job, limits: Limits = Limits()) -> SandboxResult:  # noqa: B008 frozen
        """Run one program with its tests.

        Raises
        ------
        UsageError
            This machine does not isolate as required.
        EquipoiseError
            The sandbox itself failed, twice: no verdict on the program.
        """
        probe = self.require()
        named = job.key if isinstance(job, Keyed) else json.dumps(job.body(), sort_keys=True)
        key = hashlib.sha256(f"{limits}|{probe.isolation}|{named}".encode()).digest()
        with self._lock:
            if (known := self._results.get(key)) is not None:
                self._results.move_to_end(key)
                return known
        body = (job.make() if isinstance(job, Keyed) else job).body()
        given = {**asdict(limits), **_times(limits, body)}
        result = _result(self._run(given, body), probe.isolation)
        if result.status is Status.KILLED:
            with self._alone:  # perhaps for want of memory; what a program does to itself it does again
                result = _result(self._run(given, body), probe.isolation)
        with self._lock:
            self._results[key] = result
            while len(self._results) > _REMEMBERED:
                self._results.popitem(last=False)
        return result

    def run_many(self, jobs: Sequence[Job], limits: Limits = Limits()) -> list[SandboxResult]:  # noqa: B008
        """`run` for many, some at a time; results in their order."""
        with ThreadPoolExecutor(self._workers) as pool:
            return list(pool.map(lambda job: self.run(job, limits), jobs))

    def close(self) -> None:
        """End the server, and with it whatever runs."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.close()

    def _run(self, given: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        server = self._running()
        try:
            return server.run(given, body)
        except EquipoiseError:
            with self._lock:  # the server may have been killed; a second failure is reported
                if self._server is server:
                    self._server = None
                    server.close()
            return self._running().run(given, body)

    def _running(self) -> Server:
        with self._lock:
            if self._server is None:
                self._server = start(self._without)
            return self._server


def required_isolation() -> Isolation:
    """What EQUIPOISE_SANDBOX asks for; by default `PARTIAL`.

    Raises
    ------
    UsageError
        It names no level.
    """
    name = os.environ.get(ENVIRONMENT_VARIABLE, "") or "partial"
    try:
        return Isolation[name.upper()]
    except KeyError as e:
        levels = ", ".join(i.name.lower() for i in Isolation)
        raise UsageError(
            f"{ENVIRONMENT_VARIABLE}={name!r} is no level of isolation; use one of {levels}"
        ) from e


def shared_sandbox() -> Sandbox:
    """The sandbox of this process, at the level that the environment asks for."""
    return _shared(required_isolation())


@functools.cache
def _shared(minimum: Isolation) -> Sandbox:
    return Sandbox(minimum=minimum)


def _times(limits: Limits, body: dict[str, Any]) -> dict[str, Any]:
    """What all calls or inputs of one program may take together, in seconds."""
    cases = len(body.get("cases", ()))
    total = min(_MAX_TOTAL_S, limits.wall_s * max(1, cases))
    return {"total_s": total, "total_cpu_s": min(math.ceil(_MAX_TOTAL_S), limits.cpu_s * max(3, cases))}


def _result(answer: dict[str, Any], isolation: Isolation) -> SandboxResult:
    return SandboxResult(
        status=Status(answer["status"]),
        reason=str(answer["reason"]),
        passed=int(answer.get("passed", 0)),
        tests=int(answer.get("of", 0)),
        stdout=str(answer.get("stdout", "")),
        stderr=str(answer.get("stderr", "")),
        isolation=isolation,
    )

"""What isolates is found by trying; less than required is refused; the filter has the kernel's numbers."""

import re
import sys
from pathlib import Path

import pytest

from equipoise.evals.errors import UsageError
from equipoise.tasks.sandbox import server
from equipoise.tasks.sandbox.inside import seccomp
from equipoise.tasks.sandbox.sandbox import Sandbox, required_isolation
from equipoise.tasks.sandbox.types import Code, Isolation, Limits, Probe


def test_weak_isolation_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    off = dict.fromkeys(server.LAYERS, "off")
    weak = Sandbox(without=off)
    with pytest.raises(UsageError, match=r"no seccomp: off.*EQUIPOISE_SANDBOX=limits"):
        weak.run(Code(code="", tests=()))
    weak.close()
    allowed = Sandbox(without=off, minimum=Isolation.LIMITS)
    assert allowed.run(Code(code="", tests=())).isolation is Isolation.LIMITS
    allowed.close()
    monkeypatch.setenv("EQUIPOISE_SANDBOX", "Full")
    assert required_isolation() is Isolation.FULL
    monkeypatch.setenv("EQUIPOISE_SANDBOX", "none")
    with pytest.raises(UsageError, match=r"EQUIPOISE_SANDBOX='none'.*limits, partial, full"):
        required_isolation()


@pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")
@pytest.mark.parametrize(
    ("without", "level"),
    [
        (("landlock",), Isolation.FULL),
        (("namespaces",), Isolation.PARTIAL),
        (("namespaces", "landlock"), Isolation.PARTIAL),
        (("seccomp",), Isolation.PARTIAL),
        (("seccomp", "namespaces"), Isolation.LIMITS),
    ],
)
def test_the_level_follows_from_the_layers(without: tuple[str, ...], level: Isolation) -> None:
    best = Sandbox(minimum=Isolation.LIMITS)
    missing = best.probe().missing
    best.close()
    if {"namespaces", "landlock", "seccomp"} & set(missing):
        pytest.skip(f"this machine lacks {', '.join(missing)}")
    found = Sandbox(without=dict.fromkeys(without, "off"), minimum=Isolation.LIMITS)
    probe = found.probe()
    assert probe.isolation is level
    assert all(f"no {name}: off" in str(probe) for name in without)
    assert found.run(Code(code="def f(): return 1", tests=("assert f() == 1",)), Limits(cpu_s=1)).ok
    found.close()


def test_a_probe_says_what_is_missing() -> None:
    probe = Probe(isolation=Isolation.PARTIAL, missing={"namespaces": "not allowed"})
    assert str(probe) == "partial; no namespaces: not allowed"


@pytest.mark.parametrize(
    ("machine", "header", "pattern"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(\w+) (\d+)"),
        ("aarch64", "/usr/include/asm-generic/unistd.h", r"#define __NR(?:3264)?_(\w+)\s+(\d+)"),
    ],
)
def test_system_calls_have_the_kernels_numbers(machine: str, header: str, pattern: str) -> None:
    if not Path(header).is_file():
        pytest.skip(f"{header} is not installed")
    known = {name: int(number) for name, number in re.findall(pattern, Path(header).read_text())}
    known.setdefault("newfstatat", known.get("fstatat", -1))
    column = list(seccomp.ARCHITECTURES).index(machine)
    wrong = {
        n: v[column]
        for n, v in seccomp.SYSCALLS.items()
        if v[column] is not None and known.get(n) != v[column]
    }
    assert not wrong


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("writable", [True, False])
def test_a_filter_is_within_what_the_kernel_takes(machine: str, writable: bool) -> None:
    program = seccomp.build(machine, pid=7, writable=writable)
    assert len(program) % 8 == 0
    assert len(program) // 8 <= 4096


def test_an_unknown_architecture_has_no_filter() -> None:
    with pytest.raises(OSError, match="no filter for riscv64"):
        seccomp.build("riscv64", pid=1, writable=False)

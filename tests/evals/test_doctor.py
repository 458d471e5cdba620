"""The doctor says what is broken, with the remedy, and exits by it."""

import os
import stat
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_runs import cli

from equipoise.evals import doctor
from equipoise.evals.doctor import Check, examine


@pytest.fixture(autouse=True)
def _healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nothing is broken, whatever this one is."""
    monkeypatch.setenv("EQUIPOISE_SGLANG_PYTHON", str(python(tmp_path, 'echo \'{"sglang": "0.5.23"}\'')))
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not (Path(p) / "kernels").exists()])
    memory(monkeypatch, free_gib=16)


def python(folder: Path, script: str) -> Path:
    """An executable in the place of the server's Python."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def memory(monkeypatch: pytest.MonkeyPatch, *, free_gib: float) -> None:
    found = SimpleNamespace(total=24 * 2**30, available=int(free_gib * 2**30))
    monkeypatch.setattr(doctor.psutil, "virtual_memory", lambda: found)


def failing(what: str) -> str:
    """The only failed check must be ``what``; its words and remedy. The command exits 1 and shows both."""
    checks = examine(Path(os.environ["EQUIPOISE_SGLANG_PYTHON"]))
    assert [c.what for c in checks if c.ok is False] == [what]
    (check,) = [c for c in checks if c.what == what]
    return shown(check)


def shown(check: Check) -> str:
    assert check.remedy
    result = cli("doctor")
    assert result.exit_code == 1
    flat = " ".join(result.stdout.split())
    assert f"FAIL {check.what}: {' '.join(check.found.split())}" in flat
    assert f"-> {check.remedy}" in flat
    return f"{check.found} -> {check.remedy}"


def test_a_healthy_machine_exits_0() -> None:
    result = cli("doctor")
    assert result.exit_code == 0, result.stdout
    assert "FAIL" not in result.stdout
    assert "sglang: 0.5.23" in result.stdout


def test_a_missing_core_package_names_it_and_make_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "scipy":
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(doctor, "version", version)
    assert failing("core packages") == "scipy is missing -> make setup"


def test_too_little_memory_says_how_much_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, free_gib=1)
    assert failing("cores and memory").endswith("1 of 24 GiB free -> free 3 GiB")


def test_memory_for_some_servers_is_a_note_that_names_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, free_gib=7)
    result = cli("doctor")
    assert result.exit_code == 0
    assert "2 CPU servers fit at once" in " ".join(result.stdout.split())
    assert "--servers one-by-one" in " ".join(result.stdout.split())


def test_a_broken_driver_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpu").mkdir()
    smi = python(tmp_path / "gpu", "exit 9")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: str(smi) if name == "nvidia-smi" else None)
    assert failing("NVIDIA GPU").endswith("-> check the driver")


def test_a_gpu_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpu").mkdir()
    smi = python(tmp_path / "gpu", "echo 'NVIDIA H200, 143771 MiB'")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: str(smi) if name == "nvidia-smi" else None)
    result = cli("doctor")
    assert (result.exit_code, "H200" in result.stdout) == (0, True)


def test_a_server_environment_that_is_not_there_names_make_setup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUIPOISE_SGLANG_PYTHON", str(tmp_path / "gone"))
    result = cli("doctor")
    assert result.exit_code == 1
    flat = " ".join(result.stdout.split())
    assert f"FAIL SGLang server: EQUIPOISE_SGLANG_PYTHON is {tmp_path / 'gone'}" in flat.replace("- ", "-")
    assert "-> make setup" in flat


def test_a_server_environment_without_sglang_shows_why(tmp_path: Path) -> None:
    python(tmp_path, "echo 'PackageNotFoundError: sglang' >&2; exit 1")
    assert failing("SGLang server").endswith("PackageNotFoundError: sglang -> make setup")


def test_the_checkout_on_the_import_path_names_the_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "formats.py").touch()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert f"take {tmp_path} off PYTHONPATH" in failing("import paths")


def test_a_data_directory_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "nowhere"))
    assert failing("offline data") == (
        f"{tmp_path / 'nowhere'} is not a directory -> point EQUIPOISE_DATA at a directory"
    )


def test_no_data_directory_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EQUIPOISE_DATA")
    result = cli("doctor")
    assert result.exit_code == 0
    assert "note offline data: EQUIPOISE_DATA is not set" in result.stdout

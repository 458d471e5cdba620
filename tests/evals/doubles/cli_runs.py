"""The command line in tests: plans in TOML, recorded runs to replay, calls and what they leave behind."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from equipoise.evals.cli import main
from equipoise.evals.journal import Journal
from equipoise.evals.types import Output, Sample, SampleKey
from equipoise.tasks.registry import TASKS

__all__ = [
    "ROLES",
    "cli",
    "error_of",
    "plan_file",
    "record_run",
    "replay_arms",
    "rows",
    "start_cli",
    "url_arms",
    "wait_for_rows",
]

ROLES = {
    "A1": "baseline",
    "A2": "baseline_repeat",
    "B": "candidate",
    "P": "gross_control",
    "M": "mild_control",
}
Row = tuple[str, str, str, str, int]


def cli(*args: str | Path) -> Result:
    """Call the command line in this process; a bug of ours shows as its traceback."""
    result = CliRunner().invoke(main, [str(a) for a in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def error_of(result: Result | subprocess.CompletedProcess[str], *, code: int) -> str:
    """The one line of error that the call must have ended with."""
    got = result.exit_code if isinstance(result, Result) else result.returncode
    assert got == code, f"exit code {got}, not {code}: {result.stderr}"
    lines = result.stderr.rstrip("\n").splitlines()
    assert [i for i, line in enumerate(lines) if line.startswith("error: ")] == [len(lines) - 1], lines
    return lines[-1].removeprefix("error: ")


# -- plans -----------------------------------------------------------------------------------


def plan_file(
    path: Path,
    arms: Sequence[Mapping[str, str]],
    tasks: Sequence[Mapping[str, Any]],
    *,
    model_path: str = "endpoint",
    **sections: Mapping[str, Any],
) -> Path:
    """Write a plan; ``sections`` adds to [decision], [runner] and [seeds]."""
    decision = {"suite_margin": 0.05, "min_joint_power": 0.0, **sections.pop("decision", {})}
    lines = ["schema_version = 1", f'name = "{path.stem}"']
    for name, section in {"decision": decision, **sections}.items():
        lines += ["", f"[{name}]", *_values(section)]
    for table, entries in {
        "models": [{"name": "m", "path": model_path}],
        "arms": arms,
        "tasks": tasks,
    }.items():
        for entry in entries:
            lines += ["", f"[[{table}]]", *_values(entry)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _values(section: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {json.dumps(value)}" for key, value in section.items()]


def url_arms(**urls: str) -> list[dict[str, str]]:
    """Arms by name, each at its URL."""
    return [{"name": name, "role": ROLES[name], "url": url} for name, url in urls.items()]


def replay_arms(directory: Path, names: Sequence[str]) -> list[dict[str, str]]:
    """Arms that a recorded run answers for."""
    return [{"name": name, "role": ROLES[name], "replay": str(directory)} for name in names]


# -- recorded runs ---------------------------------------------------------------------------


def record_run(
    directory: Path,
    items: Mapping[str, int],
    right: Callable[[str, str, int], bool],
    *,
    seed: int = 1,
    repeats: int = 1,
) -> list[dict[str, str]]:
    """A run directory whose journal holds answers of every arm to single-turn tasks; arms that replay it.

    Parameters
    ----------
    items : mapping
        How many items of each task.
    right : callable
        Whether (arm, task, number of the answer) is right; answers are numbered item by item.
    """
    directory.mkdir()
    journal = Journal.create(
        directory / "journal.sqlite", plan_hash="recorded", plan_text="{}", provenance={}
    )
    with journal:
        for task, n in items.items():
            for index, item in enumerate(TASKS[task].items(n, seed)):
                for arm, k in product(ROLES, range(repeats)):
                    good = right(arm, task, index * repeats + k)
                    text = item.target if good else f"not {item.target}"
                    output = Output(
                        text=text,
                        finish_reason="stop",
                        prompt_tokens=9,
                        completion_tokens=len(text),
                        latency_s=0.01,
                    )
                    key = SampleKey(model="m", arm=arm, task=task, item_id=item.id, repeat=k)
                    journal.put(
                        Sample(
                            key=key,
                            content_hash=item.content_hash,
                            outputs=(output,),
                            attempts=1,
                            started_unix_s=1.0,
                            latency_s=0.01,
                        )
                    )
    return replay_arms(directory, list(ROLES))


# -- processes -------------------------------------------------------------------------------

_SLOW_REPLAY = """
import asyncio
from equipoise.evals.backends.replay import Replay
from equipoise.evals.cli import main
complete = Replay.complete
async def slow(self, key, request):
    await asyncio.sleep({delay_s})
    return await complete(self, key, request)
Replay.complete = slow
main(prog_name="equipoise")
"""


def start_cli(*args: str | Path, replay_delay_s: float | None = None) -> subprocess.Popen[str]:
    """Start the command line as a process of its own, on request with a slow replay backend."""
    program = ["-m", "equipoise.evals.cli"]
    if replay_delay_s is not None:
        program = ["-c", _SLOW_REPLAY.format(delay_s=replay_delay_s)]
    return subprocess.Popen(
        [sys.executable, "-P", *program, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "100"},
    )


def rows(directory: Path) -> dict[Row, bytes]:
    """Every row of a run's journal, as its key and its bytes; a key that is there twice fails."""
    found: dict[Row, bytes] = {}
    db = sqlite3.connect(f"{(directory / 'journal.sqlite').resolve().as_uri()}?mode=ro", uri=True)
    try:
        for *key, body in db.execute("SELECT model, arm, task, item_id, repeat, body FROM samples"):
            assert tuple(key) not in found, key
            found[tuple(key)] = body.encode()  # type: ignore[index]
    finally:
        db.close()
    return found


def wait_for_rows(
    process: subprocess.Popen[str], directory: Path, count: int, *, timeout_s: float = 60.0
) -> None:
    """Return when the run's journal holds ``count`` rows; fail if the process ends before that."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            out, err = process.communicate()
            raise AssertionError(f"the run ended with {process.returncode} too early:\n{out}\n{err}")
        if (directory / "journal.sqlite").exists() and len(rows(directory)) >= count:
            return
        time.sleep(0.02)
    raise AssertionError(f"{directory} has no {count} rows after {timeout_s} s")

"""One run on the real server, cut short in every way; and a server that cannot start.

The steps of the first test build on one another, so that a server is started only six times.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import psutil
import pytest
from cli_runs import Row, cli, error_of, plan_file, rows, start_cli, wait_for_rows

from equipoise.evals.journal import Journal
from equipoise.reports import json as json_report

pytestmark = [pytest.mark.server, pytest.mark.timeout(1200)]

ARMS = [
    {"name": "A1", "role": "baseline", "variant": "bf16"},
    {"name": "A2", "role": "baseline_repeat", "variant": "bf16"},
    {"name": "B", "role": "candidate", "variant": "fp8_e4m3"},
    {"name": "P", "role": "gross_control", "variant": "control-int4-tensor"},
]
ITEMS = {"copy": 24, "dialog_recall": 12, "logprob": 6}
TASKS = [
    {"name": "copy", "critical": True, "items": ITEMS["copy"], "margin": 0.05},
    {"name": "dialog_recall", "items": ITEMS["dialog_recall"], "margin": 0.05},
    {"name": "logprob", "items": ITEMS["logprob"], "margin_nats": 0.01},
]
A_GROUP = 2 * sum(ITEMS.values())
PLANNED = 4 * sum(ITEMS.values())
START_S = 300  # on a busy machine
GONE_S = 20


def plan(path: Path, model: str) -> Path:
    return plan_file(path, ARMS, TASKS, model_path=model, runner={"concurrency": 4, "context_tokens": 1024})


def servers_of(model: str) -> list[psutil.Process]:
    """Every process of a server of this model (its guard and SGLang's own children included)."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(f"--model-path={model}" in arg for arg in process.cmdline()):
                found += [process, *process.children(recursive=True)]
        except psutil.Error:
            continue
    return [p for p in dict.fromkeys(found) if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def eventually(what: Callable[[], bool], timeout_s: float, message: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, message
        time.sleep(0.1)


def nothing_left(processes: list[psutil.Process], ports: list[int]) -> None:
    """These are gone within seconds, and so is whoever listened on their ports."""

    def living() -> list[psutil.Process]:
        return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    assert processes
    eventually(lambda: not living(), GONE_S, f"still there: {processes}")
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0, f"something still listens on {port}"


def ports_of(processes: list[psutil.Process]) -> list[int]:
    given = [re.search(r"--port=(\d+)", " ".join(p.cmdline())) for p in processes]
    found = sorted({int(m.group(1)) for m in given if m})
    assert found
    return found


def of_arm(found: dict[Row, bytes], arm: str) -> int:
    return sum(key[1] == arm for key in found)


def ended(process: subprocess.Popen[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    out, err = process.communicate(timeout=timeout_s)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def unchanged(before: dict[Row, bytes], after: dict[Row, bytes]) -> None:
    """Answered rows, byte for byte; a failed one may have been replaced."""
    answered = {key: body for key, body in before.items() if b'"error":' not in body}
    assert answered
    assert {key: after.get(key) for key in answered} == answered


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A copy of the GLM-shaped model at a place of its own, by which its servers are known."""
    shutil.copytree(str(files("equipoise.tasks.embedded") / "glm_tiny"), tmp_path / "model")
    return str((tmp_path / "model").resolve())


def test_a_run_survives_ctrl_c_kill_9_and_a_dead_server_and_ends_with_a_verdict(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, out = plan(tmp_path / "p.toml", model), tmp_path / "out"
    args = ("run", path, "--out", out, "--device", "cpu", "--servers")

    # 1. Ctrl-C while the first server starts.
    process = start_cli(*args, "one-by-one")
    eventually(lambda: len(servers_of(model)) >= 2, START_S, "no server was started")
    up = servers_of(model)
    ports = ports_of(up)
    process.send_signal(signal.SIGINT)
    stopped = ended(process, 60)
    assert stopped.returncode == 130, stopped.stderr
    assert "interrupted" in stopped.stderr
    assert "--resume" in stopped.stderr
    nothing_left(up, ports)
    assert servers_of(model) == []
    assert rows(out) == {}

    # 2. Kill -9 in mid-run: the servers go with the runner.
    process = start_cli(*args, "one-by-one", "--resume")
    wait_for_rows(process, out, 6, timeout_s=START_S)
    up = servers_of(model)
    ports = ports_of(up)
    os.kill(process.pid, signal.SIGKILL)
    ended(process, 60)
    nothing_left(up, ports)
    killed = rows(out)
    assert 6 <= len(killed) < A_GROUP

    # 3. A server that dies in mid-run ends the run with the end of its log.
    process = start_cli(*args, "one-by-one", "--resume")
    wait_for_rows(process, out, A_GROUP + 4, timeout_s=2 * START_S)
    up = servers_of(model)
    victims = [p for p in up if "--kv-cache-dtype=fp8_e4m3" in p.cmdline()]
    ports = ports_of(victims)
    for victim in victims:
        if "server_guard.py" not in " ".join(victim.cmdline()):
            victim.kill()
    stopped = ended(process, 120)
    assert stopped.returncode == 4, stopped.stderr
    error, *log_tail = stopped.stderr[stopped.stderr.index("error: ") :].splitlines()
    assert "the server m@fp8_e4m3 died in mid-run" in error
    assert "--resume" in error
    assert str(out / "logs" / "m@fp8_e4m3.log") in error
    assert len(log_tail) >= 5
    written = (out / "logs" / "m@fp8_e4m3.log").read_text()
    assert all(line.strip() in written for line in log_tail)
    nothing_left(up, ports)
    halted = rows(out)
    unchanged(killed, halted)
    assert (of_arm(halted, "A1"), of_arm(halted, "A2")) == (A_GROUP // 2, A_GROUP // 2)
    assert 4 <= of_arm(halted, "B") < PLANNED // 4
    assert not list(out.glob("report.*"))
    assert cli("report", out).exit_code == 4

    # 4. The rest, both remaining servers together; the baseline's is not needed again.
    result = cli(*args, "together", "--resume")
    report = json_report.load((out / "report.json").read_text())
    assert (report.run.state, report.run.exit_code) == ("final", result.exit_code), result.stderr
    assert report.run.verdict in ("INCONCLUSIVE", "INVALID", "DEGRADED")  # 24 items sign nothing off
    assert servers_of(model) == []
    final = rows(out)
    unchanged(halted, final)
    assert len(final) == PLANNED
    assert not [key for key, body in final.items() if b'"error":' in body]

    # What the servers said about themselves, and what the answers show.
    with Journal.read(out / "journal.sqlite") as journal:
        records = [value for _, _, value in journal.records("servers")]
        samples = list(journal.samples())
    arms = records[-1]["arms"]
    stored = {name: arm["server"]["kv_cache_dtype"] for name, arm in arms.items()}
    assert stored == {"A1": "bf16", "A2": "bf16", "B": "fp8_e4m3", "P": "bf16"}
    assert {name: arm["control"] for name, arm in arms.items() if arm["control"]} == {"P": "int4-tensor"}
    assert "+kv-control=int4-tensor" in arms["P"]["server"]["served_model_name"]
    assert "KV CONTROL" in (out / "logs" / "m@control-int4-tensor.log").read_text()
    assert "KV CONTROL" not in (out / "logs" / "m@bf16.log").read_text()
    shown = {a.name: (a.kv_cache_dtype, a.control) for a in report.provenance.arms}
    assert shown["B"] == ("fp8_e4m3", "")
    assert shown["P"] == ("bf16", "int4-tensor")
    assert [d.fact for d in report.provenance.parity_differences] == ["kv_cache_dtype of B"]

    (row,) = report.models[0].logprobs
    assert (row.cache_read, row.sequences) == (True, ITEMS["logprob"])
    assert row.delta_nll_nats not in (None, 0.0)  # FP8 is not BF16 under another name
    assert row.noise_nats is not None
    assert row.noise_nats < 0.01
    assert row.kl is not None
    assert row.kl.noise_nats is not None
    assert row.kl.kl_nats is not None
    assert (row.kl.tokens, row.kl.tokens_without_lists) == (row.tokens, 0)
    assert row.kl.noise_nats < row.kl.kl_nats
    assert 0.0 < row.kl.truncated_baseline_mean < 1e-3
    answers = {
        (s.key.arm, s.key.item_id): [o.text for o in s.outputs] for s in samples if s.key.task != "logprob"
    }
    items = {item for arm, item in answers if arm == "A1"}
    assert sum(answers["A1", i] != answers["A2", i] for i in items) <= 2
    assert sum(answers["A1", i] != answers["P", i] for i in items) >= 3
    assert max(len(texts) for texts in answers.values()) == 3  # conversations had all their turns

    again = cli("report", out, "--format", "json")
    assert (again.exit_code, again.stdout) == (result.exit_code, (out / "report.json").read_text())
    assert error_of(cli(*args, "together"), code=4).count("--resume") == 1


def test_a_server_that_dies_in_start_up_shows_the_end_of_its_log(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = Path(model) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "no_such_model"}))
    result = cli(
        "run", plan(tmp_path / "p.toml", model), "--out", "out", "--device", "cpu", "--servers", "one-by-one"
    )
    assert result.exit_code == 4
    error, *log_tail = result.stderr[result.stderr.index("error: ") :].splitlines()
    assert re.search(r"m@bf16 ended with code \d+ while starting", error)
    assert "out/logs/m@bf16.log" in error
    assert any("no_such_model" in line for line in log_tail)
    assert not list(Path("out").glob("report.*"))
    assert rows(Path("out")) == {}
    assert servers_of(model) == []

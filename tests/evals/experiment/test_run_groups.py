"""Which servers run at the same time, and which a resumed run leaves alone."""

from pathlib import Path

import pytest
from cli_runs import cli, error_of, plan_file, rows
from run_doubles import output
from servers_in_place import ServersInPlace

from equipoise.evals.errors import ServerError
from equipoise.evals.experiment import run
from equipoise.evals.types import Output, Request, SampleKey

ARMS = [
    {"name": "A1", "role": "baseline", "variant": "bf16"},
    {"name": "A2", "role": "baseline_repeat", "variant": "bf16"},
    {"name": "B", "role": "candidate", "variant": "fp8_e4m3"},
    {"name": "P", "role": "gross_control", "variant": "control-int4-tensor"},
]
TASKS = [{"name": "copy", "critical": True, "items": 20, "margin": 0.1}]
EACH = [["A1", "A2"], ["B"], ["P"]]


class Servers(ServersInPlace):
    """An arm can be made to die."""

    def __init__(self) -> None:
        super().__init__()
        self.dying = ""
        self.fit = 9

    def answer(self, key: SampleKey, request: Request, number: int) -> Output:
        if key.arm == self.dying and key.item_id.endswith("9"):
            raise ServerError(f"the server of {key.arm} died")
        return output("x")


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Servers:
    servers = Servers()
    servers.install(tmp_path, monkeypatch)
    monkeypatch.setattr(run, "servers_that_fit", lambda wanted: min(wanted, servers.fit))
    plan_file(tmp_path / "p.toml", ARMS, TASKS, model_path="model", runner={"concurrency": 1})
    return servers


@pytest.mark.parametrize(
    ("flags", "fit", "expected"),
    [
        (["--servers", "together"], 1, [["A1", "A2", "B", "P"]]),
        (["--servers", "one-by-one"], 9, EACH),
        (["--servers", "auto"], 3, [["A1", "A2", "B", "P"]]),
        (["--servers", "auto"], 2, EACH),
    ],
)
def test_servers_run_together_where_memory_allows_or_as_told(
    servers: Servers, flags: list[str], fit: int, expected: list[list[str]]
) -> None:
    servers.fit = fit
    cli("run", "p.toml", "--out", "out", "--device", "cpu", *flags)
    assert servers.up == expected
    assert len(rows(Path("out"))) == 80


@pytest.mark.parametrize(
    ("flag", "expected"),
    [("one-by-one", [["B"], ["P"]]), ("together", [["B", "P"]])],
)
def test_a_resumed_run_starts_no_server_that_has_answered_everything(
    servers: Servers, flag: str, expected: list[list[str]]
) -> None:
    servers.dying = "B"
    args = ("run", "p.toml", "--out", "out", "--device", "cpu")
    error = error_of(cli(*args, "--servers", "one-by-one"), code=4)
    assert error == "the server of B died"
    before = rows(Path("out"))
    assert {key[1] for key in before} == {"A1", "A2", "B"}
    servers.up.clear()
    servers.dying = ""
    cli(*args, "--resume", "--servers", flag)
    assert servers.up == expected
    after = rows(Path("out"))
    assert len(after) == 80
    assert {key: after[key] for key in before} == before

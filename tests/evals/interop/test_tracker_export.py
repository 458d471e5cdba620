"""`equipoise export --format mlflow | wandb | trackio`: what a tracker is told, and what it is not."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from cli_runs import cli, error_of, plan_file, record_run
from fake_sglang import share

from equipoise.evals.experiment.export_trackers import TRACKERS, tracked_run
from equipoise.evals.interop.tracked_run import metric_names
from equipoise.reports import json as json_report
from equipoise.reports.model import Report

SECRET = "hunter2-hunter2"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    rates = {"A1": 0.1, "A2": 0.1, "B": 0.11, "P": 0.6, "M": 0.2}
    arms = record_run(
        root / "recorded", {"copy": 300}, lambda arm, task, i: not share(rates[arm], task)(str(i))
    )
    tasks = [{"name": "copy", "critical": True, "items": 300, "margin": 0.1}]
    plan = plan_file(root / "p.toml", arms, tasks, decision={"suite_margin": 0.1})
    assert cli("run", plan, "--out", root / "out").exit_code == 0
    return root / "out"


@pytest.fixture(scope="module")
def report(run: Path) -> Report:
    return json_report.load((run / "report.json").read_text())


def test_numbers_are_those_of_the_report(report: Report) -> None:
    tracked = tracked_run(report)
    row, pooled = report.models[0].rows
    assert row.interval is not None
    expected = {
        "exit_code": report.run.exit_code,
        "m/copy/accuracy_baseline": row.accuracy_baseline,
        "m/copy/accuracy_candidate": row.accuracy_candidate,
        "m/copy/delta": row.delta,
        "m/copy/delta_lower": row.interval.lo,
        "m/copy/delta_upper": row.interval.hi,
        "m/pooled_mean/delta": pooled.delta,
        "m/gross_control/caught": 1.0,
    }
    assert {name: tracked.metrics[name] for name in expected} == expected
    assert tracked.tags["verdict"] == report.run.verdict
    assert tracked.tags["verdict.m.copy"] == row.verdict
    assert tracked.params["margin_points.m.copy"] == "10.00"
    assert tracked.params["plan_hash"] == report.run.plan_hash
    assert json_report.load(tracked.files["report.json"]) == report
    assert tracked.run_id == tracked_run(report).run_id


def _with_secrets(report: Report) -> Report:
    """The report with a secret in every kind of place that could carry one."""
    arm = dataclasses.replace(
        report.provenance.arms[0],
        url=f"https://user:{SECRET}@host:30000/v1",
        server_command=("python", "-m", "server", "--api-key", SECRET),
        variant=f"http://me:{SECRET}@host",
    )
    return dataclasses.replace(
        report,
        run=dataclasses.replace(report.run, reasons=(f"401 of https://u:{SECRET}@host",)),
        provenance=dataclasses.replace(
            report.provenance,
            arms=(arm,),
            command=f"equipoise run p --admin-api-key={SECRET}",
            models={"m": f"said: {SECRET}"},
        ),
    )


def test_no_secret_goes_out(report: Report) -> None:
    tracked = tracked_run(_with_secrets(report), secrets=[SECRET])
    assert SECRET not in json.dumps(dataclasses.asdict(tracked))
    flags_and_urls = tracked_run(_with_secrets(report))
    assert [v for v in flags_and_urls.params.values() if SECRET in v] == [f"said: {SECRET}"]


def test_short_values_of_key_variables_do_not_blank_out_words(report: Report) -> None:
    assert tracked_run(report, secrets=["", "m", "copy"]) == tracked_run(report)


@pytest.mark.parametrize(
    "text", ["\x1b[31m", "\u202e", "\ud800", "a\0b", "<script>", "x" * 100_000, "a\nb", "🙂" * 900]
)
def test_hostile_text_is_one_short_line(report: Report, text: str) -> None:
    arm = dataclasses.replace(report.provenance.arms[0], name=text, variant=text, kv_cache_dtype=text)
    row = dataclasses.replace(report.models[0].tasks[0], task=text)
    changed = dataclasses.replace(
        report,
        models=(dataclasses.replace(report.models[0], name=text, tasks=(row,)),),
        run=dataclasses.replace(report.run, plan_name=text, run_id=text),
        provenance=dataclasses.replace(report.provenance, arms=(arm,), versions={text: text}),
    )
    tracked = tracked_run(changed)
    for name, value in [*tracked.params.items(), *tracked.tags.items(), ("name", tracked.name)]:
        assert name.isascii() and name.isprintable() and len(name) <= 200
        assert value.isprintable() and len(value) <= 500 and value.encode()
    assert all(n.isascii() and n.isprintable() and len(n) <= 250 for n in tracked.metrics)
    assert len(tracked.metrics) == len(tracked_run(report).metrics)
    assert tracked.run_id.isalnum()


def test_metric_names_are_legal_and_never_shared() -> None:
    names = metric_names(
        [("a:b", 1.0), ("a;b", 2.0), ("a_b", 3.0), ("x", None), ("y", float("nan")), ("", 4.0)]
    )
    assert sorted(names.values()) == [1.0, 2.0, 3.0, 4.0]
    assert names["a_b"] == 1.0


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_missing_package_is_named_with_its_remedy(
    run: Path, tracker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, tracker, None)
    said = error_of(cli("export", run, "--format", tracker), code=2)
    assert f"{tracker} is not installed: pip install 'equipoise[{tracker}]'" in said


# -- with clients that only note what they are told


class Recorder:
    """Any method call is noted; what a test needs to come back is given."""

    def __init__(self, **answers: Any) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._answers = answers

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            answer = self._answers.get(name)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    def told(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, kwargs) for called, args, kwargs in self.calls if called == name]


class Refused(Exception):
    pass


def _mlflow(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> Recorder:
    info = SimpleNamespace(info=SimpleNamespace(run_id="r1"))
    client = Recorder(
        **{
            "get_experiment_by_name": SimpleNamespace(experiment_id="7"),
            "search_runs": [],
            "create_run": info,
        }
        | answers
    )
    module = ModuleType("mlflow")
    module.__dict__.update(
        MlflowClient=lambda tracking_uri: client,
        exceptions=SimpleNamespace(MlflowException=Refused),
        entities=SimpleNamespace(Metric=lambda *a: a, Param=lambda *a: a),
    )
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return client


def test_mlflow_is_told_everything_then_that_it_is_finished(
    run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client = _mlflow(monkeypatch)
    result = cli("export", run, "--format", "mlflow", "--out", tmp_path)
    assert result.exit_code == 0, result.stderr
    assert "MLflow experiment equipoise, run r1" in result.stdout
    metrics = {m[0]: m[1] for _, kwargs in client.told("log_batch") for m in kwargs["metrics"]}
    assert metrics["exit_code"] == 0
    assert {args[2] for args, _ in client.told("log_text")} == {"report.html", "report.json", "report.md"}
    assert client.calls[-1][0] == "set_terminated"
    assert client.calls[-1][2]["status"] == "FINISHED"


def test_mlflow_run_that_broke_off_is_failed_and_the_older_one_stays(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = SimpleNamespace(info=SimpleNamespace(run_id="old"))
    client = _mlflow(
        monkeypatch, search_runs=[old], log_text=Refused(f"disk of http://u:{SECRET}@h full\nmore")
    )
    said = error_of(cli("export", run, "--format", "mlflow", "--force"), code=2)
    assert said == "MLflow: disk of http://***@h full"
    assert client.calls[-1][2]["status"] == "FAILED"
    assert not client.told("delete_run")


def test_mlflow_run_is_not_logged_twice_unasked(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(info=SimpleNamespace(run_id="old"))
    client = _mlflow(monkeypatch, search_runs=[old])
    assert "replace it with --force" in error_of(cli("export", run, "--format", "mlflow"), code=2)
    assert not client.told("create_run")
    assert cli("export", run, "--format", "mlflow", "--force").exit_code == 0
    assert client.told("delete_run") == [(("old",), {})]


def test_wandb_gets_nothing_about_this_machine(
    run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    logged = Recorder()
    files: dict[str, Path] = {}

    def new_file(name: str, **kwargs: Any) -> Any:
        files[name] = tmp_path / name
        return files[name].open(**kwargs)

    class Settings(SimpleNamespace):
        model_fields = ("console", "disable_git", "x_disable_meta", "save_code")

    module = Recorder(init=logged)
    fake = ModuleType("wandb")
    fake.__dict__.update(
        init=module.init,
        Settings=Settings,
        Artifact=lambda *a, **k: SimpleNamespace(new_file=new_file),
        Error=Refused,
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)
    result = cli("export", run, "--format", "wandb", "--out", tmp_path / "w", "--project", "p")
    assert result.exit_code == 0, result.stderr
    ((_, given),) = module.told("init")
    assert (given["project"], given["mode"], given["resume"]) == ("p", "offline", "never")
    assert given["settings"] == Settings(
        console="off", disable_git=True, x_disable_meta=True, save_code=False
    )
    assert given["tags"] == ["SIGNED OFF"]
    assert logged.told("log")[0][0][0]["m/copy/margin"] == 0.1
    assert logged.told("finish") == [((), {"exit_code": 0})]
    assert json_report.load(files["report.json"].read_text()).run.verdict == "SIGNED OFF"


def test_trackio_is_told_everything(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Recorder()
    fake = ModuleType("trackio")
    artifact = Recorder()
    earlier = Recorder()
    earlier.__dict__["name"] = run.name
    known: list[Any] = []

    def runs(project: str) -> list[Any]:
        if not known:
            raise ValueError(f"Project {project!r} does not exist")
        return known

    fake.__dict__.update(
        {name: getattr(told, name) for name in ("init", "log", "log_artifact", "finish")},
        Api=lambda: SimpleNamespace(runs=runs),
        Artifact=lambda *a, **k: artifact,
    )
    monkeypatch.setitem(sys.modules, "trackio", fake)
    assert cli("export", run, "--format", "trackio").exit_code == 0
    assert [name for name, *_ in told.calls] == ["init", "log", "log_artifact", "finish"]
    assert told.calls[0][2]["name"] == run.name
    assert told.calls[1][1][0]["exit_code"] == 0
    assert [Path(args[0]).name for args, _ in artifact.told("add_file")] == [
        "report.html",
        "report.json",
        "report.md",
    ]
    known.append(earlier)
    assert "replace it with --force" in error_of(cli("export", run, "--format", "trackio"), code=2)
    assert cli("export", run, "--format", "trackio", "--force").exit_code == 0
    assert earlier.told("delete")


# -- with the packages themselves, each in a process of its own, without a network


@pytest.mark.parametrize("tracker", TRACKERS)
def test_the_package_keeps_the_run_in_a_folder(run: Path, tmp_path: Path, tracker: str) -> None:
    pytest.importorskip(tracker, reason=f"{tracker} is not installed: pip install 'equipoise[{tracker}]'")

    def export(*more: str) -> subprocess.CompletedProcess[str]:
        command = [
            "-m",
            "equipoise.evals.cli",
            "export",
            str(run),
            "--format",
            tracker,
            "--out",
            str(tmp_path),
        ]
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "WANDB", "TRACKIO"))
        }
        return subprocess.run(
            [sys.executable, "-P", *command, *more],
            env=environment | {"HOME": str(tmp_path), "WANDB_API_KEY": "k" * 40},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    done = export()
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("logged to ")
    stored = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and "logs" not in p.parts)
    for expected in (b"m/copy/delta_lower", b"SIGNED OFF", b"margin_points"):
        assert expected in stored
    assert b"k" * 40 not in stored
    assert "with --force" in error_of(export(), code=2)
    again = export("--force")
    assert again.returncode == 0, again.stderr[-2000:]

"""Each bad input ends in one line that names what is wrong and the remedy, and leaves no verdict."""

import json
import os
import shutil
import socket
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runs import cli, error_of, plan_file, record_run, rows, url_arms
from fake_sglang import FakeSglang, serving

from equipoise.evals.plan import hash_of

COPY = {"name": "copy", "critical": True, "items": 4, "margin": 0.1}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs write below the working directory; no server environment is needed to refuse an input."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EQUIPOISE_SGLANG_PYTHON", sys.executable)
    monkeypatch.setenv("COLUMNS", "100")


def no_verdict(directory: Path) -> bool:
    return not list(directory.rglob("report.*"))


def variant_plan(path: Path, model_path: str | Path, *, candidate: str = "fp8_e4m3") -> Path:
    arms = [
        {"name": "A1", "role": "baseline", "variant": "bf16"},
        {"name": "B", "role": "candidate", "variant": candidate},
    ]
    return plan_file(path, arms, [COPY], model_path=str(model_path))


def checkpoint(folder: Path, *, chat_template: bool = True) -> Path:
    """What is looked at before a server is started."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    if chat_template:
        (folder / "chat_template.jinja").write_text("x")
    return folder


def run_fails(plan: Path | str, *, code: int, says: list[str], more: tuple[str, ...] = ()) -> None:
    """The run ends with ``code`` and one line that holds all of ``says``; nothing is decided."""
    message = error_of(cli("run", plan, "--out", "out", *more), code=code)
    for text in says:
        assert text in message
    assert no_verdict(Path("."))


# -- the plan --------------------------------------------------------------------------------


def test_an_unknown_plan_key_is_named_with_file_line_and_nearest_key(tmp_path: Path) -> None:
    plan = plan_file(tmp_path / "p.toml", url_arms(A1="http://h:1", B="http://h:2"), [COPY])
    plan.write_text(plan.read_text().replace("suite_margin", "suite_margni"))
    line = plan.read_text().splitlines().index("suite_margni = 0.05") + 1
    says = [f"{plan}:{line}", "'decision.suite_margni'", "did you mean 'suite_margin'?"]
    run_fails(plan, code=2, says=says)
    assert not Path("out").exists()
    for text in says:
        assert text in error_of(cli("plan", "check", plan), code=2)


def test_an_unknown_task_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    tasks = [COPY | {"name": "cpoy"}]
    plan = plan_file(tmp_path / "p.toml", url_arms(A1="http://h:1", B="http://h:2"), tasks)
    run_fails(plan, code=2, says=["plan 'p'", "unknown task 'cpoy'", "did you mean 'copy'?"])
    assert not Path("out").exists()


def test_an_unknown_plan_name_lists_the_shipped_ones() -> None:
    run_fails("embeded", code=2, says=["no plan 'embeded'", "embedded", "smollm2"])


def test_a_plan_file_that_is_not_there_is_named() -> None:
    run_fails("gone.toml", code=2, says=["gone.toml", "cannot read the plan", "give the path"])


@pytest.mark.parametrize("option", ["--baseline", "--candidate", "--control"])
def test_an_override_that_is_no_variant_lists_the_variants(tmp_path: Path, option: str) -> None:
    arms = [
        {"name": "A1", "role": "baseline", "variant": "bf16"},
        {"name": "B", "role": "candidate", "variant": "fp8_e4m3"},
        {"name": "P", "role": "gross_control", "variant": "control-int4-tensor"},
    ]
    plan = plan_file(tmp_path / "p.toml", arms, [COPY], model_path=str(checkpoint(tmp_path / "model")))
    says = ["'fp8_e4m4'", "fp8_e4m3", "control-int4-token"]
    run_fails(plan, code=2, says=says, more=("--device", "cpu", option, "fp8_e4m4"))
    assert not Path("out").exists()


# -- the model -------------------------------------------------------------------------------


def test_a_missing_model_directory_is_named(tmp_path: Path) -> None:
    plan = variant_plan(tmp_path / "p.toml", "models/nowhere")
    run_fails(plan, code=2, says=["models/nowhere does not exist", "give a checkpoint directory"])


def test_the_prepared_model_names_its_make_target(tmp_path: Path) -> None:
    run_fails(variant_plan(tmp_path / "p.toml", "models/smollm2"), code=2, says=["make smollm2"])


def test_an_unknown_embedded_model_is_named(tmp_path: Path) -> None:
    plan = variant_plan(tmp_path / "p.toml", "embedded:kimi_tyni")
    run_fails(plan, code=2, says=["no embedded model 'kimi_tyni'", "there are:"])


@pytest.mark.parametrize("name", ["../../quant", "..", "/etc"])
def test_an_embedded_model_is_not_a_path_out_of_the_package(tmp_path: Path, name: str) -> None:
    outside = checkpoint(tmp_path / "outside")
    relative = os.path.relpath(outside, Path(__file__).parents[2] / "tasks" / "embedded")
    for path in (name, relative, str(outside)):
        plan = variant_plan(tmp_path / "p.toml", f"embedded:{path}")
        run_fails(plan, code=2, says=["no embedded model"])


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "config.json cannot be read"),
        ({"config.json": "{"}, "config.json cannot be read"),
        ({"config.json": "[]"}, "config.json is not a JSON object"),
        ({"config.json": "{}"}, "no *.safetensors; convert the checkpoint"),
    ],
)
def test_a_directory_that_is_no_checkpoint_says_what_is_missing(
    tmp_path: Path, files: dict[str, str], says: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    run_fails(variant_plan(tmp_path / "p.toml", folder), code=2, says=[str(folder), says])


def test_an_unknown_variant_lists_the_known_ones(tmp_path: Path) -> None:
    plan = variant_plan(tmp_path / "p.toml", checkpoint(tmp_path / "model"), candidate="fp8")
    run_fails(plan, code=2, says=["unknown KV variant 'fp8'", "fp8_e4m3"], more=("--device", "cpu"))


def test_a_layout_that_one_model_of_a_plan_cannot_have_is_refused_before_anything_starts() -> None:
    says = ["model 'glm-tiny', arm 'B': variant fp8_ds656", "choose fp8_e4m3, fp8_per_head"]
    run_fails("embedded", code=2, says=says, more=("--candidate", "fp8_ds656", "--device", "cpu"))


def test_a_control_is_refused_on_a_gpu(tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "model")
    plan = variant_plan(tmp_path / "p.toml", model, candidate="control-int4-token")
    says = ["control-int4-token", "cannot run on a GPU", "device cpu"]
    run_fails(plan, code=2, says=says, more=("--device", "cuda"))


def test_a_checkpoint_without_a_chat_template_is_refused_before_any_server(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model", chat_template=False)
    says = [str(folder), "has no chat template", "task 'copy'", "add chat_template.jinja"]
    run_fails(variant_plan(tmp_path / "p.toml", folder), code=2, says=says, more=("--device", "cpu"))
    assert not Path("out").exists()


def test_a_missing_server_environment_names_make_setup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUIPOISE_SGLANG_PYTHON", str(tmp_path / "python"))
    plan = variant_plan(tmp_path / "p.toml", checkpoint(tmp_path / "model"))
    run_fails(plan, code=2, says=["EQUIPOISE_SGLANG_PYTHON", "does not exist"], more=("--device", "cpu"))


# -- endpoints -------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_a_url_where_nothing_listens_is_named(tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with serving(server := FakeSglang()):
        plan = plan_file(tmp_path / "p.toml", url_arms(A1=server.url, B=nobody), [COPY])
        run_fails(plan, code=4, says=["arm 'B'", nobody, "cannot connect", "check the URL"])


def test_a_url_that_answers_404_is_named(tmp_path: Path) -> None:
    with serving(server := FakeSglang(), other := FakeSglang(status=404)):
        plan = plan_file(tmp_path / "p.toml", url_arms(A1=server.url, B=other.url), [COPY])
        run_fails(plan, code=4, says=["arm 'B'", other.url, "HTTP 404", "check the URL"])


def test_a_url_with_a_password_is_refused_without_repeating_it(tmp_path: Path) -> None:
    plan = plan_file(tmp_path / "p.toml", url_arms(A1="http://me:hunter2@h:1", B="http://h:2"), [COPY])
    run_fails(plan, code=2, says=["user name or password", "environment variable"])
    assert "hunter2" not in cli("run", plan, "--out", "other").stderr
    assert not Path("out").exists()
    assert not Path("other").exists()


def test_an_endpoint_without_a_chat_template_is_named(tmp_path: Path) -> None:
    with serving(server := FakeSglang(), other := FakeSglang(chat_template=False)):
        plan = plan_file(tmp_path / "p.toml", url_arms(A1=server.url, B=other.url), [COPY])
        says = ["arm 'B'", other.url, "chat template", "--chat-template", "leave out the tasks"]
        run_fails(plan, code=4, says=says)
        assert not server.asked


def test_arms_with_different_tokenizers_are_named_before_the_first_question(tmp_path: Path) -> None:
    with serving(server := FakeSglang(), other := FakeSglang(shift=1)):
        plan = plan_file(tmp_path / "p.toml", url_arms(A1=server.url, B=other.url), [COPY])
        run_fails(plan, code=4, says=["arm 'B'", "tokens of 'The quick brown fox", "start the servers alike"])
        assert not server.asked
        assert not other.asked


def test_arms_with_another_server_argument_are_named(tmp_path: Path) -> None:
    with serving(server := FakeSglang(tp_size=8), other := FakeSglang(tp_size=4)):
        plan = plan_file(tmp_path / "p.toml", url_arms(A1=server.url, B=other.url), [COPY])
        run_fails(plan, code=4, says=["arm 'B' tp_size: 4 (baseline 'A1': 8)", "allowed_differences"])


# -- items -----------------------------------------------------------------------------------


@pytest.fixture
def arc_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "data"))
    tasks = [{"name": "arc_easy", "critical": True, "items": 4, "margin": 0.1}]
    return plan_file(tmp_path / "p.toml", url_arms(A1="http://h:1", B="http://h:2"), tasks)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "EQUIPOISE_DATA must name a directory"),
        ("", "'arc_easy': its data set has no rows"),
        ('{"query": "q", "choices": ["a"], "gold": 0}\n', "'arc_easy' has 1 items; the plan asks for 4"),
        ("nonsense\n", "arc_easy.jsonl:1: not JSON"),
        ('{"query": "q"}\n' * 4, "has no field 'choices'"),
        ('{"query": "q", "choices": ["a"], "gold": 7}\n' * 4, "is malformed"),
    ],
)
def test_a_task_whose_items_cannot_be_had_is_named(
    arc_plan: Path, tmp_path: Path, content: str | None, says: str
) -> None:
    if content is not None:
        file = tmp_path / "data" / "multiple_choice" / "arc_easy.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text(content)
    run_fails(arc_plan, code=2, says=["arc_easy", says])
    assert not Path("out").exists()


def test_a_margin_of_the_wrong_kind_names_the_right_one(tmp_path: Path) -> None:
    tasks = [COPY, {"name": "logprob", "items": 4, "margin": 0.1}]
    plan = plan_file(tmp_path / "p.toml", url_arms(A1="http://h:1", B="http://h:2"), tasks)
    run_fails(plan, code=2, says=["task 'logprob'", "margin_nats"])


# -- run directories -------------------------------------------------------------------------


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A plan that was run to its end in ``done``."""
    arms = record_run(tmp_path / "recorded", {"copy": 8}, lambda arm, task, i: True)
    plan = plan_file(
        tmp_path / "p.toml",
        [a for a in arms if a["name"] in ("A1", "B")],
        [COPY | {"items": 8}],
        decision={"require_control": False, "require_noise_floor": False},
    )
    assert cli("run", plan, "--out", "done").exit_code == 3
    return plan


def test_a_run_directory_that_exists_needs_resume(finished: Path) -> None:
    before = rows(Path("done"))
    message = error_of(cli("run", finished, "--out", "done"), code=4)
    assert "done/journal.sqlite" in message
    assert "--resume" in message
    assert "--out" in message
    assert rows(Path("done")) == before


def test_resume_with_a_changed_plan_names_both_hashes(finished: Path) -> None:
    before = rows(Path("done"))
    old = json.loads(cli("plan", "check", finished, "--json").stdout)["plan_hash"]
    finished.write_text(finished.read_text().replace("margin = 0.1", "margin = 0.2"))
    new = json.loads(cli("plan", "check", finished, "--json").stdout)["plan_hash"]
    message = error_of(cli("run", finished, "--out", "done", "--resume"), code=2)
    for text in (old, new, "done/journal.sqlite", "resume with the registered plan"):
        assert text in message
    assert rows(Path("done")) == before


def test_resume_where_nothing_is_says_so_and_makes_nothing(finished: Path) -> None:
    message = error_of(cli("run", finished, "--out", "empty", "--resume"), code=2)
    assert "empty/journal.sqlite: no journal there" in message
    assert "without --resume" in message
    assert not Path("empty").exists()
    assert "runs/latest" in error_of(cli("run", finished, "--resume"), code=2)


def test_report_of_a_directory_without_a_journal_says_so() -> None:
    Path("nothing").mkdir()
    for name in ("nothing", "nowhere"):
        message = error_of(cli("report", name), code=2)
        assert f"{name}/journal.sqlite: no journal there" in message
        assert "give the directory of a run" in message


def test_report_of_something_that_is_no_journal_says_so() -> None:
    Path("odd").mkdir()
    Path("odd/journal.sqlite").write_text("not a database, but long enough to be read as one" * 9)
    assert "odd/journal.sqlite: the journal is damaged" in error_of(cli("report", "odd"), code=4)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('"margin": 0.1', '"margin": 0.9'),
        lambda text: text.replace('"margin"', '"margni"'),
        lambda text: text[:-1],
        lambda text: "[]",
    ],
    ids=["another margin", "an unknown key", "cut short", "no plan"],
)
def test_a_plan_changed_in_the_journal_is_noticed(finished: Path, change: Callable[[str], str]) -> None:
    with sqlite3.connect("done/journal.sqlite") as db:
        (text,) = db.execute("SELECT value FROM meta WHERE name = 'plan_text'").fetchone()
        assert change(text) != text
        db.execute("UPDATE meta SET value = ? WHERE name = 'plan_text'", (change(text),))
    db.close()
    for format_ in ("terminal", "markdown", "json"):
        result = cli("report", "done", "--format", format_)
        message = error_of(result, code=4)
        assert "done/journal.sqlite" in message
        assert "the journal was changed after the run" in message
        assert result.stdout == ""


def test_a_replayed_run_of_other_items_is_refused(finished: Path) -> None:
    message = error_of(cli("run", finished, "--out", "again", "--seed", "2"), code=4)
    for text in ("recorded", "8 of 8 items were not recorded", "replay a run of the same items"):
        assert text in message
    assert no_verdict(Path("again"))


def test_a_replayed_run_that_is_gone_is_named(finished: Path) -> None:
    shutil.rmtree("recorded")
    assert "recorded" in error_of(cli("run", finished, "--out", "again"), code=2)
    assert no_verdict(Path("again"))


# -- serve -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["embedded:kimi_tiny"], ["'embedded:kimi_tiny' is not MODEL@VARIANT", "e.g."]),
        (["@bf16"], ["'@bf16' is not MODEL@VARIANT"]),
        (["nowhere@bf16"], ["nowhere does not exist"]),
        (["model@fp9"], ["unknown KV variant 'fp9'", "fp8_e4m3"]),
        (["model@control-clip2", "--device", "cuda"], ["cannot run on a GPU"]),
        (["model@fp8_ds655"], ["did you mean fp8_ds656?", "fp8_per_head"]),
        (["model@fp8_ds656", "--device", "cpu"], ["K and V for each KV head (GQA)", "fp8_per_token_head"]),
        (["model@fp8_per_head", "--device", "cpu"], ["needs kv_head_amax.json", "fp8_per_token_head"]),
        (["embedded:kimi_tiny@fp8_ds656", "--device", "cuda"], ["on a GPU: SGLang stores this layout"]),
    ],
)
def test_serve_refuses_what_it_cannot_serve(tmp_path: Path, args: list[str], says: list[str]) -> None:
    checkpoint(tmp_path / "model")
    for how in ("--print", "--start"):
        message = error_of(cli("serve", *args, how), code=2)
        for text in says:
            assert text in message


def test_serve_needs_exactly_one_of_print_and_start(tmp_path: Path) -> None:
    checkpoint(tmp_path / "model")
    for how in ([], ["--print", "--start"]):
        assert "one of --print and --start" in error_of(cli("serve", "model@bf16", *how), code=2)


def test_serve_print_shows_a_command_that_can_be_typed(tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "a model")
    result = cli("serve", f"{model}@fp8_e4m3", "--print", "--device", "cpu", "--port", "31234")
    assert result.exit_code == 0
    assert f"'--model-path={model}'" in result.stdout
    assert "--kv-cache-dtype=fp8_e4m3" in result.stdout
    assert "--port=31234" in result.stdout
    assert "PYTHONSAFEPATH=1" in result.stdout


def test_serve_on_a_port_in_use_names_it_and_starts_nothing(tmp_path: Path) -> None:
    checkpoint(tmp_path / "model")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = error_of(
            cli("serve", "model@bf16", "--start", "--device", "cpu", "--port", str(port)), code=4
        )
    assert f"port {port} of 127.0.0.1 is in use" in message
    assert "choose another port" in message
    assert not list(tmp_path.glob("*.log"))


@pytest.mark.parametrize(
    "args",
    [
        ["run"],
        ["run", "p", "--no-such-flag"],
        ["serve", "m@bf16", "--port", "0"],
        ["report", "d", "--format", "pdf"],
    ],
)
def test_wrong_usage_exits_2(args: list[str]) -> None:
    assert cli(*args).exit_code == 2


def test_a_run_registered_before_plans_had_todays_keys_can_be_resumed(finished: Path) -> None:
    """Its registered text lacks a key whose default is what the plan means."""
    db = sqlite3.connect("done/journal.sqlite")
    (text,) = db.execute("SELECT value FROM meta WHERE name = 'plan_text'").fetchone()
    older = json.loads(text)
    del older["decision"]["max_attempts"]
    with db:
        for key, value in (("plan_text", json.dumps(older)), ("plan_hash", hash_of(older))):
            db.execute("UPDATE meta SET value = ? WHERE name = ?", (value, key))
    db.close()
    assert cli("run", finished, "--out", "done", "--resume").exit_code == 3
    report = json.loads(Path("done/report.json").read_text())
    assert report["run"]["plan_hash"] == hash_of(older)


def test_a_plan_without_a_critical_task_is_refused(tmp_path: Path) -> None:
    arms = url_arms(A1="http://127.0.0.1:9", B="http://127.0.0.1:10")
    plan = plan_file(tmp_path / "p.toml", arms, [{"name": "copy", "items": 20, "margin": 0.1}])
    assert "no accuracy task is critical" in error_of(cli("plan", "check", plan), code=2)

"""The plan refuses what it does not understand, and its hash changes with its content."""

from pathlib import Path

import pytest

from equipoise.evals.errors import PlanError
from equipoise.evals.plan import load_plan, parse_plan
from equipoise.evals.types import ArmRole

TEXT = """\
schema_version = 1
name = "p"

[decision]
suite_margin = 0.025

[[models]]
name = "m"
path = "embedded:kimi_tiny"

[[arms]]
name = "A1"
role = "baseline"
variant = "bf16"

[[arms]]
name = "B"
role = "candidate"
variant = "fp8_e4m3"

[[tasks]]
name = "copy"
critical = true
items = 400
margin = 0.05

[[tasks]]
name = "sort"
items = 200
margin = 0.05
"""


@pytest.mark.parametrize(
    ("old", "new", "expect"),
    [
        (
            "suite_margin = 0.025",
            "suite_margni = 0.025",
            "p.toml:5: unknown key 'decision.suite_margni'; did you mean 'suite_margin'?",
        ),
        ("items = 200", "itmes = 200", "p.toml:29: unknown key 'tasks.1.itmes'; did you mean 'items'?"),
        ("[decision]", "[decisions]", "p.toml:4: unknown key 'decisions'; did you mean 'decision'?"),
        ("items = 200", "items = 0", "p.toml:29: tasks.1.items: Input should be greater than 0"),
        ("items = 200", "items = true", "p.toml:29: tasks.1.items: must be a number, not True"),
        ("items = 200", 'items = "200"', "p.toml:29: tasks.1.items: must be a number, not '200'"),
        ('role = "candidate"', 'role = "kandidat"', "p.toml:18: arms.1.role"),
        ('role = "candidate"', 'role = "baseline"', "exactly one arm with role 'baseline'"),
        ('name = "B"', 'name = "A1"', "arm 'A1' is listed twice"),
        ('variant = "fp8_e4m3"', "", "arm 'B' needs exactly one of variant, url and replay"),
        ("margin = 0.05\n\n[[tasks]]", "\n[[tasks]]", "task 'copy' needs exactly one of margin"),
        ("schema_version = 1", "schema_version = 9", "p.toml:1: schema_version"),
        ("items = 200", "items = 200\nmax_kl_nats = 0.01", "are for teacher-forced tasks"),
        ("items = 200", "items = 200\nmax_drop_nats = 20.0", "are for teacher-forced tasks"),
        ("items = 200", "items = 200\nmax_drop_nats = 0.5", "p.toml:30: tasks.1.max_drop_nats"),
        ("items = 200", "items = ", "not valid TOML"),
        ("[decision]", "[seeds]\nbootstrap = -1\n[decision]", "p.toml:5: seeds.bootstrap"),
        (
            "items = 200\nmargin = 0.05",
            "items = 200\nmargin_nats = inf",
            "margin_nats: Input should be a finite",
        ),
        ("items = 200", "items = 200\nnoise_p_d = nan", "noise_p_d: Input should be a finite"),
    ],
)
def test_bad_plan_is_named_with_line_key_and_remedy(old: str, new: str, expect: str) -> None:
    assert old in TEXT
    with pytest.raises(PlanError) as e:
        parse_plan(TEXT.replace(old, new, 1), source="p.toml")
    assert expect in str(e.value)
    assert "\n" not in str(e.value)
    assert "after validation" not in str(e.value)  # what only follows from the slip
    assert e.value.exit_code == 2


def test_a_byte_order_mark_and_line_ends_of_windows_are_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    assert load_plan(path).content_hash == parse_plan(TEXT, source="p").content_hash


def test_a_plan_nested_without_end_is_not_read() -> None:
    with pytest.raises(PlanError, match=r"p\.toml: not valid TOML"):
        parse_plan(f"a = {'[' * 100_000}", source="p.toml")


@pytest.mark.parametrize(
    ("candidate", "served_model", "refused"),
    [
        *(("http://h:1", "", True), ("http://H:1/v1/", "", True), ("http://h:2", "", False)),
        ("http://h:1", "fp8", False),
    ],
)
def test_an_endpoint_is_not_compared_with_itself(candidate: str, served_model: str, refused: bool) -> None:
    found = f'url = "{candidate}"'
    if served_model:
        found += f'\napi = "openai"\nserved_model = "{served_model}"'
    text = TEXT.replace('variant = "fp8_e4m3"', found).replace('variant = "bf16"', 'url = "http://h:1"')
    if refused:
        with pytest.raises(PlanError, match="would be compared with itself"):
            parse_plan(text, source="p")
    else:
        assert parse_plan(text, source="p").arms


def test_a_task_file_that_is_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(TEXT.replace("items = 200", 'items = 200\nfile = "."'))
    with pytest.raises(PlanError, match=r"task '\w+': .* is not a file"):
        load_plan(tmp_path / "p.toml")


def test_a_teacher_forced_task_may_bound_the_divergence_too() -> None:
    text = TEXT.replace("items = 200\nmargin = 0.05", "items = 200\nmargin_nats = 0.01")
    plain = parse_plan(text, source="p.toml")
    bounded = parse_plan(text + "max_kl_nats = 0.02\nmax_drop_nats = 20.0\n", source="p.toml")
    assert (plain.tasks[1].max_kl_nats, plain.tasks[1].max_drop_nats) == (None, None)
    assert (bounded.tasks[1].max_kl_nats, bounded.tasks[1].max_drop_nats) == (0.02, 20.0)
    assert plain.content_hash != bounded.content_hash


def test_missing_plan_file_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"nowhere\.toml: cannot read the plan"):
        load_plan(tmp_path / "nowhere.toml")


def test_hash_ignores_layout_and_sees_every_value() -> None:
    base = parse_plan(TEXT, source="p").content_hash
    assert parse_plan("# a comment\n" + TEXT.replace("0.050", "0.05"), source="q").content_hash == base
    for old, new in [
        ("margin = 0.05", "margin = 0.06"),
        ("items = 400", "items = 401"),
        ("bf16", "fp8_e5m2"),
    ]:
        assert parse_plan(TEXT.replace(old, new, 1), source="p").content_hash != base


def test_overrides_replace_sources_and_change_the_hash() -> None:
    plan = parse_plan(TEXT, source="p")
    other = plan.with_changes(baseline="http://127.0.0.1:1", candidate="control-int4-tensor", item_seed=7)
    baseline, candidate = other.arm(ArmRole.BASELINE), other.arm(ArmRole.CANDIDATE)
    assert baseline is not None and baseline.url == "http://127.0.0.1:1" and baseline.variant is None
    assert candidate is not None and candidate.variant == "control-int4-tensor"
    assert other.seeds.items == 7
    assert other.content_hash != plan.content_hash


def test_shipped_plans_load() -> None:
    plans = sorted((Path(__file__).parents[2] / "tasks" / "plans").glob("*.toml"))
    assert plans
    for path in plans:
        assert load_plan(path, suites=path.parents[1] / "suites").name == path.stem

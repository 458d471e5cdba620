"""Sign-off policies are read strictly, and the one that ships is a policy."""

import tomllib
from pathlib import Path

import pytest

from equipoise.evals.cli.shell import suites_folder
from equipoise.evals.errors import UsageError
from equipoise.evals.signoff_policy import find_policy, load_policy, parse_policy

HEAD = 'schema_version = 1\nname = "p"\n'


def test_the_shipped_policy_is_read_and_demands_something_of_every_kind() -> None:
    values = load_policy(find_policy("release")).values()
    assert {"decision", "evidence", "origin"} <= values.keys()


@pytest.mark.parametrize("suite", ["release", "full"])
def test_the_shipped_policy_allows_the_margins_of_the_suites_for_releases(suite: str) -> None:
    wanted = load_policy(find_policy("release")).decision
    values = tomllib.loads((suites_folder() / f"{suite}.toml").read_text())
    assert wanted.max_suite_margin is not None
    assert wanted.max_task_margin is not None
    assert values["decision"]["suite_margin"] <= wanted.max_suite_margin
    assert max(t["margin"] for t in values["tasks"] if "margin" in t) <= wanted.max_task_margin


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[decision]\nmax_suite_margn = 0.1", r"p\.toml:4: unknown key .*did you mean 'max_suite_margin'"),
        ("[evidnce]\nrequire_control = true", r"p\.toml:3: unknown key 'evidnce'; did you mean 'evidence'"),
        ("[decision]\nmax_suite_margin = 2", r"p\.toml:4: decision\.max_suite_margin: .*less than 1"),
        ("[decision]\ntask_margins = { a = 0 }", r"decision\.task_margins\.a: .*greater than 0"),
        ("[evidence]\nrequire_control = 1.5", r"evidence\.require_control: .*boolean"),
        ("[origin]\ngpu = '('", r"origin\.gpu: not a regular expression"),
        ("[origin]\nmax_age_days = inf", r"origin\.max_age_days"),
        ("[origin", "not valid TOML"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_policy(HEAD + text, source="p.toml")


@pytest.mark.parametrize("text", ['name = "p"', 'schema_version = 2\nname = "p"', "schema_version = 1"])
def test_schema_version_and_name_are_needed(text: str) -> None:
    with pytest.raises(UsageError, match=r"p\.toml: (schema_version|name)|p\.toml:1: schema_version"):
        parse_policy(text, source="p.toml")


def test_the_hash_is_of_what_is_demanded_not_of_the_text() -> None:
    one = parse_policy(HEAD + "[decision]\nmax_alpha = 0.05\nallow_detected = true", source="a")
    same = parse_policy("# a comment\n" + HEAD + "[decision]\nmax_alpha = 5e-2", source="b")
    other = parse_policy(HEAD + "[decision]\nmax_alpha = 0.04", source="c")
    assert one.content_hash == same.content_hash != other.content_hash


def test_an_unknown_or_unreadable_policy_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no policy 'releas': give a path to a TOML file, or one of release"):
        find_policy("releas")
    with pytest.raises(UsageError, match="cannot read the policy"):
        load_policy(tmp_path / "no.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        load_policy(tmp_path / "binary.toml")

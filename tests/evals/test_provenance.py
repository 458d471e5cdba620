"""The record says where a result comes from, and gives nothing away."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from equipoise.evals.provenance import (
    collect_provenance,
    describe_hardware,
    describe_source,
    package_versions,
    without_secrets,
)


@pytest.mark.parametrize(
    "facts",
    [
        {"api_key": "SECRET"},
        {"admin_api_key": "SECRET"},
        {"hf_token": "SECRET"},
        {"HF_TOKEN": "SECRET"},
        {"ssl_keyfile_password": "SECRET"},
        {"watermark_key": "SECRET"},
        {"nested": [{"authorization": "Bearer SECRET"}]},
        {"launch_command": "python -m x --api-key SECRET --port 1"},
        {"launch_command": "python -m x --admin-api-key=SECRET"},
        {"argv": ["--api-key", "SECRET", "--port", "1"]},
        {"command": "equipoise run p --baseline https://me:SECRET@host:1/v1"},
    ],
)
def test_secrets_are_removed_wherever_they_stand(facts: dict[str, Any]) -> None:
    kept = json.dumps(without_secrets(facts))
    assert "SECRET" not in kept
    assert "***" in kept


def test_facts_that_only_sound_secret_are_kept() -> None:
    facts = {
        "tokenizer_path": "m",
        "max_total_tokens": 5,
        "token_ids": [1],
        "api_key": None,
        "enable_x": False,
        "nested": {"tokenizer_mode": "auto"},
        "author": "x",
    }
    assert without_secrets(facts) == facts


def test_the_home_directory_is_not_told() -> None:
    home = os.path.expanduser("~")
    assert without_secrets({"p": f"{home}/m", "q": [f"--model={home}"]}) == {"p": "~/m", "q": ["--model=~"]}
    assert without_secrets(f"{home}stead/x") == f"{home}stead/x"


def test_the_record_is_json_and_has_every_part() -> None:
    found = collect_provenance(
        plan_hash="p", servers={"A1": {"port": 1, "api_key": "SECRET"}}, hashes={"d": "h"}
    )
    assert json.loads(json.dumps(found)) == found
    assert found["servers"] == {"A1": {"port": 1, "api_key": "***"}}
    assert {"plan_hash", "started", "source", "python", "packages", "hardware", "hashes"} <= set(found)
    assert found["packages"]["numpy"]


def test_packages_that_are_not_installed_are_left_out() -> None:
    assert set(package_versions(["numpy", "no-such-package-x"])) == {"numpy"}


def test_hardware_names_the_cpu_and_memory() -> None:
    found = describe_hardware()
    assert found["cpu"]
    assert found["cpu_cores"] >= 1
    assert found["memory_gib"] > 0
    assert isinstance(found["gpus"], list)


def test_the_commit_is_given_only_for_files_of_that_repository(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.invalid"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    code, installed = tmp_path / "code", tmp_path / "installed"
    for directory in (code, installed):
        directory.mkdir()
        (directory / "a.py").write_text("1")
    git("init")
    git("add", "code")
    git("commit", "-m", "x")
    clean = describe_source(code)
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (code / "a.py").write_text("2")
    assert describe_source(code)["dirty"] is True
    assert describe_source(installed) == {}

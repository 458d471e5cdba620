"""Documents tell the truth: every command shown exists with its options, every link leads somewhere."""

import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from equipoise.evals.plan import load_plan
from equipoise.evals.signoff_policy import load_policy

sys.path.insert(0, str(Path(__file__).parent))

from shown import (
    commands_of_markdown,
    commands_of_script,
    complaint,
    headings,
    links,
    make_complaint,
    toml_blocks,
)

ROOT = Path(__file__).parents[2]
ROOMS = ("evals", "tasks", "quant", "kernels", "reports", "tests")
DOCUMENTS = sorted(
    p
    for p in [*ROOT.glob("*.md"), *(p for room in ROOMS for p in (ROOT / room).rglob("*.md"))]
    if "golden" not in p.parts  # reports, not documents
)
WORKFLOW = ROOT / "reports" / "examples" / "github-actions.yml"
PATHS = [str(p.relative_to(ROOT)) for p in DOCUMENTS]


def wrong(words: list[str], *, whole: bool) -> str:
    if words[0] == "make":
        return make_complaint(words, ROOT / "Makefile")
    return complaint(words, whole=whole)


@pytest.mark.parametrize("path", PATHS)
def test_every_command_shown_exists_with_its_options(path: str) -> None:
    calls = commands_of_markdown((ROOT / path).read_text(encoding="utf-8"))
    told = [(" ".join(words), why) for words, whole in calls if (why := wrong(words, whole=whole))]
    assert told == []


@pytest.mark.parametrize("path", PATHS)
def test_every_relative_link_leads_to_a_file_and_its_heading(path: str) -> None:
    document = ROOT / path
    broken = []
    for link in links(document.read_text(encoding="utf-8")):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (document.parent / unquote(parts.path)).resolve() if parts.path else document
        found = target.is_relative_to(ROOT) and target.exists()
        if found and parts.fragment and target.suffix == ".md":
            found = parts.fragment in headings(target.read_text(encoding="utf-8"))
        if not found:
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("path", PATHS)
def test_every_plan_and_policy_shown_whole_is_valid(path: str, tmp_path: Path) -> None:
    for i, text in enumerate(toml_blocks((ROOT / path).read_text(encoding="utf-8"))):
        if "schema_version" not in text:
            continue
        shown = tmp_path / f"{i}.toml"
        shown.write_text(text, encoding="utf-8")
        if "[[arms]]" in text:
            load_plan(shown, suites=ROOT / "tasks" / "suites")
        else:
            load_policy(shown)


def test_the_readme_shows_commands_and_a_figure() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(list(commands_of_markdown(text))) > 40
    assert any(link.startswith("reports/gallery/") for link in links(text))


def test_the_workflow_calls_commands_that_exist_and_fails_by_the_verdict() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    calls = [(words, step) for step in steps for words in commands_of_script(step.get("run", ""))]
    assert [(words, why) for words, _ in calls if (why := wrong(words, whole=True))] == []
    names = {tuple(words[1:3]) for words, _ in calls}
    assert {("run", "release-plan.toml"), ("signoff", "runs/gate"), ("signoff", "verify")} <= names
    tolerated = [words[1] for words, step in calls if step.get("continue-on-error")]
    assert tolerated == ["report"]
    assert not any("always()" in str(step.get("if")) for _, step in calls)


def test_no_secret_of_the_workflow_is_spelled_in_a_script() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    scripts = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    assert [s for s in scripts if "${{" in s] == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("equipoise run embedded --out x --seed 3", ""),
        ("equipoise run --out x", "lacks"),
        ("equipoise run embedded --outt x", "--outt"),
        ("equipoise run embedded other", "takes no other"),
        ("equipoise rum embedded", "has no command rum"),
        ("equipoise report x --format word", "word is none of terminal"),
        ("equipoise report --schema", ""),
        ("equipoise signoff runs/latest --policy release", ""),
        ("equipoise signoff runs/latest", "lacks"),
        ("equipoise signoff verify runs/latest --key k", "--key"),
        ("equipoise quant explain glm-4.6 -- --kv-cache-dtype fp8_e4m3", ""),
        ("equipoise plan", "names no command"),
        ("X=1 equipoise doctor | head", ""),
        ("make eval PLAN=smollm2", ""),
        ("make evil", "no target evil"),
        ("make eval PLAM=smollm2", "no variable PLAM"),
    ],
)
def test_a_wrong_command_line_is_noticed(line: str, why: str) -> None:
    (words,) = commands_of_script(line)
    found = wrong(words, whole=True)
    assert why in found
    assert bool(why) == bool(found)

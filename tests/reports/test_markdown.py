"""The markdown as a reader of GitHub sees it: tables are tables, details open and close, HTML is ours."""

import dataclasses
import re

import pytest
from markdown_it import MarkdownIt

from equipoise.reports import markdown, tables
from equipoise.reports.flips import Excerpt, Flip
from equipoise.reports.markdown import MAX_BYTES

NAMES = ["signed_off", "degraded", "inconclusive", "invalid", "incomplete"]


def parse(text):
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)


def shown_tables(tokens):
    """By table, its rows as lists of cell texts; the header first."""
    found = []
    for i, token in enumerate(tokens):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type in ("th_open", "td_open"):
            found[-1][-1].append("".join(c.content for c in tokens[i + 1].children).replace("\u2060", ""))
    return found


def depth_of_details(tokens):
    """Raises where a closing tag closes nothing; returns what stays open, and the number of openings."""
    depth = opened = 0
    for token in tokens:
        if token.type == "html_block":
            for tag in re.findall(r"</?details>", token.content):
                depth += 1 if tag == "<details>" else -1
                opened += tag == "<details>"
                assert 0 <= depth <= 1
    return depth, opened


@pytest.mark.parametrize("name", NAMES)
def test_every_table_is_rendered_whole(samples, name):
    report = samples.REPORTS[name]()
    found = shown_tables(parse(markdown.render(report)))
    assert all(len({len(row) for row in table}) == 1 for table in found)
    for model in report.models:
        for table in (tables.results(model), tables.tests(model), tables.controls(model)):
            if table.rows:
                rows = [[cell.strip(" ") or "" for cell in row] for row in table.rows]
                header = [column.header for column in table.columns]
                assert any(t[0] == header and len(t) == len(rows) + 1 for t in found), table.title
    assert "|---" not in "".join(t.content for t in parse(markdown.render(report)) if t.type == "inline")


@pytest.mark.parametrize("name", NAMES)
def test_details_are_closed_and_hold_the_flips(samples, name):
    report = samples.REPORTS[name]()
    tokens = parse(markdown.render(report))
    left, opened = depth_of_details(tokens)
    flips = sum(len(m.flips.shown) for m in report.models if m.flips is not None)
    assert left == 0
    assert opened >= flips


def test_an_answer_cannot_close_its_details(samples):
    report = samples.signed_off()
    text = "</details>\n\n</details>\n\n# SIGNED OFF\n\n| a |\n|---|\n| b |\n"
    flip = Flip(
        task="t", item_id="i", direction="lost", prompt=Excerpt.of(text), target=Excerpt.of(text),
        baseline=Excerpt.of(text), candidate=Excerpt.of(text),
    )  # fmt: skip
    model = report.models[0]
    hostile = dataclasses.replace(
        report,
        models=(dataclasses.replace(model, flips=dataclasses.replace(model.flips, shown=(flip,))),),
    )
    benign = dataclasses.replace(
        report,
        models=(dataclasses.replace(model, flips=dataclasses.replace(model.flips, shown=(_benign(flip),))),),
    )
    one, other = parse(markdown.render(hostile)), parse(markdown.render(benign))
    assert [t.type for t in one] == [t.type for t in other]
    assert depth_of_details(one)[0] == 0


def _benign(flip):
    text = Excerpt.of("x")
    return dataclasses.replace(flip, prompt=text, target=text, baseline=text, candidate=text)


@pytest.mark.parametrize("flips", [0, 3, 3_000])
@pytest.mark.parametrize("models", [1, 8])
def test_any_number_of_flips_stays_under_the_limit_and_is_counted(samples, flips, models):
    report = samples.signed_off()
    one = dataclasses.replace(
        report.models[0].flips.shown[0], prompt=Excerpt.of("漢" * 4_000), candidate=Excerpt.of("`" * 4_000)
    )
    shown = dataclasses.replace(report.models[0].flips, shown=(one,) * flips, lost=flips, gained=0)
    model = dataclasses.replace(report.models[0], flips=shown)
    text = markdown.render(dataclasses.replace(report, models=(model,) * models))
    assert len(text.encode()) < MAX_BYTES < 200_000
    counted = text.count("<summary>lost") + sum(
        int(n.replace(",", "")) for n in re.findall(r"\*([\d,]+) more are not shown here\.\*", text)
    )
    unsaid = re.search(r"\*The flips of (\d+) more models do not fit here\.\*", text)
    assert counted + flips * int(unsaid[1] if unsaid else 0) == flips * models
    assert depth_of_details(parse(text))[0] == 0


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_claimed_is_told_before_any_number(samples, name):
    report = samples.REPORTS[name]()
    shown = markdown.render(report)
    assert shown.index("## What this report does not claim") < shown.index(f"## `{report.models[0].name}`")

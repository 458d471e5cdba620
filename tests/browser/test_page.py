"""The HTML report in a browser: usable by keyboard, in both themes, on a phone, in print; text never acts."""

import dataclasses
import itertools
import json
import re

import pytest
from cli_runs import cli, plan_file, record_run

from equipoise.reports import html
from equipoise.reports import json as report_json
from equipoise.reports.model import Excerpt, FirstDifference

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

WIDTHS = [375, 768, 1_440]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The page that `equipoise run` wrote, and the report."""
    folder = tmp_path_factory.mktemp("page")

    def right(arm, task, i):
        if arm in ("P", "M"):
            return i % (3 if arm == "P" else 9) != 0
        return i % 17 != 3 if arm != "B" else i % 23 != 0 and i % 29 != 5

    tasks = ("copy", "sort")
    arms = record_run(folder / "recorded", dict.fromkeys(tasks, 120), right)
    specs = [{"name": t, "items": 120, "margin": 0.1, "critical": True} for t in tasks]
    plan = plan_file(folder / "plan.toml", arms, specs, decision={"suite_margin": 0.08})
    result = cli("run", plan, "--out", folder / "out", "--ledger", folder / "ledger.jsonl")
    assert result.exit_code in (0, 1, 3), result.stderr
    assert result.stderr.rstrip().endswith("out/report.html")
    return folder / "out", report_json.load((folder / "out" / "report.json").read_text())


@pytest.fixture
def written(tmp_path):
    count = itertools.count()

    def write(report, **more):
        path = tmp_path / f"{next(count)}.html"
        made = html.page(report, companion_name=path.with_suffix("").name + "-flips.jsonl", **more)
        path.write_text(made.html, encoding="utf-8")
        if made.companion:
            path.with_name(path.stem + "-flips.jsonl").write_text(made.companion, encoding="utf-8")
        return path

    return write


def open_all(page):
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    page.wait_for_timeout(100)


def status(page):
    return page.locator("#f-status").text_content()


def says(page, pattern):
    api.expect(page.locator("#f-status")).to_have_text(re.compile(pattern))


def test_a_runs_page_tells_its_verdict_and_lists_every_flip(run, visit):
    directory, report = run
    page = visit(directory / "report.html")
    flips = report.models[0].flips
    assert page.locator("h1").text_content() == report.run.verdict
    assert page.title().startswith(report.run.verdict)
    assert status(page).startswith(
        f"{flips.lost + flips.gained} of {flips.lost + flips.gained} match: {flips.lost} lost"
    )
    assert page.locator("figure svg").first.get_attribute("role") == "img"


def test_the_list_is_filtered_and_a_flip_is_opened_by_keyboard(run, visit):
    page = visit(run[0] / "report.html")
    page.get_by_label("Task", exact=True).select_option("sort")
    page.get_by_label("Direction", exact=True).select_option("lost")
    assert {x.strip() for x in page.locator(".flip .way").all_text_contents()} == {"lost"}
    assert all(x.startswith("sort") for x in page.locator(".flip .what small").all_text_contents())
    item = page.locator(".flip .what bdi").last.text_content()
    page.get_by_label("Search", exact=True).fill(item)
    says(page, "^1 of")
    page.locator(".flip summary").first.focus()
    page.keyboard.press("Enter")
    body = page.locator(".flip-body")
    api.expect(body).to_have_count(1)
    assert body.locator(".baseline .text").count() >= 1
    assert "not " in body.locator(".candidate").text_content()
    assert "The replies first differ in the answer, at character" in body.text_content()
    assert body.locator(".here").count() == 2
    page.get_by_label("Search", exact=True).fill("no such text")
    says(page, "^0 of")


def test_the_theme_is_switched_and_remembered(run, visit):
    page = visit(run[0] / "report.html")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.get_by_role("button", name="Theme").click()
    dark = page.evaluate(colour)
    assert light != dark
    page.reload()
    assert page.evaluate(colour) == dark
    assert page.get_by_role("button", name="Theme").text_content() == "Theme: dark"


def test_print_opens_what_is_folded_and_folds_it_again(run, visit):
    page = visit(run[0] / "report.html")
    page.get_by_role("button", name="Theme").click()
    count = "['.fold[open]', '.flip[open] .flip-body'].map((s) => document.querySelectorAll(s).length)"
    page.evaluate(f"addEventListener('beforeprint', () => {{ window.opened = {count}; }})")
    folds, flips = page.locator(".fold").count(), page.locator(".flip").count()
    assert page.pdf().startswith(b"%PDF")
    assert page.evaluate("window.opened") == [folds, min(flips, 20)]
    assert folds > 0 < flips
    assert page.locator("details[open]").count() == 0
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator(".filters").is_visible()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["degraded", "inconclusive", "invalid", "incomplete"])
def test_nothing_overflows(samples, written, visit, name, width):
    page = visit(written(samples.REPORTS[name]()), width=width)
    open_all(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1_440])
@pytest.mark.parametrize("name", ["degraded", "invalid"])
def test_axe_finds_nothing(samples, written, visit, name, width, theme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page = visit(written(samples.REPORTS[name]()), width=width, theme=theme)
    open_all(page)
    found = axe.Axe().run(page).response["violations"]
    told = [(v["id"], v["impact"], [n["html"][:200] for n in v["nodes"][:3]]) for v in found]
    assert told == []


def test_hostile_text_is_shown_and_never_acts(samples, hostile, written, visit):
    payload = " ".join(hostile.HOSTILE.values()).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    report = samples.degraded()
    model = report.models[0]
    excerpt = dataclasses.replace(model.flips.shown[0].prompt, text=payload, chars=len(payload))
    reply = dataclasses.replace(
        model.flips.shown[0].candidate_reply, text=excerpt, thinking=excerpt, tool_calls=excerpt
    )
    flip = dataclasses.replace(
        model.flips.shown[0],
        item_id=payload,
        task=payload,
        prompt=excerpt,
        candidate=excerpt,
        candidate_reply=reply,
    )
    flips = dataclasses.replace(model.flips, shown=(flip,))
    model = dataclasses.replace(model, name=payload, sentence=payload, flips=flips)
    run = dataclasses.replace(report.run, headline=payload, reasons=(payload,), limits=(payload,))
    page = visit(written(dataclasses.replace(report, run=run, models=(model,))), width=375)
    open_all(page)
    assert page.locator("img, iframe, object, embed, base, form, link:not([rel=icon])").count() == 0
    assert "<script>alert(1)</script>" in page.locator("#verdict").text_content()
    assert "<script>alert(1)</script>" in page.locator(".flip-body").text_content()
    assert page.evaluate("document.documentElement.scrollWidth") == 375


def test_flips_of_the_file_beside_the_page_are_added_and_another_file_is_refused(
    samples, written, visit, tmp_path
):
    report = samples.signed_off()
    shown = report.models[0].flips.shown[0]
    many = {"kimi-tiny": [dataclasses.replace(shown, item_id=f"i-{i}") for i in range(56)]}
    path = written(report, flips=many, flip_bytes=20_000)
    page = visit(path)
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text(json.dumps({"task": "x"}) + "\n")
    before = int(re.match(r"(\d+) of", status(page))[1])
    assert before < 56
    chooser = page.locator("#companion")
    chooser.set_input_files(wrong)
    says(page, "was not read")
    chooser.set_input_files(path.with_name(path.stem + "-flips.jsonl"))
    says(page, "^56 of 56")


def test_a_long_reply_begins_shortly_before_the_first_difference(samples, written, visit):
    report = samples.signed_off()
    model, shown = report.models[0], report.models[0].flips.shown[0]
    same = "the same in both arms " * 200
    replies = [
        dataclasses.replace(shown.baseline_reply, text=Excerpt.of(same + end, 6_000))
        for end in ("4921", "4912")
    ]
    flip = dataclasses.replace(
        shown,
        baseline_reply=replies[0],
        candidate_reply=replies[1],
        difference=FirstDifference(part="answer", char=len(same) + 2),
    )
    flips = dataclasses.replace(model.flips, shown=(flip,))
    page = visit(written(dataclasses.replace(report, models=(dataclasses.replace(model, flips=flips),))))
    page.locator(".flip summary").click()
    text = page.locator(".candidate .text").nth(1)  # after what was read as the answer
    api.expect(text).to_be_visible()
    assert text.text_content().count("the same in both arms") == 199  # one is cut in two
    assert len(text.inner_text()) < 400
    assert "[4,100 characters, the same in both]" in text.inner_text()
    page.locator(".candidate").get_by_role("button", name="Show all 4,404 characters").click()
    assert len(text.inner_text()) > 4_300


def test_a_word_diff_keeps_both_texts_and_marks_what_differs(samples, written, visit):
    page = visit(written(samples.signed_off()))
    one, other = "The value is 4921, I think.", "The key's value is 4912, I think."
    left, right = page.evaluate("([a, b]) => wordDiff(a, b)", [one, other])
    assert "".join(run for run, _ in left) == one
    assert "".join(run for run, _ in right) == other
    assert [run for run, changed in left if changed] == ["4921"]
    assert "4912" in [run for run, changed in right if changed]
    long = ["a " * 4_000, "b " * 4_000]
    assert [
        "".join(run for run, _ in side) for side in page.evaluate("([a, b]) => wordDiff(a, b)", long)
    ] == long


def test_a_command_is_copied(samples, written, visit):
    page = visit(written(samples.signed_off()))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("button.copy").first.click()
    api.expect(page.locator("#copied")).to_have_text("Copied: This run")

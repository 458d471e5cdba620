"""The page: self-contained, under a strict policy, the same words and numbers as every other rendering."""

import base64
import dataclasses
import hashlib
import json
import re
from itertools import pairwise

import html5lib
import pytest

from equipoise.reports import html
from equipoise.reports import json as report_json
from equipoise.reports.html.flip_data import record, split
from equipoise.reports.model import Excerpt, FirstDifference, Flip, Reply

NAMES = ["signed_off", "degraded", "inconclusive", "invalid", "incomplete"]
NS = "{http://www.w3.org/1999/xhtml}"


def tree(text):
    return html5lib.HTMLParser(strict=True).parse(text)


def words(element):
    return re.sub(r"\s+", " ", "".join(element.itertext())).strip()


@pytest.fixture(params=NAMES)
def report(request, samples):
    return samples.REPORTS[request.param]()


def test_only_our_own_style_and_script_run_and_nothing_is_loaded(report):
    text = html.render(report)
    page = tree(text)
    (policy,) = (m.get("content") for m in page.iter(f"{NS}meta") if m.get("http-equiv"))
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        bodies = re.findall(rf"(?s)<{tag}>(.*?)</{tag}>", text)
        hashes = [base64.b64encode(hashlib.sha256(b.encode()).digest()).decode() for b in bodies]
        (allowed,) = (d for d in policy.split("; ") if d.startswith(directive))
        assert allowed.split()[1:] == [f"'sha256-{h}'" for h in hashes]
    for element in page.iter():
        for name, value in element.attrib.items():
            assert not name.startswith("on")
            assert name not in ("style", "srcdoc", "action", "formaction", "background")
            if name in ("href", "src"):
                assert value.startswith("#") or value == "data:,", value


def test_every_link_and_label_has_its_target_and_no_id_is_there_twice(report):
    page = tree(html.render(report))
    ids = [e.get("id") for e in page.iter() if e.get("id")]
    assert len(ids) == len(set(ids))
    for e in page.iter():
        named = [e.get("for"), *(e.get("aria-labelledby") or "").split(), e.get("aria-describedby")]
        named += [e.get("href")[1:]] if (e.get("href") or "").startswith("#") else []
        assert {n for n in named if n} <= set(ids)


def test_headings_do_not_skip_a_level_and_there_is_one_title(report):
    levels = [
        int(e.tag[-1]) for e in tree(html.render(report)).iter() if re.fullmatch(rf"{NS}h\d", str(e.tag))
    ]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))


def test_every_table_has_a_caption_and_scopes(report):
    for table in tree(html.render(report)).iter(f"{NS}table"):
        assert table.find(f"{NS}caption") is not None
        assert all(th.get("scope") in ("col", "row") for th in table.iter(f"{NS}th"))


def test_the_verdict_comes_first_and_last_with_what_it_rests_on(report):
    page = tree(html.render(report))
    word = report.run.verdict or "NO VERDICT (incomplete run)"
    title, heading = (next(page.iter(f"{NS}{tag}")) for tag in ("title", "h1"))
    assert words(heading) == word
    assert words(title).startswith(word)
    assert word in words(next(page.iter(f"{NS}footer")))
    said = words(page.find(".//*[@id='verdict']"))
    assert f"Rests on {report.run.pairs:,} paired items" in said
    assert "1.82 points or more" in said or "is not known" in said
    assert all(limit in said for limit in report.run.limits)


def test_indistinguishable_is_said_only_where_the_flag_is_set(report):
    text = words(tree(html.render(report)).find(f".//{NS}main"))
    assert ("indistinguishable" in text.lower()) == report.run.indistinguishable


def test_an_incomplete_run_never_shows_a_verdict_of_its_own(samples):
    text = words(tree(html.render(samples.incomplete())).find(f".//{NS}body"))
    assert not re.search(r"SIGNED OFF|DEGRADED|INCONCLUSIVE|INVALID", text)


def test_the_rows_of_an_invalid_model_carry_no_verdict_colour_and_are_said_to_decide_nothing(report):
    page = tree(html.render(report))
    for model, article in zip(report.models, page.iter(f"{NS}article"), strict=False):
        void = [e for e in article.iter(f"{NS}section") if e.get("class") == "void"]
        assert bool(void) == (model.verdict == "INVALID" and bool(model.rows))
        assert all("decide nothing" in words(e) for e in void)


def test_numbers_agree_with_the_json_to_the_digits_shown(report):
    read = report_json.load(report_json.render(report))
    page = tree(html.render(read))
    rows = [[words(c) for c in tr] for tr in page.iter(f"{NS}tr")]
    descriptions = " ".join(e.text for e in page.iter() if str(e.tag).endswith("}desc"))
    for model in read.models:
        for row in model.rows:
            interval = (
                f"[{100 * row.interval.lo:+z.2f}, {100 * row.interval.hi:+z.2f}]"
                if row.delta is not None
                else "n/a"
            )
            delta = "n/a" if row.delta is None else f"{100 * row.delta:+z.2f}"
            label = getattr(row, "task", "pooled mean")
            expected = [f"{row.n:,}", delta, interval, f"{100 * row.margin:.2f}"]
            assert any(r[0].removesuffix(" *") == label and all(x in r for x in expected) for r in rows)
            if row.delta is not None:
                assert f"{delta} {interval}, {row.verdict}" in descriptions


# ---- flips


def flip(task: str, i: int, direction: str = "lost", chars: int = 10, **more) -> Flip:
    reply = Reply(text=Excerpt.of("y" * chars))
    values = {"prompt": Excerpt.of("p"), "target": Excerpt.of("t"), "baseline": None, "candidate": None}
    values |= {"baseline_reply": reply, "candidate_reply": reply}
    return Flip(**(values | {"task": task, "item_id": f"{task}-{i}", "direction": direction} | more))


def test_every_flip_is_in_the_page_or_in_the_file_beside_it_or_counted():
    flips = {"m": [flip("a", i, chars=1_000) for i in range(60)] + [flip("b", i, "gained") for i in range(5)]}
    told = split(flips, page_bytes=20_000, beside_bytes=40_000)
    assert sum(map(len, told.page)) <= 20_000
    assert sum(map(len, told.beside)) <= 40_000
    assert len(told.page) + len(told.beside) + told.left_out == 65
    assert {json.loads(line)["task"] for line in told.page[:2]} == {"a", "b"}
    assert told.left_out > 0


def test_without_a_file_beside_it_the_page_counts_what_it_leaves_out(samples):
    report = samples.signed_off()
    flips = {m.name: [flip("a", i, chars=1_000) for i in range(56)] for m in report.models}
    alone = html.page(report, flips, flip_bytes=20_000)
    beside = html.page(report, flips, flip_bytes=20_000, companion_name="x-flips.jsonl")
    assert alone.companion == ""
    assert "are counted but not told here" in words(tree(alone.html))
    assert "x-flips.jsonl" in words(tree(beside.html))
    assert "are counted but not told here" not in words(tree(beside.html))
    told = beside.companion.splitlines()
    inside = json.loads(re.search(r'(?s)id="flip-data">(.*?)</script>', beside.html)[1])
    assert len(told) + len(inside) == 112
    assert all(json.loads(line).keys() == inside[0].keys() for line in told)


@pytest.mark.parametrize(
    ("text", "char", "expected"),
    [
        ("abcdef", 3, [0, "abc", "def", 0]),
        ("\x1b[2Jb", 4, [0, "\\x1b[2J", "b", 0]),
        ("\U0001f600b", 1, [0, "\U0001f600", "b", 0]),
    ],
)
def test_a_reply_is_split_at_the_first_difference_before_it_is_escaped(text, char, expected):
    reply = Reply(text=Excerpt.of(text))
    made = flip("a", 1, baseline_reply=reply, difference=FirstDifference(part="answer", char=char))
    assert record("m", made)["baseline"]["text"] == expected


def test_a_cut_reply_says_what_lies_before_and_after():
    whole = "x" * 500 + "y" * 500
    reply = Reply(text=Excerpt.of(whole, 100, around=500))
    made = flip("a", 1, baseline_reply=reply, difference=FirstDifference(part="answer", char=500))
    before, same, rest, after = record("m", made)["baseline"]["text"]
    assert (before, set(same), set(rest)) == (475, {"x"}, {"y"})
    assert before + len(same) + len(rest) + after == 1_000


def test_a_report_without_flips_has_no_list(samples):
    report = samples.signed_off()
    models = tuple(dataclasses.replace(m, flips=None) for m in report.models)
    assert "Answers that flipped" not in html.render(dataclasses.replace(report, models=models))

"""Text from models and servers is shown, and never acts: in every field of every rendering."""

import dataclasses
import json
import re
import time
import unicodedata
import xml.etree.ElementTree as ET

import html5lib
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.cells import cell_len

from equipoise.reports import html, junit, markdown, svg, terminal
from equipoise.reports import json as report_json
from equipoise.reports.escape import clean, md_code, md_text
from equipoise.reports.model import Excerpt

HOSTILE = {
    "ansi": "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J \x1b[2J",
    "rich": "[bold red]x[/bold red] [link=http://a.example]y[/link] [/] :smile:",
    "newlines": "a\nb\r\nc\rd\x0b\x0c\u2028e\u2029f\tg",
    "nul": "a\x00b\x7f\x08\x08",
    "bidi": "abc\u202edef\u2066ghi\u200f\u061c",
    "zero_width": "a\u200bb\u200d\ufeffc\u2060\U000e0041",
    "marks": "z" + "\u0336" * 40,
    "wide": "漢字" * 30 + "👩‍👩‍👧‍👦❤️🏳️‍🌈" + "\uff21" * 50,
    "surrogates": "a\ud800b\udfff",
    "html": '<script>alert(1)</script><img src=x onerror="a()"></code></details></summary><!-- ',
    "markdown": "![x](http://a.example/p.png) [y](javascript:a) **b** _i_ ~~s~~ `c` ``` $m$ | d | e \\| f \\",
    "block": "# h", "list": "1. x", "bullet": "- x", "rule": "---", "heading": "===", "quote": "> x",
    "fence": "```\n</details>\n~~~~\n````\n\n# h\n",
    "links": "http://a.example www.a.example a@b.example mailto:x@y.example https://b.example/?q=1|2",
    "mentions": "@octocat @org/team #1 GH-2 org/repo#3",
    "entities": "&lt;b&gt; &#64;octocat &amp;",
    "pipes": "|a|b||c\\|d\\\\|e|",
    "long_word": "x" * 3000,
    "backslashes": "\\" * 50,
    "spaces": "   ",
}  # fmt: skip


@pytest.fixture(params=HOSTILE)
def report(request, filled):
    return filled(HOSTILE[request.param])


def _shown(text):
    """Characters that a terminal or a page would act on, or not show."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")} - {"\n"}


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_terminal_shows_hostile_text_and_keeps_its_width(report, width, ascii_only):
    text = terminal.render(report, width=width, colour=False, ascii_only=ascii_only)
    assert not _shown(text)
    assert max(cell_len(line) for line in text.split("\n")) <= width
    assert text.split("\n") == [*text.splitlines(), ""]
    assert text.isascii() or not ascii_only
    text.encode("utf-8")


def test_rich_markup_is_text(filled):
    text = terminal.render(filled(HOSTILE["rich"]), width=200, colour=False, ascii_only=False)
    assert "[bold red]x[/bold red]" in text
    assert ":smile:" in text


def _tokens(text):
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)


def _skeleton(tokens):
    return [(t.type, t.tag, t.markup if t.type != "fence" else "") for t in tokens if t.type != "html_block"]


def test_markdown_keeps_its_structure_whatever_the_text(report, filled):
    tokens = _tokens(markdown.render(report))
    assert _skeleton(tokens) == _skeleton(_tokens(markdown.render(filled("benign"))))
    inline = {child.type for token in tokens for child in token.children or ()}
    allowed = {
        "text",
        "text_special",
        "code_inline",
        "html_inline",
        "strong_open",
        "strong_close",
        "em_open",
        "em_close",
    }
    assert inline <= allowed | {"softbreak"}


def test_markdown_html_is_only_ours(report):
    for token in _tokens(markdown.render(report)):
        for child in token.children or ():
            if child.type == "html_inline":
                assert child.content in ("<sub>", "</sub>")
        if token.type == "html_block":
            summary = r"<summary>(lost|gained) <code>[^<>]*</code> <code>[^<>]*</code></summary>"
            summary = rf"({summary}|<summary>(Server commands|Endpoints beside accuracy)</summary>)"
            assert re.fullmatch(rf"<details>\n{summary}\n|</details>\n?", token.content), token.content


def test_markdown_links_and_mentions_nobody(report):
    for token in _tokens(markdown.render(report)):
        if token.type != "inline":
            continue
        prose = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", token.content)
        assert not re.search(r"(?i)(?<!\\)://|www\.|@[\w]|(?<!\\)#\d|mailto:\w", prose), prose


def test_markdown_shows_no_acting_character(report):
    assert not _shown(markdown.render(report)) - {"\t", "\u2060"}


def test_json_is_valid_and_lossless_for_hostile_text(report):
    text = report_json.render(report)
    assert report_json.load(text) == report
    assert text.isascii()
    json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8")  # no lone surrogate survives


def test_junit_keeps_its_structure_and_shows_no_acting_character(report, filled):
    text = junit.render(report)
    assert not _shown(text)
    benign = ET.fromstring(junit.render(filled("benign")))
    assert [e.tag for e in ET.fromstring(text.encode()).iter()] == [e.tag for e in benign.iter()]


def _elements(text):
    """Tags with their attributes' names; the strict parser refuses what a browser would have to repair."""
    tree = html5lib.HTMLParser(strict=True).parse(text)
    return [(e.tag, sorted(e.attrib)) for e in tree.iter() if isinstance(e.tag, str)]


def test_the_page_keeps_its_structure_whatever_the_text(report, filled):
    assert _elements(html.render(report)) == _elements(html.render(filled("benign")))


def test_the_page_shows_no_acting_character_neither_its_flips(report):
    text = html.render(report)
    assert not _shown(text) - {"\t"}
    (data,) = re.findall(r'(?s)<script type="application/json" id="flip-data">(.*?)</script>', text)
    assert not set("<>&") & set(data)
    for flip in json.loads(data):
        for string in _strings(flip):
            assert not _shown(string) - {"\t"}


def _strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def test_the_plot_keeps_its_structure_and_shows_no_acting_character(report, filled):
    text = svg.render(report)
    assert not _shown(text)
    benign = ET.fromstring(svg.render(filled("benign")).encode())
    assert {e.tag for e in ET.fromstring(text.encode()).iter()} == {e.tag for e in benign.iter()}


def test_five_megabytes_are_cut_and_the_cut_is_stated(samples):
    huge = "A" * 5_000_000
    report = samples.signed_off()
    flip = dataclasses.replace(report.models[0].flips.shown[0], candidate=Excerpt.of(huge))
    flips = dataclasses.replace(report.models[0].flips, shown=(flip,))
    model = dataclasses.replace(report.models[0], flips=flips, sentence=huge)
    report = dataclasses.replace(
        report,
        models=(model, report.models[1]),
        run=dataclasses.replace(report.run, headline=huge, reasons=(huge,)),
    )
    start = time.monotonic()
    narrow, text = terminal.render(report, width=80, colour=False, ascii_only=False), markdown.render(report)
    page, plot = html.render(report), svg.render(report)
    assert time.monotonic() - start < 10
    assert re.search(r"\[4,999,840\s+more\s+characters\]", narrow)
    assert "[4,999,400 more characters]" in text
    assert len(narrow) < 60_000
    assert len(junit.render(report)) < 100_000
    assert len(page.encode()) < 300_000
    assert "[4,999,400 more characters]" in page
    assert ",4996000]" in page  # of the flip's answer
    assert len(plot) < 100_000
    assert len(text.encode()) < 200_000


def test_markdown_stays_under_200_kb_and_says_what_it_left_out(samples):
    report = samples.signed_off()
    noisy = Excerpt.of("\x1b" * 4000)
    flip = dataclasses.replace(report.models[0].flips.shown[0], prompt=noisy, baseline=noisy, candidate=noisy)
    flips = dataclasses.replace(report.models[0].flips, shown=(flip,) * 500, lost=500)
    model = dataclasses.replace(report.models[0], flips=flips)
    text = markdown.render(dataclasses.replace(report, models=(model, model)))
    assert len(text.encode()) < 200_000
    assert "more are not shown here" in text
    assert text.rstrip().endswith("points or more (power 80.0%).")


def test_markdown_stays_under_200_kb_with_long_hostile_fields_everywhere(filled):
    for payload in ("\U0001f600" * 5000, "\u202e" * 5000, "|" * 5000, "`" * 5000, "<" * 5000):
        report = filled(payload)
        report = dataclasses.replace(report, models=report.models * 15)
        text = markdown.render(report)
        assert len(text.encode()) < 200_000
        assert text.count("⛔ INVALID") >= 2


@given(st.text())
@settings(deadline=None)
def test_clean_leaves_nothing_that_acts(text):
    assert not _shown(clean(text))
    assert clean(text, keep="", ascii_only=True).isascii()


@given(st.text(alphabet="`|\\ab*_<>[]()#@:/.-+=~&$!1 \n", max_size=40))
@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])
def test_cells_and_prose_survive_any_punctuation(text):
    if not text.strip():
        return
    row = f"| a | b |\n|---|---|\n| {md_text(text)} | {md_code(text)} |\n\n{md_text(text)}\n"
    tokens = _tokens(row)
    assert [t.type for t in tokens].count("td_open") == 2
    assert {t.type for t in tokens} <= {
        *(
            "table_open",
            "table_close",
            "thead_open",
            "thead_close",
            "tbody_open",
            "tbody_close",
            "tr_open",
            "tr_close",
        ),
        *("th_open", "th_close", "td_open", "td_close", "inline", "paragraph_open", "paragraph_close"),
    }
    assert {c.type for t in tokens for c in t.children or ()} <= {"text", "text_special", "code_inline"}
    shown = (
        "".join(c.content for c in tokens[-2].children or ()) if tokens[-1].type == "paragraph_close" else ""
    )
    assert shown.replace("\u2060", "").split() == text.replace("\n", "\\n").split()

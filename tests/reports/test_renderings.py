"""What every rendering must hold to: the verdict first and last, the same numbers, no claim too much."""

import re

import pytest
from rich.cells import cell_len

from equipoise.reports import json as report_json
from equipoise.reports import markdown, terminal

NAMES = ["signed_off", "degraded", "inconclusive", "invalid", "incomplete"]
WIDTHS = [60, 79, 80, 99, 100, 120, 123, 124, 160, 200]


def _terminal(report, width=200):
    return terminal.render(report, width=width, colour=False, ascii_only=False, flips=100)


def _renderings(report):
    return {
        "terminal": _terminal(report),
        "terminal 80": _terminal(report, 80),
        "markdown": markdown.render(report),
    }


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_line_is_wider_than_asked(samples, name, width, ascii_only):
    text = terminal.render(samples.REPORTS[name](), width=width, colour=False, ascii_only=ascii_only)
    assert max(cell_len(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize("name", NAMES)
def test_ascii_rendering_is_ascii(samples, name):
    assert terminal.render(samples.REPORTS[name](), width=80, colour=False, ascii_only=True).isascii()


def test_no_escape_codes_when_piped(samples, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b" not in terminal.render(samples.degraded(), width=100)


def test_no_escape_codes_with_no_color_on_a_terminal(samples, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in terminal.render(samples.degraded(), width=100)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in terminal.render(samples.degraded(), width=100)


def test_colour_changes_no_character(samples):
    coloured = terminal.render(samples.degraded(), width=100, colour=True, ascii_only=False)
    plain = terminal.render(samples.degraded(), width=100, colour=False, ascii_only=False)
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_comes_first_and_last_with_its_evidence(samples, name):
    report = samples.REPORTS[name]()
    word = report.run.verdict or "NO VERDICT (incomplete run)"
    for text in _renderings(report).values():
        lines = text.splitlines()
        for part in ("\n".join(lines[:9]), "\n".join(lines[-9:])):
            flat = re.sub(r"[│\s]+", " ", part.replace("\\", ""))
            assert word in flat
            assert f"Rests on {report.run.pairs:,} paired items" in flat
            assert "1.82 points or more" in flat or "is not known" in flat
            assert ("Would decide: about 2,300 items" in flat) == (name == "inconclusive")


@pytest.mark.parametrize("name", NAMES)
def test_indistinguishable_is_said_only_where_the_flag_is_set(samples, name):
    report = samples.REPORTS[name]()
    for text in _renderings(report).values():
        assert ("indistinguishable" in text.lower()) == report.run.indistinguishable


def test_an_incomplete_run_never_shows_a_verdict_of_its_own(samples):
    report = samples.incomplete()
    for text in _renderings(report).values():
        assert "incomplete run" in text
        assert "exit code 0" not in text
        for word in ("SIGNED OFF", "DEGRADED", "INCONCLUSIVE", "INVALID"):
            assert word not in text


@pytest.mark.parametrize("name", NAMES[:4])
def test_numbers_agree_between_renderings_to_the_digits_shown(samples, name):
    report = report_json.load(report_json.render(samples.REPORTS[name]()))
    texts = {kind: text.replace("\\", "") for kind, text in _renderings(report).items()}
    for model in report.models:
        for row in model.rows:
            expected = [f"{row.n:,}", f"{100 * row.margin:.2f}"]
            if row.delta is not None:
                expected += [f"{100 * row.delta:+z.2f}", f"{100 * row.accuracy_candidate:.1f}"]
                expected.append(f"[{100 * row.interval.lo:+z.2f}, {100 * row.interval.hi:+z.2f}]")
            name_shown = getattr(row, "task", "pooled mean")
            for kind, text in texts.items():
                lines = [line for line in text.splitlines() if re.match(rf"[\s|`]*{name_shown}\b", line)]
                assert any(all(number in line for number in expected) for line in lines), (kind, expected)
        for number in (
            f"{model.noise_floor.excess_discordance * 100:+.2f}",
            f"{model.controls[0].delta * 100:+.2f}",
        ):
            assert all(number in text for text in texts.values()), number


def test_a_bound_that_rounds_onto_the_margin_gets_more_digits(samples):
    from equipoise.reports.format import interval
    from equipoise.reports.model import Interval

    assert interval(Interval(lo=-0.049996, hi=0.05001), margin=0.05) == "[-4.9996, +5.001]"
    assert interval(Interval(lo=-0.05, hi=0.01), margin=0.05) == "[-5.00, +1.00]"


def test_an_accuracy_reads_100_only_if_it_is():
    from equipoise.reports.format import percent

    assert percent(1.0) == "100.0"
    assert percent(0.99996) == "99.996"
    assert percent(0.00001) == "0.001"


def test_server_commands_can_be_copied(samples):
    assert "\npython -m sglang.launch_server --model-path kimi-tiny" in markdown.render(samples.degraded())


def test_flips_show_both_answers_lost_first(samples):
    for text in _renderings(samples.signed_off()).values():
        lost, gained = text.index("kv_recall-00017"), text.index("kv_recall-00101")
        assert lost < gained
        assert "4912" in text
        assert "31 lost, 25 gained" in text


def test_the_terminal_shows_gained_flips_even_beside_many_lost(samples):
    text = terminal.render(samples.signed_off(), width=100, colour=False, ascii_only=False, flips=1)
    assert "kv_recall-00101" in text
    assert "kv_recall-00231" not in text


def test_why_what_would_decide_and_limits_are_told(samples):
    for text in _renderings(samples.inconclusive()).values():
        flat = re.sub(r"[│\s]+", " ", text.replace("\\", ""))
        for said in ("L is not above -5.00.", "the loss alarm rejects.", "It was measured on CPU"):
            assert said in flat


def test_missing_answers_errors_and_exclusions_are_told(samples):
    for text in _renderings(samples.invalid()).values():
        flat = re.sub(r"\s+", " ", text.replace("\\", ""))
        for said in (
            "B 187 of 1,800",
            "time-out after 4 attempts",
            "failed for good: 187",
            "HTTP 503",
            "NOT caught",
        ):
            assert said in flat

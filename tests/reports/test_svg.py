"""Plots: well-formed, with the report's numbers in words, and nothing outside the picture."""

import dataclasses
import sys
import xml.etree.ElementTree as ET

import pytest

from equipoise.evals.errors import UsageError
from equipoise.reports import svg
from equipoise.reports.format import interval, points
from equipoise.reports.svg.plot import axis_over, tone_of
from equipoise.reports.svg.png import png

NAMES = ["signed_off", "degraded", "inconclusive", "invalid", "incomplete"]
PLOTS = (svg.forest, svg.power, svg.by_length, svg.by_position)
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(params=NAMES)
def report(request, samples):
    return samples.REPORTS[request.param]()


def test_the_file_is_xml_with_the_verdict_and_every_models_numbers(report):
    root = ET.fromstring(svg.render(report).encode())
    said = " ".join(root.itertext())
    assert (report.run.verdict or "NO VERDICT (incomplete run)") in said
    for model in report.models:
        for row in model.rows:
            assert points(row.delta) in said
            if row.interval is not None:
                assert interval(row.interval, margin=row.margin) in said
            assert row.verdict in said


def test_the_file_needs_nothing_from_elsewhere(report):
    for element in ET.fromstring(svg.render(report).encode()).iter():
        assert element.tag.removeprefix(SVG) in {
            "svg", "title", "desc", "rect", "g", "text", "line", "circle", "polygon"
        }  # fmt: skip
        assert not {name for name in element.attrib if "href" in name or name == "style"}


@pytest.mark.parametrize("layout", ["wide", "narrow"])
@pytest.mark.parametrize("make", PLOTS)
def test_no_mark_lies_outside_the_picture(samples, make, layout):
    for name in NAMES[:4]:
        for model in samples.REPORTS[name]().models:
            if (plot := make(model)) is None:
                continue
            root = ET.fromstring(svg.inline(plot, layout, "x"))
            width, height = (float(x) for x in root.get("viewBox").split()[2:])
            for e in root.iter():
                xs = [float(e.get(k)) for k in ("x", "x1", "x2", "cx") if e.get(k)]
                ys = [float(e.get(k)) for k in ("y", "y1", "y2", "cy") if e.get(k)]
                assert all(0 <= x <= width for x in xs)
                assert all(0 <= y <= height for y in ys)


def test_the_alternative_in_words_names_every_row_with_its_numbers(samples):
    model = samples.degraded().models[0]
    words = svg.power(model).words
    assert "candidate: the decision, -10.40 [-11.25, -9.55], DEGRADED." in words
    assert "A2 against A1: the baseline asked twice, +0.06 [-0.23, +0.34], noise floor passed." in words
    assert "gross control: kv_int4_per_tensor, -10.42 [-11.87, -9.01], caught." in words
    assert "Line at margin 2.50." in words
    assert "Line at would have seen 1.82." in words
    assert (
        "kv_recall, by prompt tokens, 128-255: 92 items, 91.0 > 88.8 %, -2.17 [-5.27, +0.53]."
        in svg.by_length(model).words
    )


def test_lengths_are_in_order_of_their_numbers(samples):
    model = samples.signed_off().models[0]
    labels = ["1024-2047", "128-255", "2-3"]
    rows = tuple(dataclasses.replace(model.secondary.subgroups[0], label=label) for label in labels)
    secondary = dataclasses.replace(model.secondary, subgroups=rows)
    plot = svg.by_length(dataclasses.replace(model, secondary=secondary))
    assert [row.label for row in plot.rows[1:]] == ["2-3", "128-255", "1024-2047"]


@pytest.mark.parametrize("values", [[0.0], [-0.163, 0.02], [1e-7], [-0.5, 0.5], [0.0049]])
def test_an_axis_holds_all_values_and_a_few_round_ticks(values):
    axis = axis_over(values, scale=100, name="points")
    assert all(axis.lo <= v <= axis.hi for v in [0.0, *values])
    assert 2 <= len(axis.ticks) <= 9
    assert "0" in [label for _, label in axis.ticks]


@pytest.mark.parametrize(
    ("verdict", "tone"),
    [
        ("EQUIVALENT", "good"),
        ("NON-INFERIOR (blind)", "good"),
        ("DETECTED-WITHIN-MARGIN", "warn"),
        ("DEGRADED", "bad"),
        ("INVALID", "invalid"),
        (None, "plain"),
        ("SOMETHING", "plain"),
    ],
)
def test_a_verdict_has_its_colour(verdict, tone):
    assert tone_of(verdict) == tone


def test_a_model_without_results_has_no_plot(samples):
    model = samples.incomplete().models[0]
    assert [make(model) for make in PLOTS] == [None] * 4


def test_png_is_a_picture_with_text_in_it(samples):
    pytest.importorskip("resvg_py", reason="resvg-py is not installed")
    try:
        with_text = png(svg.render(samples.degraded()))
    except UsageError as e:
        pytest.skip(str(e))
    assert with_text.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(with_text) > 20_000


def test_png_without_resvg_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(UsageError, match=r"pip install 'equipoise\[png\]'"):
        png("<svg/>")

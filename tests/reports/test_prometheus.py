"""Prometheus' own parser reads the text, whatever the names in it; the numbers are those of the report."""

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from equipoise.reports import prometheus
from equipoise.reports.escape import one_line

NAMES = ["signed_off", "degraded", "inconclusive", "invalid", "incomplete"]


def read(report, *, unique=True):
    """By name, the samples as (labels, value)."""
    families = list(parse(prometheus.render(report)))
    assert len({f.name for f in families}) == len(families)
    assert {f.type for f in families} == {"gauge"}
    found = {}
    for family in families:
        for s in family.samples:
            found.setdefault(s.name.removeprefix("equipoise_"), []).append((s.labels, s.value))
    for samples in found.values():
        keys = [tuple(sorted(labels.items())) for labels, _ in samples]
        assert len(set(keys)) == len(keys) or not unique
    return found


@pytest.mark.parametrize("name", NAMES)
def test_exactly_one_verdict_holds_for_the_run_and_each_model(samples, name):
    report = samples.REPORTS[name]()
    found = read(report)
    holds = [labels["verdict"] for labels, value in found["run_verdict"] if value]
    assert holds == [report.run.verdict or "NO VERDICT"]
    by_model = {labels["model"]: labels["verdict"] for labels, value in found["model_verdict"] if value}
    assert by_model == {m.name: m.verdict or "NO VERDICT" for m in report.models}
    assert [v for _, v in found["run_exit_code"]] == [report.run.exit_code]


@pytest.mark.parametrize("name", NAMES[:4])
def test_the_numbers_are_those_of_the_report_in_full(samples, name):
    report = samples.REPORTS[name]()
    found = read(report)
    for model in report.models:
        for row in model.rows:
            what = "task" if hasattr(row, "task") else "pooled"
            of = {"model": model.name} | ({"task": row.task} if what == "task" else {})
            expected = {"delta": row.delta, "margin": row.margin, "items": row.n, "lost": row.lost}
            expected |= {"delta_lower": row.interval.lo, "delta_upper": row.interval.hi}
            for metric, value in expected.items():
                got = [v for labels, v in found.get(f"{what}_{metric}", []) if of.items() <= labels.items()]
                assert got == ([] if value is None else [value]), (metric, of)


@pytest.mark.parametrize(
    "text",
    ['a"b', "a\\", 'a\\"} 1\n# TYPE x counter', "a\nb", "\x00\x1b[31m\u202e", "a\ud800b", "{}=,#", "x" * 999],
)
def test_no_name_breaks_out_of_its_label(filled, text):
    report = filled(text)
    found = read(report, unique=False)  # every task has this name
    assert found.keys() <= prometheus.HELP.keys()
    (labels, _), *_ = found["run_pairs"]
    assert labels["run"] == one_line(report.run.run_id, prometheus.MAX_LABEL_CHARS)


def test_a_time_that_is_none_has_no_sample(filled):
    assert "run_created_timestamp_seconds" not in read(filled("yesterday"), unique=False)

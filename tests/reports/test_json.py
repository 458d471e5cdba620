"""The JSON report loses nothing and is strict; other versions are read or refused by name."""

import json

import pytest

from equipoise.evals.errors import UsageError
from equipoise.reports import json as report_json
from equipoise.reports import terminal

NAMES = ["signed_off", "degraded", "inconclusive", "invalid", "incomplete"]


def _strict(text: str):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("name", NAMES)
def test_round_trip_is_lossless(samples, name):
    report = samples.REPORTS[name]()
    text = report_json.render(report)
    assert report_json.load(text) == report
    assert report_json.render(report_json.load(text)) == text


def test_json_is_strict_ascii_and_undefined_numbers_are_null_with_a_reason(samples):
    text = report_json.render(samples.invalid())
    assert text.isascii()
    interval = _strict(text)["models"][0]["tasks"][0]["interval"]
    assert interval["lo"] is None
    assert interval["undefined"]["lo"] == "not a number"


def test_numbers_are_not_rounded(samples):
    row = _strict(report_json.render(samples.degraded()))["models"][0]["tasks"][0]
    assert row["p_non_inferiority"] == 0.41234567
    assert row["delta"] == (8 - 81) / 400


def test_a_newer_version_is_refused_with_both_numbers(samples):
    data = json.loads(report_json.render(samples.signed_off())) | {"schema_version": 99}
    with pytest.raises(
        UsageError, match=r"old/report\.json has report schema version 99.*reads up to 1.*Upgrade"
    ):
        report_json.load(json.dumps(data), source="old/report.json")


def test_an_older_version_is_upgraded_step_by_step(samples, monkeypatch):
    report = samples.signed_off()
    data = json.loads(report_json.render(report)) | {"schema_version": 0}
    data["run"]["plan"] = data["run"].pop("plan_name")  # as if version 0 had called it so

    def rename(old):
        old["run"]["plan_name"] = old["run"].pop("plan")
        return old

    with pytest.raises(UsageError, match="cannot upgrade"):
        report_json.load(json.dumps(data))
    monkeypatch.setitem(report_json.UPGRADES, 0, rename)
    assert report_json.load(json.dumps(data)) == report


def test_fields_added_later_take_their_defaults(samples):
    data = json.loads(report_json.render(samples.signed_off()))
    del data["run"]["detection_power"], data["provenance"]["command"]
    report = report_json.load(json.dumps(data))
    assert report.run.detection_power == 0.8
    assert report.provenance.command == ""


def test_a_report_from_before_the_divergence_was_measured_stays_readable(samples):
    data = json.loads(report_json.render(samples.signed_off()))
    row = data["models"][0]["logprobs"][0]
    del row["kl"]
    for bucket in row["buckets"]:
        for later in ("sequences", "abs_delta_logprob_nats", "kl_nats", "kl_interval"):
            del bucket[later]
    (read,) = report_json.load(json.dumps(data)).models[0].logprobs
    assert read.kl is None
    assert [b.kl_nats for b in read.buckets] == [None, None]
    assert read.buckets[1].interval is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["run"].pop("headline"), r"report\.run\.headline is missing"),
        (lambda d: d["run"].update(colour="red"), "report.run has the unknown key 'colour'"),
        (lambda d: d["run"].update(pairs="many"), r"report\.run\.pairs must be an integer, not 'many'"),
        (lambda d: d["run"].update(pairs=True), r"report\.run\.pairs must be an integer"),
        (lambda d: d["models"][0]["tasks"][0].update(margin=None), r"tasks\[0\]\.margin must be a number"),
        (lambda d: d["models"][0]["tasks"][0].update(n=1.5), r"tasks\[0\]\.n must be an integer"),
        (lambda d: d["run"].update(exit_code=1), "SIGNED OFF exits 0, not 1"),
        (lambda d: d["models"][0]["pooled"].update(verdict="SUSPECT"), "cannot say indistinguishable"),
    ],
)
def test_a_changed_file_is_refused_with_the_key(samples, change, message):
    data = json.loads(report_json.render(samples.signed_off()))
    change(data)
    with pytest.raises(UsageError, match=message):
        report_json.load(json.dumps(data))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"schema_version": "1"}', '{"schema_version": NaN}', "[" * 99999]
)
def test_what_is_no_report_is_refused(text):
    with pytest.raises(UsageError, match=r"report\.json"):
        report_json.load(text)


def test_a_report_from_before_secondary_endpoints_is_read_and_shows_its_truncation(samples):
    data = json.loads(report_json.render(samples.signed_off()))
    for model in data["models"]:
        del model["secondary"]
    old = report_json.load(json.dumps(data))
    assert all(m.secondary is None for m in old.models)
    text = terminal.render(old, width=80, colour=False, ascii_only=False)
    assert "Truncated answers (they count as wrong in both arms)" in text
    assert "Faults of answers" not in text

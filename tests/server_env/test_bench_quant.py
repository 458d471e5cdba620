"""The weight benchmark runs, compares what it times bit for bit, and says FAIL where a promise is broken."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "bench"


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module("bench_quant")
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture
def small_files(bench, monkeypatch):
    monkeypatch.setattr(bench.quant_files, "HIDDEN", 256)
    monkeypatch.setattr(bench.quant_files, "TENSOR_BYTES", 2 * 256 * 256)


@pytest.mark.usefixtures("small_files")
def test_a_report_has_a_row_for_each_side_and_a_verdict_for_each_promise(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "MATRICES", {"small": (130, 256)})
    threads = torch.get_num_threads()
    try:
        text = bench.report(1, 0.0, tmp_path, None)
    finally:
        torch.set_num_threads(threads)
    for name in bench.FORMATS:
        assert f"| {name}: compiled |" in text or f"| {name}: torch |" in text
        assert f"| {name}: compressed-tensors" in text
        assert f"| convert to {name}: times load + save | <= 2 |" in text
    assert "| bf16-lossless: this codec, 1 thread |" in text
    rows = text[text.index("## What is promised") :].splitlines()[4:]
    assert len(rows) >= 16 and all(row.endswith(("| PASS |", "| FAIL |")) for row in rows)
    assert list(tmp_path.iterdir()) == []


def test_sides_that_differ_by_a_bit_are_not_timed(bench, monkeypatch):
    x = bench.weights(128, 256)
    compiled, in_torch = bench.ours_quantizing("fp8-channel", x)

    def off_by_one(given):
        codes, scales = in_torch.encode(given)
        other = codes.clone()
        other.view(torch.uint8)[0, 0] ^= 1
        return other, scales

    assert bench.check("fp8-channel", x, [compiled, in_torch]) == ""
    wrong = bench.Side(name=in_torch.name, encode=off_by_one, decode=in_torch.decode)
    with pytest.raises(AssertionError, match="fp8-channel"):
        bench.check("fp8-channel", x, [compiled, wrong])


@pytest.mark.parametrize(
    ("bound", "measured", "most", "verdict"),
    [(10, 9.9, False, "FAIL"), (10, 10, False, "PASS"), (2, 2.1, True, "FAIL"), (2, 0.4, True, "PASS")],
)
def test_a_broken_promise_says_so(bench, bound, measured, most, verdict):
    row = bench.Promise(what="x", bound=bound, measured=measured, most=most).row()
    assert row.endswith(f"| {verdict} |")

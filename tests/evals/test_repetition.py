"""Degenerate repetition: every planted loop is found, and answers that merely repeat are left alone."""

import base64
import gzip
import json
import math
import os
import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.evals import repetition
from equipoise.evals.repetition import find_repetition

SENTENCE = (
    "the cache holds keys and values of each token so that later tokens may read them back without "
    "computing again what was known before a model writes its answer one step at a time"
)


def prose(seed: int, chars: int) -> str:
    rng = random.Random(seed)
    text = ""
    while len(text) < chars:
        text += " ".join(rng.choices(SENTENCE.split(), k=rng.randint(6, 14))).capitalize() + ". "
    return text[:chars]


ORDINARY = {
    "empty": "",
    "prose": prose(1, 20_000),
    "table": "| item | price | stock |\n|------|------:|------:|\n"
    + "".join(f"| part {i} | {i * 7 % 90}.50 | {i * 13 % 40} |\n" for i in range(200)),
    "code": "".join(
        f"    def test_case_{i}(self):\n        self.assertEqual(f({i}), {i * i})\n\n" for i in range(80)
    ),
    "json": json.dumps([{"id": i, "name": f"user {i}", "active": i % 3 == 0} for i in range(200)], indent=2),
    "numbers": ", ".join(map(str, range(2_000))),
    "identity matrix": "\n".join(" ".join("1" if i == j else "0" for j in range(12)) for i in range(12)),
    "rules": "".join(prose(20 + i, 300) + "\n" + "-" * 120 + "\n" for i in range(30)),
    "numbered steps": "".join(f"Step {i}: check element {i}; it is {i * 37 % 101}.\n" for i in range(150)),
    "sorted": "".join(sorted(random.Random(3).choices("abcdefghijklmnopqrstuvwxyz", k=800))),
    "base64": base64.b64encode(random.Random(4).randbytes(6_000)).decode(),
    "copied letters": "".join(random.Random(5).choices("abcdefghijklmnopqrstuvwxyz", k=5_000)),
    "binary": "".join(random.Random(6).choices("01", k=5_000)),
    "chorus": (prose(7, 180) + "\n\n") * 3,
    "html": "<table>\n" + "<tr><td></td><td></td></tr>\n" * 12 + "</table>",
    "chinese": "".join(random.Random(8).choices("的一是在不了有和人这中大为上个国我以要他时来用们", k=4_000)),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_answer_is_no_loop_even_if_it_was_cut(name: str) -> None:
    text = ORDINARY[name]
    assert find_repetition(text) is None
    if name not in ("html", "chorus"):  # these repeat up to their very end
        assert find_repetition(text, truncated=True) is None
        assert find_repetition("", token_ids=list(text.encode())) is None


@given(
    st.integers(0, 2_000),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=400),
    st.integers(0, 2_000),
    st.booleans(),
)
@settings(max_examples=150)
def test_a_planted_loop_is_found_wherever_it_is(before: int, block: str, after: int, truncated: bool) -> None:
    repeats = max(4, -(-600 // len(block)))
    text = prose(9, before) + block * repeats + prose(10, after)
    found = find_repetition(text, truncated=truncated)
    assert found is not None
    if found.unit == "characters":
        run = text[found.start : found.start + found.extent]
        assert run[found.period :] == run[: -found.period]
        assert found.extent >= 600 or truncated
        assert found.repeats >= 3
        assert run.startswith(found.block)


def test_one_character_for_a_thousand_tokens_is_a_loop() -> None:
    found = find_repetition("The answer is" + "!" * 1_000)
    assert found is not None
    assert (found.rule, found.start, found.period, found.extent) == ("loop", 13, 1, 1_000)
    assert (found.block, found.repeats) == ("!", 1_000)


def test_a_loop_needs_its_length_and_its_repeats() -> None:
    block = prose(11, 200)
    assert find_repetition(prose(12, 500) + block * 3) is None
    assert find_repetition(prose(12, 500) + block * 4) is not None
    assert find_repetition("a" * 599) is None
    assert find_repetition("a" * 600) is not None


def test_an_answer_cut_while_it_repeats_is_a_loop_long_before() -> None:
    text = prose(13, 400) + "and so on " * 13
    assert find_repetition(text) is None
    found = find_repetition(text, truncated=True)
    assert found is not None
    assert (found.rule, found.period) == ("loop at the cut", 10)
    assert find_repetition(text + "The end.", truncated=True) is None


def test_a_short_budget_shows_a_loop_that_fills_half_of_it() -> None:
    assert find_repetition("the sum is " + "49" * 27, truncated=True) is not None
    assert find_repetition("the sum is " + "49" * 27) is None
    assert find_repetition("sum 4949494949494949", truncated=True) is None  # too short to tell


def test_tokens_show_a_loop_that_the_text_is_too_short_for() -> None:
    ids = [9, 8, 7, *[5, 6] * 100]
    found = find_repetition("x" * 150, token_ids=ids)
    assert found is not None
    assert (found.unit, found.start, found.period, found.extent, found.block) == ("tokens", 3, 2, 200, "")
    assert find_repetition("x" * 150, token_ids=list(range(200))) is None
    for odd in (-1, 0xD800, 2**40):  # no character's code, or half of one's
        assert find_repetition("", token_ids=[odd, 6] * 100) is not None
        assert find_repetition("", token_ids=[odd, *range(200)]) is None
    cut = find_repetition("", token_ids=[*range(50), *[1, 2, 3, 4] * 13], truncated=True)
    assert cut is not None
    assert cut.rule == "loop at the cut"


def test_a_loop_that_counts_is_found_by_its_compression() -> None:
    block = prose(14, 900)
    found = find_repetition("".join(f"{i}. {block}" for i in range(100)))
    assert found is not None
    assert (found.rule, found.unit, found.period) == ("compressible", "bytes", 0)
    assert math.isnan(found.repeats)


def test_a_long_normal_start_does_not_hide_a_loop_that_compression_finds() -> None:
    loop = "".join(f"{i}. {prose(14, 900)}" for i in range(60))
    assert find_repetition(prose(15, 200_000) + loop) is not None


def test_a_right_answer_that_repeats_makes_it_no_fault() -> None:
    assert find_repetition("ha " * 500, expected="ha " * 500) is None
    assert find_repetition("ha " * 500, expected="ho") is not None


def test_any_text_can_be_looked_at() -> None:
    for text in ("\ud800" * 700, "\x00" * 700, "é" * 700, "🙂" * 700):
        assert find_repetition(text) is not None
    assert find_repetition("\ud800" + prose(16, 3_000)) is None


def brute_force(text: str, rule: repetition._LoopRule) -> bool:
    for period in range(1, rule.max_period + 1):
        extent = period
        for i in range(period, len(text)):
            extent = extent + 1 if text[i] == text[i - period] else period
            if extent >= rule.needed(period):
                return True
    return False


@given(
    st.lists(st.text("ab", min_size=1, max_size=6), max_size=12),
    st.lists(st.integers(1, 6), min_size=12, max_size=12),
)
@settings(max_examples=500)
def test_the_search_agrees_with_brute_force(blocks: list[str], repeats: list[int]) -> None:
    rule = repetition._LoopRule(min_extent=12, min_repeats=3, max_period=8)
    text = "".join(block * k for block, k in zip(blocks, repeats, strict=False))
    run = repetition._loop_anywhere(text, rule)
    assert (run is not None) == brute_force(text, rule)
    if run is not None:
        start, period, extent = run
        assert extent >= rule.needed(period)
        assert text[start + period : start + extent] == text[start : start + extent - period]


def padded_rows(rng: random.Random) -> str:
    return "".join(f"| {rng.random()} {' ' * rng.randint(300, 500)}|\n" for _ in range(2_300))


def runs_of_one(rng: random.Random) -> str:
    return "".join("a" * rng.randint(1, 250) + rng.choice("bcdefg") for _ in range(8_000))


def fibonacci(_: random.Random) -> str:
    one, other = "a", "ab"
    while len(other) < 1_000_000:
        one, other = other, other + one
    return other[:1_000_000]


@pytest.mark.parametrize("make", [padded_rows, runs_of_one, fibonacci])
def test_a_hostile_megabyte_takes_seconds_not_minutes(make) -> None:
    text = make(random.Random(17))
    started = time.perf_counter()
    repetition._loop_anywhere(text, repetition._ANYWHERE["characters"])
    assert time.perf_counter() - started < 20.0


def _data(name: str) -> Path:
    path = Path(os.environ.get("EQUIPOISE_DATA", "/nonexistent")) / name
    if not path.is_file():
        pytest.skip(f"EQUIPOISE_DATA has no {name}")
    return path


def test_no_reference_solution_is_a_loop() -> None:
    solutions = [json.loads(line)["answer"] for line in _data("gsm8k/test.jsonl").open()]
    with gzip.open(_data("humaneval/HumanEval.jsonl.gz"), "rt") as lines:
        for row in map(json.loads, lines):
            solutions += [row["canonical_solution"], row["prompt"], row["test"]]
    assert len(solutions) == 1_319 + 3 * 164
    assert [s for s in solutions if find_repetition(s, truncated=True)] == []


def test_of_5276_solutions_by_models_the_five_that_loop_are_found() -> None:
    found = []
    for row in map(json.loads, _data("paired/gsm8k_example_model_solutions.jsonl").open()):
        for model in ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"):
            solution = row[model]["solution"]
            if (one := find_repetition(solution)) is not None:
                found.append((one.period, solution[one.start :][:9]))
    assert sorted(found)[:4] == [(1, "333333333"), (2, "272727272"), (2, "818181818"), (2, "818181818")]
    assert len(found) == 5

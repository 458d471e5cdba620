"""The number that an answer gives."""

import json
import os
from fractions import Fraction
from pathlib import Path

import pytest

from equipoise.tasks.graders.number import grade_number, last_number, read_number


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("ANSWER: 18", "18"),
        ("#### 1,000", "1000"),
        ("#### Step 4: add\nIt is 9.", "9"),
        ("ANSWER: $1,234.50", "1234.5"),
        ("ANSWER: 033", "33"),
        ("ANSWER: .5", "1/2"),
        ("**ANSWER:** 42", "42"),
        ("The answer is 42. I checked it 3 times.", "42"),
        ("ANSWER: 16 - 3 - 4 = 9", "9"),
        ("ANSWER: 18 dollars (9 × 2)", "18"),
        ("The result is 18.", "18"),
        ("16-3", "3"),
        ("The answer is −5", "-5"),
        ("it costs $-5", "-5"),
        ("-$5", "-5"),
        ("(-7)", "-7"),
        (r"\boxed{-\frac{3}{4}}", "-3/4"),
        ("So 3/4 of it", "3/4"),
        ("ANSWER: 18%", "18"),
        ("1.5e3", "1500"),
        ("2 × 10^3", "2000"),
        (r"12{,}000", "12000"),
        ("70\u00a0000", "70000"),
        ("80'000", "80000"),
        ("ANSWER: 70 000", "70000"),
        ("1.234.567", "1234567"),
        ("1.234,56", "30864/25"),
        ("ANSWER: 7,5", "15/2"),
        ("১৮", "18"),
        ("١٨", "18"),
        ("答案是 8万", "80000"),
        ("ANSWER: three (3)", "3"),
    ],
)
def test_numbers_are_read_exactly(answer: str, value: str) -> None:
    found = last_number(answer)
    assert found is not None
    assert found[1] == Fraction(value)


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("1.234", 1234),
        ("70.000", 70000),
        ("3,5", 3.5),
        ("70 000 $", 70000),
        ("1.234,5", 1234.5),
        ("1,234", 1234),
        ("0,125", 0.125),
    ],
)
def test_with_decimal_commas_points_group_thousands(answer: str, value: float) -> None:
    found = last_number(answer, decimal_comma=True)
    assert found is not None
    assert found[1] == Fraction(value)


@pytest.mark.parametrize(
    "answer", ["", "no number", "1.2.3", "5/0", "\\frac{1}{0}", "1" * 500_000, "$" * 100_000]
)
def test_what_is_no_number_is_not_extracted(answer: str) -> None:
    grade = grade_number(answer, "5")
    assert (grade.value, grade.extracted) == (0.0, None)


def test_no_exponent_makes_a_number_of_a_million_digits() -> None:
    assert grade_number("ANSWER: 1e999", "1").value == 0.0
    assert read_number("1e61") is None


@pytest.mark.parametrize(
    "unit", ["-", "1,", "1 ", "\\frac{1", "#### ", "#### 1\n", "answer is 5 ", "1/", "$ ", "1e9 "]
)
def test_hostile_text_is_read_in_bounded_steps(unit: str) -> None:
    assert grade_number(unit * (1_000_000 // len(unit)) + "\nANSWER: 7", "7").value == 1.0


def test_a_target_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="'about ten' is not a number"):
        grade_number("10", "about ten")


def test_published_solutions_of_four_models_are_graded_as_published() -> None:
    path = Path(os.environ.get("EQUIPOISE_DATA", "")) / "paired" / "gsm8k_example_model_solutions.jsonl"
    if not path.is_file():
        pytest.skip("EQUIPOISE_DATA has no paired/gsm8k_example_model_solutions.jsonl")
    graded = 0
    for line in path.read_text().splitlines():
        row = json.loads(line)
        target = row["ground_truth"].rpartition("A: ")[2]
        for solution in (v for v in row.values() if isinstance(v, dict)):
            right = grade_number(solution["solution"], target).value == 1.0
            assert right is solution["is_correct"], solution["solution"]
            graded += 1
    assert graded == 4 * 1319

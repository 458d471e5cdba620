"""Equality of mathematical answers, and a process that may not hang."""

import os

import pytest

from equipoise.tasks.graders.math import final_expression, grade_math
from equipoise.tasks.graders.math_process import Comparer


@pytest.mark.parametrize(
    ("answer", "expression"),
    [
        (r"so it is $\boxed{\frac{3}{4}}$.", r"\frac{3}{4}"),
        (r"**ANSWER: $\sqrt{117}$**", r"\sqrt{117}"),
        ("The answer is $x=5$, as wanted.", "x=5"),
        ("ANSWER: -q+p.", "-q+p"),
        ("so we get $$\\frac 5 9$$", "\\frac 5 9"),
        (r"hence \[ x^2 \] holds", "x^2"),
        ("therefore 5.", "5"),
        ("I do not know", None),
        ("$" * 100_000, None),
        ("\\boxed{" * 100_000, None),
    ],
)
def test_the_declared_expression_is_graded_or_else_the_last(answer: str, expression: str | None) -> None:
    assert final_expression(answer) == expression


@pytest.mark.parametrize(
    ("answer", "target"),
    [
        (r"\left(3,\frac{\pi}{2}\right)", r"\left( 3, \frac{\pi}{2} \right)"),
        (r"(3,\pi/2)", r"\left( 3, \frac{\pi}{2} \right)"),
        ("Evelyn", r"\text{Evelyn}"),
        ("C", r"\text{(C)}"),
        ("10,080", "10080"),
        ("0.75", r"\frac{3}{4}"),
        (r"-\dfrac{3}{4}", r"-\frac{3}{4}"),
        ("5/9", r"\frac 59"),
        ("2,1", "1,2"),
        ("-5i+6", "6-5i"),
        ("3x+x^{3}-6", "x^3+3x-6"),
        ("[-2,7]", r"x \in [-2,7]"),
        ("90", r"90^\circ"),
        ("5.4", r"5.4 \text{ cents}"),
        (r"1-\sqrt{19},1+\sqrt{19}", r"1 \pm \sqrt{19}"),
        (r"\begin{pmatrix} 0.2 \\ -3.6 \end{pmatrix}", r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}"),
    ],
)
def test_equal_expressions_are_right(answer: str, target: str) -> None:
    assert grade_math(f"\\boxed{{{answer}}}", target).value == 1.0


@pytest.mark.parametrize(
    ("answer", "target"),
    [
        ("3", "4"),
        ("0.33", r"\frac{1}{3}"),
        ("2.83", r"2\sqrt{2}"),
        (r"\frac{4}{3}", r"\frac{3}{4}"),
        ("x^2", "x^3"),
        ("(1,2)", "(2,1)"),
        ("Evelin", r"\text{Evelyn}"),
        ("x" * 600, "x"),
    ],
)
def test_different_expressions_are_wrong(answer: str, target: str) -> None:
    grade = grade_math(f"ANSWER: {answer}", target)
    assert (grade.value, bool(grade.extracted)) == (0.0, True)


def test_what_takes_too_long_is_a_reason_and_the_next_comparison_works() -> None:
    comparer = Comparer(cpu_s=0.5)
    try:
        assert comparer.compare("5", "9^{9^{9^{9}}}") == {"failed": "not comparable within 0.5 s"}
        assert comparer.compare("x+1", "1+x") == {"equal": True, "read": True}
    finally:
        comparer.close()


def test_text_is_never_run_as_python(tmp_path) -> None:  # type: ignore[no-untyped-def]
    made = tmp_path / "made"
    attack = f"__import__('os').mkdir('{made}')"
    assert grade_math(f"\\boxed{{{attack}}}", "5").value == 0.0
    assert not made.exists()


def test_one_process_serves_all_comparisons_and_ends_with_close() -> None:
    comparer = Comparer()
    comparer.compare("x", "y")
    first = comparer._process
    assert first is not None
    comparer.compare("x", "x+0")
    assert comparer._process is first
    comparer.close()
    with pytest.raises(ProcessLookupError):
        os.kill(first.pid, 0)

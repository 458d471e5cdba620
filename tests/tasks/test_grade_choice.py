"""The letter that an answer chooses."""

import pytest

from equipoise.tasks.graders.choice import chosen_letter, grade_choice


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("ANSWER: C", "C"),
        ("ANSWER:C", "C"),
        ("answer: c", "C"),
        ("The answer is (C).", "C"),
        ("**Answer:** C", "C"),
        ("**ANSWER: (C)**", "C"),
        ("Answer:\n\nC", "C"),
        ("Final Answer: The final answer is $\\boxed{C}$. I hope it is correct.", "C"),
        (r"so \boxed{\textbf{(C)}\ 12}", "C"),
        ("The correct answer is option D because it is odd", "D"),
        ("The best choice is D", "D"),
        ("Answer is A because it is even", "A"),
        ("(B) is correct, but A is tempting", "B"),
        ("ANSWER: C) Rome", "C"),
        ("ANSWER: C\n\nI hope this helps!", "C"),
        ("The answer is B.\n\nA) Paris\nB) London", "B"),
        ("It cannot be A.\n\n**C**", "C"),
        ("C. Paris", "C"),
        ("It is a capital: **C) Paris**", "C"),
        ("答案：C", "C"),
        ("故选C。", "C"),
        ("因此选C。", "C"),
        ("正确选项是 (C)", "C"),
        ("答案：Ｃ", "C"),
        ("ANSWER: \u200bC", "C"),
        ("ANSWER: 'C'", "C"),
        (r"ANSWER: \(C\)", "C"),
        (r"ANSWER: \( \mathbf{(C)} \)", "C"),
        ("It follows.\n\n\\[ C \\]", "C"),
        ("ANSWER: C\n\nWhy: B is the best known trap, and A is right only for x < 0.", "C"),
        (r"\boxed{C}, although B is correct for n = 1", "C"),
    ],
)
def test_a_declared_option_is_chosen(answer: str, letter: str) -> None:
    assert chosen_letter(answer)[0] == letter


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("The answer is B. Wait, no. The answer is C.", "C"),
        ("ANSWER: B\n\nOn reflection:\n\nANSWER: C", "C"),
        (r"\boxed{B}, no: \boxed{D}", "D"),
        ("The answer is B? Let me check.\nC", "C"),
        ("ANSWER: A or B. In the end, ANSWER: B", "B"),
        ("The answer is A? No: B is correct.", "B"),
    ],
)
def test_the_last_statement_counts(answer: str, letter: str) -> None:
    assert chosen_letter(answer)[0] == letter


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "A good question. I think so.",
        "The answer is C or D",
        "Answer: A, B",
        "ANSWER: B/C",
        "The answer is not C.",
        "The answer is A good one",
        "ANSWER: X",
        "A) one\nB) two\nC) three",
        "ANSWER: both A and C",
        "The answer is A's colour",
        r"ANSWER: \(A\) or \(B\)",
        "Between **A** and **B** I cannot decide",
    ],
)
def test_none_or_several_options_are_no_choice(answer: str) -> None:
    grade = grade_choice(answer, "C")
    assert (grade.value, grade.extracted) == (0.0, None)
    assert grade.reason


def test_letters_beyond_the_options_are_no_choice() -> None:
    assert chosen_letter("ANSWER: E", letters="ABCD")[0] is None
    assert chosen_letter("ANSWER: E", letters="ABCDE")[0] == "E"


def test_a_target_that_is_no_option_is_refused() -> None:
    with pytest.raises(ValueError, match="'K' is none of the options"):
        grade_choice("ANSWER: A", "K")
    assert grade_choice("ANSWER: A", "(A)").value == 1.0


@pytest.mark.parametrize(
    "unit", ["answer ", "answer", "answer: A ", "\\boxed{", "*", "(", "A", " ", "**A", "A. ", "答案是"]
)
def test_hostile_text_is_read_in_bounded_steps(unit: str) -> None:
    assert chosen_letter(unit * (1_000_000 // len(unit)) + "\nANSWER: C")[0] == "C"

"""Short answers of a known kind."""

import pytest

from equipoise.tasks.graders.short import Kind, grade_short, kind_of


@pytest.mark.parametrize(
    ("kind", "target", "answer", "value"),
    [
        ("letter", "(B)", "ANSWER: B", 1),
        ("letter", "(B)", "ANSWER: (A)", 0),
        ("text", "Jaws, Inc", "ANSWER: jaws inc.", 1),
        ("yes/no", "Yes", "No, wait.\nANSWER: **yes**", 1),
        ("yes/no", "Yes", "So she tells the truth: yes.", 1),
        ("yes/no", "Yes", "ANSWER: No", 0),
        ("valid/invalid", "valid", "ANSWER: invalid", 0),
        ("true/false", "True", "\\boxed{True}", 1),
        ("number", "8", "ANSWER: 8 objects", 1),
        ("brackets", "] ] >", "ANSWER: `]]>`", 1),
        ("brackets", "] ] >", "] ] >", 1),
        ("brackets", "] ] >", "ANSWER: ] > ]", 0),
        ("words", "an bee sea", "ANSWER: An, bee, sea.", 1),
        ("words", "an bee sea", "ANSWER: an sea bee", 0),
        ("words", "it&t o'connell", "ANSWER: it&t o'connell", 1),
    ],
)
def test_each_kind_is_read_as_it_is_written(kind: Kind, target: str, answer: str, value: float) -> None:
    assert grade_short(answer, target, kind).value == value


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("yes/no", "yes and no"),
        ("yes/no", ""),
        ("brackets", "none"),
        ("number", "none"),
        ("letter", "A good one"),
    ],
)
def test_what_declares_nothing_of_the_kind_is_not_extracted(kind: Kind, answer: str) -> None:
    target = {"yes/no": "Yes", "brackets": ")", "number": "1", "letter": "(A)"}[kind]
    grade = grade_short(answer, target, kind)
    assert (grade.value, grade.extracted) == (0.0, None)


@pytest.mark.parametrize(
    ("question", "target", "expected", "kind"),
    [
        ("?\nOptions:\n(A) x\n(B) Jaws", "(A)", "letter", ("letter", "(A)")),
        ("?\nOptions:\n(A) x\n(B) Jaws", "jaws", "letter", ("letter", "(B)")),
        ("?\nOptions:\n(A) x\n(B) y", "z", "letter", ("text", "z")),
        ("?", "-12", "number", ("number", "-12")),
    ],
)
def test_an_options_text_is_read_as_its_letter(
    question: str, target: str, expected: Kind, kind: tuple[str, str]
) -> None:
    assert kind_of(question, target, expected) == kind


@pytest.mark.parametrize(
    ("kind", "target"),
    [("number", "x"), ("brackets", "a"), ("words", " "), ("yes/no", "Maybe"), ("brackets", "")],
)
def test_a_target_of_another_kind_is_refused(kind: Kind, target: str) -> None:
    with pytest.raises(ValueError, match=f"is not of the kind {kind}"):
        kind_of("?", target, kind)


@pytest.mark.parametrize("kind", ["yes/no", "brackets", "words", "text"])
@pytest.mark.parametrize("unit", ["yes ", "]", "answer: ", "\\boxed{", "a,"])
def test_hostile_text_is_read_in_bounded_steps(kind: Kind, unit: str) -> None:
    target = "Yes" if kind == "yes/no" else "] )"
    found = grade_short(unit * (1_000_000 // len(unit)), target, kind)
    assert 0.0 <= found.value <= 1.0

"""What a grader says of one answer."""

from dataclasses import dataclass

__all__ = ["Grade"]

MAX_EXTRACTED_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """``value`` in [0, 1]; ``extracted`` is what was graded, None if nothing could be found to grade.

    ``reason`` says why the value is not 1, or how the answer was found.
    """

    value: float
    extracted: str | None
    reason: str = ""

    def __post_init__(self) -> None:
        if not 0.0 <= self.value <= 1.0:
            raise ValueError(f"a grade is in [0, 1], not {self.value}")
        if self.extracted is not None and len(self.extracted) > MAX_EXTRACTED_CHARS:
            object.__setattr__(self, "extracted", self.extracted[:MAX_EXTRACTED_CHARS] + "...")

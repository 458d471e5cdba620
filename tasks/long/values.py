"""What is hidden in long texts: keys that are asked by, and values that nobody could guess."""

import random
import re
import uuid
from collections.abc import Mapping
from types import MappingProxyType

from equipoise.tasks.long.prose import uniform
from equipoise.tasks.long.vocabulary import ADJECTIVES, NOUNS

__all__ = ["VALUE_FORMS", "VALUE_WORDS", "draw_keys", "draw_values", "require_form"]

#: By form, what finds a value in lower-case text.
VALUE_FORMS: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "numbers": re.compile(r"(?<!\d)\d{7}(?!\d)"),
        "words": re.compile(r"(?<![a-z-])[a-z]{2,20}-[a-z]{2,20}(?![a-z-])"),
        "uuids": re.compile(r"(?<![0-9a-f-])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f-])"),
    }
)

#: What one value of a form is called.
VALUE_WORDS: Mapping[str, str] = MappingProxyType(
    {"numbers": "number", "words": "word", "uuids": "identifier"}
)


def require_form(values: str) -> None:
    """Raise ValueError unless there is such a form."""
    if values not in VALUE_FORMS:
        raise ValueError(f"values must be one of {', '.join(VALUE_FORMS)}, not {values!r}")


def draw_keys(rng: random.Random, n: int) -> list[str]:
    """``n`` different keys such as ``crimson lantern``."""
    pick = uniform(rng)
    found: dict[str, None] = {}
    while len(found) < n:
        found[f"{pick(ADJECTIVES)} {pick(NOUNS)}"] = None
    return list(found)


def draw_values(rng: random.Random, n: int, form: str) -> list[str]:
    """``n`` different values: of seven digits, two words with a hyphen, or a UUID."""
    pick = uniform(rng)
    found: dict[str, None] = {}
    while len(found) < n:
        if form == "numbers":
            value = str(1_000_000 + int(rng.random() * 9_000_000))
        elif form == "words":
            value = f"{pick(ADJECTIVES)}-{pick(NOUNS)}"
        else:
            value = str(uuid.UUID(int=rng.getrandbits(128)))
        found[value] = None
    return list(found)

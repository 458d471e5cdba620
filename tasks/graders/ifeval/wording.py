"""Instructions about the words of an answer: which, how many, in which language and case.

Every function takes the instruction's arguments and the answer, and says whether it was followed and what was
found. Linear in the answer's length: answers are hostile.
"""

import re
from collections.abc import Mapping
from typing import Any

from equipoise.tasks.graders.ifeval.counting import count_capital_words, count_sentences, count_words
from equipoise.tasks.graders.ifeval.language import language_of
from equipoise.tasks.graders.ifeval.relation import Found, related

__all__ = [
    "all_capitals",
    "all_lowercase",
    "capital_words",
    "end_phrase",
    "first_word",
    "forbidden_words",
    "keyword_frequency",
    "keywords",
    "language",
    "letter_frequency",
    "no_comma",
    "repeat_prompt",
    "sentences",
    "words",
]


def keywords(args: Mapping[str, Any], answer: str) -> Found:
    """Has all of these, in any case, also within words."""
    missing = [k for k in args["keywords"] if not re.search(re.escape(k), answer, re.IGNORECASE)]
    return not missing, f"without {', '.join(map(repr, missing))}" if missing else "all keywords"


def keyword_frequency(args: Mapping[str, Any], answer: str) -> Found:
    """Has this so often, in any case, also within words."""
    keyword = args["keyword"].strip()
    found = sum(1 for _ in re.finditer(re.escape(keyword), answer, re.IGNORECASE))
    return related(found, args["relation"], args["frequency"], f"of {keyword!r}")


def forbidden_words(args: Mapping[str, Any], answer: str) -> Found:
    """Has none of these as whole words."""
    used = [w for w in args["forbidden_words"] if re.search(rf"\b{re.escape(w)}\b", answer, re.IGNORECASE)]
    return not used, f"uses {', '.join(map(repr, used))}" if used else "no forbidden word"


def letter_frequency(args: Mapping[str, Any], answer: str) -> Found:
    """Has this character so often, in either case."""
    letter = args["letter"].lower()
    return related(
        answer.lower().count(letter), args["let_relation"], args["let_frequency"], f"of {letter!r}"
    )


def language(args: Mapping[str, Any], answer: str) -> Found:
    """Is in this language; a text that tells none follows, as in the reference."""
    found = language_of(answer)
    return found in (None, args["language"]), f"in {found!r}, wanted {args['language']!r}"


def sentences(args: Mapping[str, Any], answer: str) -> Found:
    """Has so many sentences."""
    return related(count_sentences(answer), args["relation"], args["num_sentences"], "sentences")


def words(args: Mapping[str, Any], answer: str) -> Found:
    """Has so many words."""
    return related(count_words(answer), args["relation"], args["num_words"], "words")


def first_word(args: Mapping[str, Any], answer: str) -> Found:
    """Has exactly so many paragraphs, parted by blank lines, of which the nth begins with this word.

    The number counts paragraphs that are not empty, the position all of them, as in the reference.
    """
    parts = answer.split("\n\n")
    found = sum(bool(p.strip()) for p in parts)
    nth, wanted = args["nth_paragraph"], args["first_word"].strip().lower()
    here = parts[nth - 1].split(maxsplit=1) if 1 <= nth <= min(found, len(parts)) else []
    if not here:
        return False, f"{found} paragraphs, no paragraph {nth}"
    word = re.split(r"[.,?!'\"]", here[0].lstrip("'").lstrip('"'), maxsplit=1)[0].lower()
    followed = found == args["num_paragraphs"] and word == wanted
    return (
        followed,
        f"{found} paragraphs, wanted {args['num_paragraphs']}; paragraph {nth} begins {word[:40]!r}",
    )


def repeat_prompt(args: Mapping[str, Any], answer: str) -> Found:
    """Begins with the request, word for word."""
    followed = answer.strip().lower().startswith(args["prompt_to_repeat"].strip().lower())
    return followed, f"{'begins' if followed else 'does not begin'} with the request"


def end_phrase(args: Mapping[str, Any], answer: str) -> Found:
    """Ends with this phrase."""
    phrase = args["end_phrase"].strip()
    followed = answer.strip().strip('"').lower().endswith(phrase.lower())
    return followed, f"{'ends' if followed else 'does not end'} with {phrase!r}"


def capital_words(args: Mapping[str, Any], answer: str) -> Found:
    """Has so many words all in capitals."""
    found = count_capital_words(answer)
    return related(found, args["capital_relation"], args["capital_frequency"], "words in capitals")


def all_capitals(args: Mapping[str, Any], answer: str) -> Found:
    """Is English, all in capitals."""
    return _cased(answer.isupper(), answer, "capitals")


def all_lowercase(args: Mapping[str, Any], answer: str) -> Found:
    """Is English, all in lower case."""
    return _cased(answer.islower(), answer, "lower case")


def _cased(right: bool, answer: str, case: str) -> Found:
    if not right:
        return False, f"not all in {case}"
    found = language_of(answer)
    return found in (None, "en"), f"in {case}, language {found!r}"


def no_comma(args: Mapping[str, Any], answer: str) -> Found:
    """Has no comma."""
    return "," not in answer, f"{answer.count(',')} commas"

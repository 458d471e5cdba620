"""Which number does an answer give? The declared one, else the last in the text; compared exactly.

Read are thousands separators, decimal commas, signs, fractions, exponents, percent signs (18% is 18),
currencies and units around the number, the decimal digits of every script, and 万 and 億.
"""

import unicodedata
from fractions import Fraction

import regex

from equipoise.tasks.graders.final import Statement, read_end, statements
from equipoise.tasks.graders.grade import Grade

__all__ = ["grade_number", "last_number", "read_number"]

MAX_DIGITS = 60
MAX_EXPONENT = 60
_MINUS = str.maketrans(dict.fromkeys("−–—﹣－‐‑", "-"))
_SPACES = str.maketrans(dict.fromkeys("\u00a0\u2007\u2009\u202f\u2006", "\u00a0"))
_SPACED = regex.compile(r"(?<=\d) (?=\d{3}(?!\d))")
_DIGITS = rf"\d{{1,{MAX_DIGITS}}}"
_NUMBER = regex.compile(
    # A minus after a digit, a letter or a bracket subtracts.
    r"(?P<sign>(?<![\w)\]}])[-+]\s?)?(?:(?:\\?[$€£¥₹]|[A-Z]{2,3}\$)\s?)?(?P<sign2>(?<=[$€£¥₹]\s?)-)?"
    r"(?:\\[dt]?frac\s?\{\s?(?P<ftop>-?\d{1,60})\s?\}\s?\{\s?(?P<fbottom>\d{1,60})\s?\}"
    rf"|(?P<whole>(?<!\d){_DIGITS}(?:(?:[.,'’\u00a0]|\{{,\}}|\\[,!]){{1,2}}\d{{1,{MAX_DIGITS}}}){{0,20}}|\.\d{{1,{MAX_DIGITS}}})(?!\d)"
    rf"(?:\s?/\s?(?P<bottom>{_DIGITS})(?![\d/]))?"
    r"(?:[eE](?P<e>[-+]?\d{1,3})(?!\w)|\s?(?:×|\\times|\*)\s?10\s?\^\s?\{?(?P<p>-?\d{1,3})\}?)?"
    r"\s?(?P<myriad>[万萬億亿])?)"
)
_MYRIADS = {"万": 10**4, "萬": 10**4, "億": 10**8, "亿": 10**8}


def grade_number(answer: str, target: str, *, decimal_comma: bool = False) -> Grade:
    """1 if the answer's number equals the target's; ``decimal_comma``: 1.234 is 1234 and 1,5 is 3/2.

    Raises
    ------
    ValueError
        The target is no number: the data is wrong, not the answer.
    """
    wanted = read_number(target)
    if wanted is None:
        raise ValueError(f"the target {target[:80]!r} is not a number")
    found = last_number(answer, decimal_comma=decimal_comma)
    if found is None:
        return Grade(value=0.0, extracted=None, reason="the answer has no number")
    text, value, how = found
    return Grade(value=float(value == wanted), extracted=text, reason=how)


def last_number(answer: str, *, decimal_comma: bool = False) -> tuple[str, Fraction, str] | None:
    """The number that an answer declares, or else its last one: as written, its value, how it was found."""
    text = _plain(read_end(answer))
    if decimal_comma:
        text = _SPACED.sub("\u00a0", text)
    for statement in reversed(statements(text)):
        declared = _of_statement(statement, decimal_comma)
        if declared is not None:
            return *declared, ""
    for match in reversed(list(_NUMBER.finditer(text))):
        value = _value(match, decimal_comma)
        if value is not None:
            return match[0].strip(), value, "the last number of the text"
    return None


def read_number(text: str, *, decimal_comma: bool = False) -> Fraction | None:
    """The value of a text that is one number, with a currency or a percent sign; None if it is not."""
    match = _NUMBER.fullmatch(_plain(text).strip().rstrip("%").rstrip("\\").strip())
    return None if match is None else _value(match, decimal_comma)


def _of_statement(statement: Statement, decimal_comma: bool) -> tuple[str, Fraction] | None:
    """The number behind the last equals sign, the first one there."""
    text = _SPACED.sub("\u00a0", statement.text)
    for part in (text.rpartition("=")[2], text):
        for match in _NUMBER.finditer(part):
            value = _value(match, decimal_comma)
            if value is not None:
                return match[0].strip(), value
    return None


def _plain(text: str) -> str:
    """ASCII digits and minus signs, one kind of narrow space."""
    text = text.translate(_MINUS).translate(_SPACES)
    if text.isascii():
        return text
    return "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text.replace("，", ","))


def _value(match: regex.Match[str], decimal_comma: bool) -> Fraction | None:
    sign = -1 if (match["sign"] or match["sign2"] or "").startswith("-") else 1
    if match["ftop"]:
        bottom = int(match["fbottom"])
        return None if bottom == 0 else sign * Fraction(int(match["ftop"]), bottom)
    digits = _decimal(match["whole"], decimal_comma)
    exponent = int(match["e"] or match["p"] or 0)
    if digits is None or abs(exponent) > MAX_EXPONENT:
        return None
    value = sign * Fraction(digits) * Fraction(10) ** exponent * _MYRIADS.get(match["myriad"] or "", 1)
    if match["bottom"]:
        below = int(match["bottom"])
        return None if below == 0 else value / below
    return value


def _decimal(text: str, decimal_comma: bool) -> str | None:
    """Digits with at most one decimal point; None for what is no number (1.2.3)."""
    for group in ("{,}", "\\,", "\\!", "'", "’", "\u00a0"):
        text = text.replace(group, "'" if group in ("'", "’", "\u00a0") else ",")
    text = text.replace(",,", ",")
    if "'" in text:
        if regex.fullmatch(r"\d{1,3}(?:'\d{3})+(?:[.,]\d+)?", text) is None:
            return None
        return text.replace("'", "").replace(",", ".")
    point, group = (",", ".") if decimal_comma else (".", ",")
    if point in text and group in text:  # the later one is the decimal point, whatever the language
        point, group = (".", ",") if text.rfind(".") > text.rfind(",") else (",", ".")
    grouped = regex.compile(rf"[1-9]\d{{0,2}}(?:\{group}\d{{3}})+(?:\{point}\d+)?")
    if group in text and grouped.fullmatch(text):
        return text.replace(group, "").replace(point, ".")
    # English groups are read in every language: 5,600 is not 5.6 with two noughts.
    groups = "+" if point == "," else "{2,}"
    if regex.fullmatch(rf"[1-9]\d{{0,2}}(?:\{point}\d{{3}}){groups}", text):
        return text.replace(point, "")
    text = text.replace(",", ".")
    return text if text.count(".") <= 1 else None

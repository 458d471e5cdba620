"""Text from a model, a checkpoint or a server is hostile until it has been through here.

Characters that act on a terminal or a page instead of being shown (controls, ANSI escapes, bidi
overrides, zero-width and unassigned characters, piles of combining marks) become a visible
backslash escape, so that a reader sees that they were there.
"""

import re
import unicodedata

from equipoise.reports.flips import Excerpt

__all__ = ["clean", "cut", "html_text", "md_block", "md_code", "md_text", "one_line", "xml_text"]

BLANK = "–"  # a hyphen would open a list
MAX_MARKS = 2  # combining marks on one character that are shown as such
# Cc controls, Cf bidi and zero-width, Cs surrogates, Co private, Cn unassigned, Zl/Zp separators
_UNSHOWN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_MARKS = {"Mn", "Me"}
_SELECTORS = frozenset(map(chr, range(0xFE00, 0xFE10)))  # change a width behind the layout's back
_MARKUP = str.maketrans({char: f"\\{char}" for char in "\\`*_{}[]<>#|~$&"})


def clean(text: str, *, keep: str = "\n", ascii_only: bool = False) -> str:
    """Make every character of ``text`` visible, but those in ``keep``.

    >>> clean("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    if ascii_only:
        text = text.encode("ascii", "backslashreplace").decode("ascii")
    if text.isascii() and text.isprintable():
        return text
    acting = {char for char in set(text) if _acts(char) and char not in keep}
    if not acting:
        return text
    out: list[str] = []
    marks = 0
    for char in text:
        category = unicodedata.category(char)
        marks = marks + 1 if category in _MARKS else 0
        if char not in acting or (0 < marks <= MAX_MARKS and char not in _SELECTORS):
            out.append(char)
        else:
            out.append(char.encode("unicode_escape", "surrogatepass").decode("ascii"))
    return "".join(out)


def _acts(char: str) -> bool:
    """Whether a character may have to be escaped: a mark only if it is one of many."""
    return char in _SELECTORS or unicodedata.category(char) in _UNSHOWN | _MARKS


def one_line(text: str, max_chars: int = 300, *, ascii_only: bool = False) -> str:
    """`clean` for a cell or a line: no newline survives, and a cut is stated."""
    line = clean(cut(text, max_chars, ascii_only=ascii_only), keep="", ascii_only=ascii_only)
    return cut(line, 2 * max_chars + 40, ascii_only=ascii_only)  # an escape is longer than what it shows


def cut(text: str | Excerpt | None, max_chars: int, *, ascii_only: bool = False) -> str:
    """The first ``max_chars`` characters; what was left out is said, counted from the whole text."""
    if text is None:
        return "(no answer)"
    if isinstance(text, Excerpt):
        whole, start, total = text.text, text.start, text.chars
    else:
        whole, start, total = text, 0, len(text)
    shown, dots = whole[:max_chars], "..." if ascii_only else "…"
    before = f"[{start:,} characters before] {dots}" if start else ""
    rest = total - start - len(shown)
    return before + shown + (f"{dots} [{rest:,} more characters]" if rest else "")


def xml_text(text: str, max_chars: int) -> str:
    """Text that an XML 1.0 document can hold, not yet escaped; newlines stay, a cut is stated."""
    return cut(clean(cut(text, max_chars)), 8 * max_chars)


# ---- markdown and HTML


def html_text(text: str, max_chars: int = 300) -> str:
    """One line as HTML text; put inside ``<code>`` GitHub neither links nor notifies."""
    line = one_line(text, max_chars)
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")):
        line = line.replace(char, entity)
    return line


def md_text(text: str, max_chars: int = 1_000) -> str:
    """One line of prose: no markup, HTML, table cell, link, mention or issue reference survives."""
    if text and not text.strip():
        return BLANK
    line = one_line(text, max_chars).strip(" ").translate(_MARKUP)
    line = re.sub(r":(?=[\w/])", r"\:", line)  # links, emoji
    line = re.sub(r"(?i)\b(www)\.", r"\1\\.", line)
    line = re.sub(r"^(\s*\d{1,9})(?=[.)](?:\s|$))", r"\1\\", line)  # a list
    line = re.sub(r"^(\s*)(?=[-=+](?:\s|$)|[-=+][-=+\s]*$)", r"\1\\", line)  # a list, a rule, a heading
    return re.sub(r"([@#])(?=\S)", "\\1\u2060", line)  # a word joiner keeps GitHub from naming people


def md_code(text: str, max_chars: int = 200) -> str:
    """One line as a code span that is safe in a table cell; a dash for a blank text."""
    line = one_line(text, max_chars).strip(" ")
    if not line:
        return BLANK
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    pad = " " if line[0] == "`" or line[-1] == "`" else ""
    return f"{ticks}{pad}{line}{pad}{ticks}".replace("|", "\\|")


def md_block(text: str) -> str:
    """A fenced block that nothing inside can close; ``text`` keeps its lines."""
    shown = clean(text, keep="\n\t")
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    return f"{fence}text\n{shown}\n{fence}"

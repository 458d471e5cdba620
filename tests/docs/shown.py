"""What documents show: command lines in code blocks and spans, links and images, headings."""

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
from markdown_it import MarkdownIt
from markdown_it.token import Token

from equipoise.evals.cli import main

__all__ = [
    "commands_of_markdown",
    "commands_of_script",
    "complaint",
    "headings",
    "links",
    "make_complaint",
    "toml_blocks",
]

COMMANDS = ("equipoise", "make")
OPERATORS = re.compile(r"^[|&;<>()]+$")


def commands_of_script(text: str) -> Iterator[list[str]]:
    """The words of every `equipoise` and `make` call in a shell script."""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        words = shlex.shlex(line.strip().removeprefix("$ "), posix=True, punctuation_chars=True)
        words.whitespace_split = True
        call: list[str] = []
        for word in [*words, ";"]:
            if OPERATORS.match(word):
                yield from _called(call)
                call = []
            else:
                call.append(word)


def _called(words: list[str]) -> Iterator[list[str]]:
    if words[:1] == ["env"]:
        words = words[3:] if words[1:2] == ["-u"] else words[1:]
    while words and re.match(r"^[A-Z_]+=", words[0]):
        words = words[1:]
    if words and words[0] in COMMANDS:
        yield [w for w in words if w != "..."]


def commands_of_markdown(text: str) -> Iterator[tuple[list[str], bool]]:
    """Calls, and whether they are whole: a code block shows them so, prose may leave arguments out."""
    for token in _tokens(text):
        if token.type == "fence" and token.info in ("", "sh", "bash", "console"):
            shown = [x for x in token.content.splitlines() if re.match(r"^(\$ |equipoise |make )", x)]
            for call in commands_of_script("\n".join(shown)):
                yield call, True
        for child in token.children or ():
            if child.type == "code_inline" and child.content.startswith(tuple(f"{c} " for c in COMMANDS)):
                for call in commands_of_script(re.sub(r"[\[\]]", "", child.content)):
                    yield call, False


def toml_blocks(text: str) -> list[str]:
    """The contents of its TOML blocks."""
    return [t.content for t in _tokens(text) if t.type == "fence" and t.info == "toml"]


def links(text: str) -> Iterator[str]:
    """Where links and images of a document point to."""
    for token in _tokens(text):
        for child in token.children or ():
            target = child.attrs.get("href") or child.attrs.get("src")
            if target:
                yield str(target)


def headings(text: str) -> set[str]:
    """The anchors that a document's headings get."""
    tokens = _tokens(text)
    titles = [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


def _tokens(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def complaint(words: list[str], *, whole: bool = True) -> str:
    """What is wrong with a call of `equipoise` (an unknown name, a missing argument); empty if nothing."""
    command: click.Command = main
    context = click.Context(main, info_name="equipoise")
    rest = words[1:]
    try:
        while isinstance(command, click.Group):
            if not rest:
                return "" if not whole else f"{context.command_path} names no command"
            context = command.make_context(
                context.info_name, rest, parent=context.parent, resilient_parsing=True
            )
            rest = [*context._protected_args, *context.args]
            if not rest:  # --help and the like
                return ""
            name, rest = rest[0], rest[1:]
            found = command.get_command(context, name)
            if found is None:
                return f"{context.command_path} has no command {name}"
            command, context = found, click.Context(found, info_name=name, parent=context)
        values, extra, _ = command.make_parser(context).parse_args(rest)
    except click.BadOptionUsage as e:
        return e.format_message() if whole else ""  # prose names an option without its value
    except click.UsageError as e:
        return e.format_message()
    if extra:
        return f"{context.command_path} takes no {' '.join(extra)}"
    eager = any(p.is_eager and values.get(p.name) for p in command.params)
    for param in command.params:
        given = values.get(param.name)
        if param.required and whole and not eager and not (isinstance(given, str | list | tuple) and given):
            return f"{context.command_path} lacks {param.get_error_hint(context)}"
        for value in given if isinstance(given, list | tuple) else [given]:
            if (
                isinstance(param.type, click.Choice)
                and isinstance(value, str)
                and not value.isupper()  # a placeholder
                and value not in param.type.choices
            ):
                return f"{context.command_path}: {value} is none of {', '.join(param.type.choices)}"
    return ""


def make_complaint(words: list[str], makefile: Path) -> str:
    """What is wrong with a call of `make`: a target or a variable that the Makefile does not have."""
    text = makefile.read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z][\w-]*):", text, re.M)
    variables = re.findall(r"^(?:export )?([A-Z_]+) \?=", text, re.M)
    for word in words[1:]:
        name, assigned, _ = word.partition("=")
        if name not in (variables if assigned else targets):
            return f"the Makefile has no {'variable' if assigned else 'target'} {name}"
    return ""

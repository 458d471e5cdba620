"""``equipoise tasks``: what can be asked, in words, and whether it holds against its data."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress, TaskID
from rich.table import Table
from rich.text import Text

from equipoise.evals.cli.shell import console, data_dir_option, errors_exit
from equipoise.evals.errors import UsageError
from equipoise.evals.types import Request, Task

__all__ = ["tasks"]

SHOWN_CHARS = 1500
OPTION = click.option(
    "--option", "given", multiple=True, metavar="NAME=JSON", help="Set an option of the task; repeatable."
)


@click.group()
def tasks() -> None:
    """What can be asked: shipped tasks, and your own."""


@tasks.command("list")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@errors_exit
def list_(*, as_json: bool) -> None:
    """All tasks with their items, protocol and licence, and the suites that have them."""
    from equipoise.tasks.registry import TASKS

    suites = _suites_by_task()
    if as_json:
        rows = [{**_facts(name, task), "suites": suites.get(name, [])} for name, task in TASKS.items()]
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("task", "group", "protocol", "items", "data licence", "suites"):
        table.add_column(heading, justify="right" if heading == "items" else "left")
    for name, task in TASKS.items():
        facts = _facts(name, task)
        items = "generated" if facts["items"] is None else f"{facts['items']:,}"
        table.add_row(
            name, facts["group"], facts["protocol"], items, facts["licence"], ", ".join(suites.get(name, ()))
        )
    console().print(table)


@tasks.command()
@click.argument("name")
@OPTION
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@data_dir_option
@errors_exit
def show(*, name: str, given: tuple[str, ...], as_json: bool) -> None:
    """One task: its card, options, vendors' advice, and an item as it is asked.

    NAME is a shipped task, a task file (.toml, .yaml of lm-eval, .py), or lm_eval:NAME.
    """
    from equipoise.tasks.options import options_of, with_options

    task = with_options(_task(name), _options(given))
    facts = _facts(task.name, task) | {"options": options_of(task), "version": task.version}
    try:
        item = next(iter(task.items(1, 1)), None)
        request = None if item is None else task.next_request(item, ())
        example = _asked(request) | {"id": item.id, "target": item.target} if item and request else {}
    except UsageError as e:
        example = {"not here": str(e)}
    if as_json:
        click.echo(json.dumps({**facts, "example": example}, indent=2, default=str))
        return
    out = console()
    for key, value in {**facts, "example": None}.items():
        if value in (None, "", {}, []):
            continue
        if isinstance(value, Mapping):
            out.print(Text(key, style="bold"))
            for inner, one in value.items():
                out.print(Text(f"  {inner}: {_line(one)}"))
        else:
            out.print(Text.assemble((f"{key}: ", "bold"), _line(value)))
    for key, value in example.items():
        out.print(Text(key, style="bold"))
        text = str(value)
        out.print(
            Text(text[:SHOWN_CHARS] + (f"... ({len(text):,} characters)" if len(text) > SHOWN_CHARS else ""))
        )


@tasks.command()
@click.argument("names", nargs=-1, metavar="[NAME|FILE]...")
@click.option("--all", "all_", is_flag=True, help="Every shipped task whose data is here.")
@click.option("--items", type=click.IntRange(min=1), help="Only so many items of each (default: all).")
@OPTION
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@data_dir_option
@errors_exit
def validate(
    *, names: tuple[str, ...], all_: bool, items: int | None, given: tuple[str, ...], as_json: bool
) -> None:
    """Load every item, ask it, and grade a right and a wrong answer to it; exits 1 if something is off."""
    from equipoise.tasks.options import where_data_is, with_options
    from equipoise.tasks.registry import TASKS
    from equipoise.tasks.validate import TaskValidation, validate_task

    if not names and not all_:
        raise UsageError("name a task or a file, or say --all")
    chosen = {name: where_data_is(task) for name, task in TASKS.items()} if all_ else {}
    chosen |= {task.name: with_options(task, _options(given)) for task in map(_task, names)}
    found: list[TaskValidation] = []
    missing: dict[str, str] = {}
    with Progress(console=console(err=True), transient=True) as progress:
        for name, task in chosen.items():
            bar = progress.add_task(name, total=None)
            try:
                n = None if items is None else min(items, _count(task, items))
                advance = partial(_advance, progress, bar)
                found.append(validate_task(task, n=n, advance=advance))
            except UsageError as e:
                if not all_:
                    raise
                missing[name] = str(e)
            progress.remove_task(bar)
    if as_json:
        rows = [asdict(v) | {"ok": v.ok} for v in found]
        click.echo(json.dumps({"tasks": rows, "not_here": missing}, indent=2))
    else:
        _print_validation(found, missing)
    sys.exit(0 if all(v.ok for v in found) else 1)


def _advance(progress: Progress, bar: TaskID, done: int) -> None:
    progress.update(bar, completed=done)


def _print_validation(found: list[Any], missing: Mapping[str, str]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("task", "items", "right answers", "wrong answers", "longest prompt", "seconds", ""):
        table.add_column(heading, justify="left" if heading in ("task", "") else "right")
    for v in found:
        table.add_row(
            v.task,
            f"{v.items:,}",
            f"{v.right:,} of {v.right_of:,}" if v.right_of else "-",
            f"{v.wrong:,} of {v.wrong_of:,}" if v.wrong_of else "-",
            f"{v.longest_prompt_chars:,} chars",
            f"{v.wall_s:.1f}",
            "ok" if v.ok else f"{v.faulty} faults",
        )
    out = console()
    out.print(table)
    for v in found:
        for fault in v.faults:
            out.print(Text(f"{v.task}: {fault}"))
    for name, why in missing.items():
        out.print(Text(f"{name}: not here: {why}"))
    total = sum(v.items for v in found)
    out.print(
        f"{len(found)} tasks, {total:,} items; {sum(v.faulty for v in found)} faults; {len(missing)} not here"
    )


def _task(name: str) -> Task:
    """A shipped task by its name, or the task of a file."""
    from equipoise.evals.experiment.task_source import task_of
    from equipoise.evals.plan import TaskSpec

    values: dict[str, Any] = {"name": name, "items": 1}
    path = Path(name)
    if path.suffix in (".toml", ".yaml", ".yml", ".py"):
        if not path.is_file():
            raise UsageError(f"{name}: no such file")
        values |= {"name": path.stem, "file": str(path.resolve())}
    elif name.startswith("lm_eval:"):
        values |= {"name": name.removeprefix("lm_eval:"), "lm_eval": name.removeprefix("lm_eval:")}
    try:
        spec = TaskSpec.model_validate(values)
    except ValueError as e:
        raise UsageError(f"{name!r} is not the name of a task or of a task file") from e
    return task_of(spec)


def _options(given: Sequence[str]) -> dict[str, Any]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--option {text}: write NAME=VALUE, the value as JSON")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value  # a bare word
    return found


def _count(task: Task, default: int) -> int:
    from equipoise.tasks.reference import Counted

    return task.count() if isinstance(task, Counted) else default


def _facts(name: str, task: Task) -> dict[str, Any]:
    from equipoise.tasks.card import Carded

    facts: dict[str, Any] = {"name": name, "kind": task.kind}
    if not isinstance(task, Carded):
        return facts | {"group": "", "protocol": "", "items": None, "licence": ""}
    card = asdict(task.card) | {"warning": task.card.warning}
    given = {
        family: {k: v for k, v in row.items() if v not in (None, "")}
        for family, row in card["advice"].items()
    }
    sources = getattr(task, "sources", None) or ([task.source] if hasattr(task, "source") else [])
    where = [f"{s.hub} {s.config} {s.split} at {s.revision} (local: {s.local})" for s in sources[:3]]
    more = [f"and {len(sources) - 3} more"] if len(sources) > 3 else []
    return facts | card | {"advice": given, "data": [*where, *more]}


def _suites_by_task() -> dict[str, list[str]]:
    import tomllib

    from equipoise.evals.cli.shell import suites_folder

    found: dict[str, list[str]] = {}
    for path in sorted(suites_folder().glob("*.toml")):
        for task in tomllib.loads(path.read_text(encoding="utf-8")).get("tasks", ()):
            found.setdefault(task["name"], []).append(path.stem)
    return found


def _asked(request: Request) -> dict[str, Any]:
    if request.messages is not None:
        shown: dict[str, Any] = {m.role: m.content for m in request.messages}
        return shown | ({"tools": json.dumps(request.chat.tools)} if request.chat.tools else {})
    return {"text": request.text} if request.text is not None else {"token ids": request.input_ids}


def _line(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(map(str, value))
    return str(value)

"""Assemble the page: the report's words, tables and plots in templates, with style and script inside."""

import base64
import hashlib
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from equipoise.reports import logprob_tables, secondary_tables, sources, svg, tables
from equipoise.reports.escape import clean, one_line
from equipoise.reports.flips import Flip
from equipoise.reports.format import count, interval, percent, points, size
from equipoise.reports.html.flip_data import Split, split
from equipoise.reports.model import ModelReport, Report
from equipoise.reports.svg.plot import Plot, tone_of
from equipoise.reports.tables import Table
from equipoise.reports.wording import checks, notes, verdict_sentences, verdict_word

__all__ = ["MAX_COMPANION_BYTES", "MAX_FLIP_BYTES", "Page", "page", "render"]

MAX_FLIP_BYTES = 6_000_000  # of the page; the rest of it is far below the 10 MB that a page may have
MAX_COMPANION_BYTES = 200_000_000
MAX_ROWS = 1_000  # of a table; the rest is counted

STYLES = ("base.css", "parts.css", "flips.css", "print.css")
EARLY_SCRIPTS = ("theme.js",)  # before the page is painted
SCRIPTS = ("page.js", "diff.js", "trace.js", "flip.js", "explorer.js")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The page, and as JSON lines the flips that did not fit into it; empty where all did."""

    html: str
    companion: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    ident: str
    title: str
    wide: Markup
    narrow: Markup


def render(report: Report) -> str:
    """The page with the flips that the report carries."""
    return page(report).html


def page(
    report: Report,
    flips: Mapping[str, Iterable[Flip]] | None = None,
    *,
    companion_name: str = "",
    flip_bytes: int = MAX_FLIP_BYTES,
) -> Page:
    """The page and its companion file.

    Parameters
    ----------
    flips
        Every flip of each model; without them, those that the report carries.
    companion_name
        The file beside the page for the flips that are more than ``flip_bytes``; without one they are
        only counted.
    """
    found = flips if flips is not None else {m.name: m.flips.shown for m in report.models if m.flips}
    told = split(found, page_bytes=flip_bytes, beside_bytes=MAX_COMPANION_BYTES if companion_name else 0)
    html = _environment().get_template("page.html").render(**_context(report, told, companion_name))
    return Page(html=html, companion="".join(f"{line}\n" for line in told.beside))


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("equipoise.reports.html", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters["line"] = one_line
    environment.filters["tone"] = tone_of
    return environment


def _shown(value: Any) -> Any:
    """Whatever a template prints: characters that act are escaped before markup is."""
    return clean(value, keep="\n\t") if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _asset(names: tuple[str, ...]) -> tuple[Markup, str]:
    """Our own style or script, and its hash for the policy."""
    folder = files("equipoise.reports.html") / "assets"
    text = "\n".join((folder / name).read_text(encoding="utf-8") for name in names)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(text), f"'sha256-{digest}'"  # noqa: S704  # our own file


def _context(report: Report, told: Split, companion_name: str) -> dict[str, Any]:
    style, style_hash = _asset(STYLES)
    early, early_hash = _asset(EARLY_SCRIPTS)
    script, script_hash = _asset(SCRIPTS)
    policy = (
        f"default-src 'none'; style-src {style_hash}; script-src {early_hash} {script_hash}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    sentences = verdict_sentences(report)
    return {
        "report": report,
        "run": report.run,
        "word": verdict_word(report),
        "tone": tone_of(report.run.verdict),
        "headline": _capital(sentences[0]),
        "sentences": sentences[1:],
        "facts": _facts(report),
        "models": [_model(model, f"m{i}") for i, model in enumerate(report.models)],
        "flips": _flips(report, told, companion_name),
        "sources": sources,
        "commands": _commands(report),
        "style": style,
        "early": early,
        "script": script,
        "policy": Markup(policy),  # noqa: S704  # hashes
        "max_rows": MAX_ROWS,
    }


def _capital(sentence: str) -> str:
    """With a capital, unless it begins with a name."""
    first = sentence.partition(" ")[0]
    return sentence[:1].upper() + sentence[1:] if first.isascii() and first.isalpha() else sentence


def _facts(report: Report) -> list[tuple[str, str, str]]:
    """Name, value and remark of what is said beside the verdict."""
    run = report.run
    found = [("Paired items", count(run.pairs), "of candidate and baseline")]
    if len(report.models) == 1 and (pooled := report.models[0].pooled) is not None:
        bounds = interval(pooled.interval, margin=pooled.margin)
        found.append(
            ("Pooled change, points", points(pooled.delta), f"{bounds}, margin {size(pooled.margin)}")
        )
    seen = run.smallest_detectable_loss
    remark = f"points pooled, with power {percent(run.detection_power)}%" if seen is not None else "not known"
    found.append(("Loss it would have seen", size(seen), remark))
    return [*found, ("Exit code", str(run.exit_code), "of the command, for CI")]


def _model(model: ModelReport, ident: str) -> dict[str, Any]:
    exploratory = (
        *secondary_tables.all_of(model, max_subgroups=MAX_ROWS),
        logprob_tables.logprobs(model),
        logprob_tables.divergences(model),
        logprob_tables.positions(model),
        logprob_tables.divergences_by_position(model),
    )
    return {
        "ident": ident,
        "model": model,
        "pooled": tables.results(model).rows[-1] if model.pooled is not None else None,
        "forest": _figure(svg.forest(model), f"{ident}-forest"),
        "results": tables.results(model),
        "tests": tables.tests(model),
        "notes": tuple(notes(model)),
        "checks": checks(model),
        "power": _figure(svg.power(model), f"{ident}-power"),
        "trust": _filled(tables.noise(model), tables.controls(model), tables.power(model)),
        "length": _figure(svg.by_length(model), f"{ident}-length"),
        "position": _figure(svg.by_position(model), f"{ident}-position"),
        "beside": _filled(*exploratory),
        "left_out": _filled(tables.exclusions(model)),
    }


def _filled(*found: Table) -> tuple[Table, ...]:
    return tuple(table for table in found if table.rows)


def _figure(plot: Plot | None, ident: str) -> _Figure | None:
    if plot is None:
        return None
    wide, narrow = (
        Markup(svg.inline(plot, layout, f"{ident}-{layout}"))  # noqa: S704  # escaped by ElementTree
        for layout in ("wide", "narrow")
    )
    return _Figure(ident=ident, title=plot.title, wide=wide, narrow=narrow)


def _flips(report: Report, told: Split, companion_name: str) -> dict[str, Any]:
    counted = [m.flips for m in report.models if m.flips is not None]
    lost, gained = sum(f.lost for f in counted), sum(f.gained for f in counted)
    return {
        "known": bool(counted),
        "lost": count(lost),
        "gained": count(gained),
        "total": lost + gained,
        "inside": len(told.page),
        "beside": len(told.beside),
        "rest": lost + gained - len(told.page) - len(told.beside),
        "companion": companion_name,
        "data": Markup("[" + ",\n".join(told.page) + "]"),  # noqa: S704  # no < > & in it
        "count": count,
    }


def _commands(report: Report) -> list[tuple[str, str]]:
    """What to run for the same numbers, each with its name."""
    again = [("This run", report.provenance.command)] if report.provenance.command else []
    if report.run.kind == "run":
        place = report.run.run_id or "RUN_DIR"
        again.append(
            (
                "This report, from the run directory",
                f"equipoise report {shlex.quote(place)} --format html --output report.html",
            )
        )
    return [*again, *((f"Server of {name}", line) for name, line in sources.servers(report.provenance))]

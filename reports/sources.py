"""Provenance as tables and as names with values, the same for every renderer."""

import shlex

from equipoise.reports.format import count, duration
from equipoise.reports.model import Provenance, Report, Run
from equipoise.reports.tables import Table, columns
from equipoise.reports.wording import attempt_words

__all__ = ["arms", "attempts", "facts", "parity", "servers", "tables"]


def arms(provenance: Provenance) -> Table:
    """The arms as resolved."""
    return Table(
        title="Arms",
        columns=columns(
            "model:code",
            "arm:code",
            "role:code",
            "variant:code",
            "KV dtype:code",
            "attention:code",
            "max tokens",
        ),
        rows=tuple(
            (
                arm.model,
                arm.name,
                arm.role + (f" ({arm.control})" if arm.control else ""),
                arm.variant,
                arm.kv_cache_dtype,
                arm.attention_backend,
                count(arm.max_total_tokens),
            )
            for arm in provenance.arms
        ),
    )


def parity(provenance: Provenance) -> Table:
    """Where the arms differ, and by what leave."""
    return Table(
        title="Differences between the arms that the plan allows",
        columns=columns("model:code", "fact:code", "baseline:code", "candidate:code", "allowed by:code"),
        rows=tuple(
            (d.model, d.fact, d.baseline, d.candidate, d.allowed_by) for d in provenance.parity_differences
        ),
    )


def attempts(run: Run) -> Table:
    """Every attempt at this candidate; no rows if this is the first."""
    shown = run.attempts if any(not a.current for a in run.attempts) else ()
    return Table(
        title="Attempts at this candidate",
        columns=columns(
            "model:code", "run:code", "registered (UTC):word", "plan:code", "outcome:word", "alpha"
        ),
        rows=tuple(
            (
                a.model,
                f"{a.run_id} (this run)" if a.current else a.run_id,
                a.registered[:16].replace("T", " "),
                a.plan_hash[:12],
                a.outcome,
                f"{a.alpha:.3g}",
            )
            for a in shown
        ),
        caption="Same candidate and baseline by their digests; earlier sign-offs and invalid runs do not "
        "count.",
    )


def tables(report: Report) -> tuple[Table, ...]:
    """All tables of the provenance, in their order."""
    return attempts(report.run), arms(report.provenance), parity(report.provenance)


def servers(provenance: Provenance) -> tuple[tuple[str, str], ...]:
    """The commands of the servers that were started for the run, each name with a line to copy."""
    return tuple(
        (f"{a.model} {a.name}", shlex.join(a.server_command)) for a in provenance.arms if a.server_command
    )


def _explained(provenance: Provenance) -> tuple[tuple[str, str], ...]:
    """What each server does with its KV cache, once for all the arms that ask it."""
    said: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for arm in provenance.arms:
        if arm.explained:
            said.setdefault((arm.model, arm.explained), []).append(arm.name)
    return tuple(
        (f"KV cache of {model} {', '.join(arms)}", "; ".join(lines)) for (model, lines), arms in said.items()
    )


def facts(report: Report) -> tuple[tuple[str, str], ...]:
    """Provenance as names and values; those not given are left out."""
    run, source = report.run, report.provenance
    dirty = {True: " (with uncommitted changes)", False: "", None: ""}[source.git_dirty]
    time = f"{source.started} to {source.finished}" if source.started or source.finished else ""
    took = duration(source.duration_s) if source.duration_s is not None else ""
    pairs = [
        ("plan", " ".join(part for part in (run.plan_name, source.plan_path) if part)),
        ("plan hash", run.plan_hash),
        ("run", run.run_id),
        ("ledger", attempt_words(run)),
        ("report made", run.created),
        ("ran", f"{time} ({took})" if time and took else time or took),
        ("requests", f"{count(source.requests)}, {count(source.retries)} retried" if source.requests else ""),
        ("command", source.command),
        ("commit", source.git_commit + dirty if source.git_commit else ""),
        *((f"model {name}", value) for name, value in source.models.items()),
        *((f"answers of {names}", value) for names, value in source.generation.items()),
        ("prompts compared", source.prompts_compared),
        ("seeds", ", ".join(f"{name} {value}" for name, value in source.seeds.items())),
        ("versions", ", ".join(f"{name} {value}" for name, value in source.versions.items())),
        ("hardware", ", ".join(f"{name} {value}" for name, value in source.hardware.items())),
        *((f"{arm.model} {arm.name}", arm.url) for arm in source.arms if not arm.server_command),
        *_explained(source),
    ]
    return tuple((name, value) for name, value in pairs if value)

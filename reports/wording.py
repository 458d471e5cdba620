"""What a report says in sentences, the same for every renderer: verdict, checks, notes.

Strings made here may carry text from a plan, a model or a server: renderers escape them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from equipoise.reports.evidence import Control, NoiseFloor, PooledRow, TaskRow
from equipoise.reports.format import count, interval, p_value, percent, points, size
from equipoise.reports.model import ModelReport, Report, Run

__all__ = ["Check", "Note", "attempt_words", "checks", "notes", "verdict_sentences", "verdict_word"]

MAX_WOULD_DECIDE = 4  # in the verdict itself; the tasks' rows have them all


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One condition of a trustworthy run; ``ok`` is None where it is reported but not required."""

    ok: bool | None
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Why a row got its verdict, and what would decide it."""

    name: str
    text: str


def verdict_word(report: Report) -> str:
    """The verdict; for a run that is not final, words that cannot be taken for one."""
    run = report.run
    if run.state == "final":
        return run.verdict or "NO VERDICT"
    return "NO VERDICT (incomplete run)" if run.state == "incomplete" else "NO VERDICT"


def verdict_sentences(report: Report) -> tuple[str, ...]:
    """What was decided, on how much evidence, what loss would have shown, and what would decide."""
    run = report.run
    said = [_sentence(run.headline)]
    if not run.eligible_for_sign_off:
        said.append("Not eligible for sign-off: a comparison of results that were already there.")
    if run.early_stop:
        said.append(_sentence(run.early_stop))
    if run.indistinguishable:
        margin = "" if run.suite_margin is None else f" within {size(run.suite_margin)} points"
        said.append(f"Indistinguishable{margin}: every critical task and the pooled mean are equivalent.")
    tasks = len({row.task for model in report.models for row in model.tasks})
    within = f" in {_plural(tasks, 'task')}" if tasks else ""
    within += f" on {_plural(len(report.models), 'model')}" if report.models else ""
    said.append(f"Rests on {_plural(run.pairs, 'paired item')}{within}; {_seen(report)}")
    said += [f"Would decide: {_sentence(text)}" for text in run.would_decide[:MAX_WOULD_DECIDE]]
    if (more := len(run.would_decide) - MAX_WOULD_DECIDE) > 0:
        said.append(f"And {count(more)} more, listed by task.")
    if any(not a.current for a in run.attempts):
        said.append(_sentence(attempt_words(run).replace("attempt", "Attempt", 1)))
    if run.state == "incomplete":
        said.append("This run has not finished: nothing is decided, and its numbers will change.")
    return tuple(said)


def attempt_words(run: Run) -> str:
    """Which attempt this run is, of how many, and what their number costs; empty if no ledger was kept."""
    numbers = [a.number for a in run.attempts if a.current and a.number is not None]
    if not numbers:
        return ""
    said = f"attempt {max(numbers)} of {run.max_attempts} at this candidate"
    if run.attempts_bound is None or max(numbers) == 1:
        return said
    bound = f"{100 * run.attempts_bound:.3g}%"
    return f"{said}; the chance that a bad release is signed off in any of them is up to {bound}"


def _seen(report: Report) -> str:
    loss = report.run.smallest_detectable_loss
    if loss is None:
        why = report.run.undefined.get("smallest_detectable_loss")
        return "what loss it could have seen is not known" + (f" ({why})." if why else ".")
    power = percent(report.run.detection_power)
    return f"it would have seen a pooled loss of {size(loss)} points or more (power {power}%)."


def _plural(n: int, noun: str) -> str:
    return f"{count(n)} {noun}" if n == 1 else f"{count(n)} {noun}s"


def _sentence(text: str) -> str:
    text = text.strip()
    return text if not text or text[-1] in ".!?" else text + "."


def checks(model: ModelReport) -> tuple[Check, ...]:
    """Noise floor, controls, missing answers: whether the run could have said no; none before a verdict."""
    if model.verdict is None:
        return ()
    found: list[Check] = []
    if model.noise_floor is None:
        found.append(Check(ok=None, name="noise floor", text="not measured"))
    else:
        found.append(_noise(model.noise_floor))
    found += [_control(control) for control in model.controls]
    if not model.controls:
        found.append(Check(ok=None, name="control", text="no positive control was run"))
    if model.missing:
        texts = [f"{m.arm} {count(m.missing)} of {count(m.planned)}" for m in model.missing]
        text = "; ".join(texts)
        if model.worst_case_verdict is not None:
            text += f"; with all of them against the candidate: {model.worst_case_verdict}"
        clean_run = not any(m.missing for m in model.missing)
        found.append(Check(ok=True if clean_run else None, name="missing answers", text=text))
    warnings = model.secondary.warnings if model.secondary is not None else ()
    found += [Check(ok=None, name="WARNING", text=text) for text in warnings]
    return tuple(found)


def _noise(noise: NoiseFloor) -> Check:
    text = (
        f"A2 against A1: {count(noise.lost)} lost, {count(noise.gained)} gained of {count(noise.n)} "
        f"(p {p_value(noise.p)})"
    )
    if noise.excess_discordance is not None:
        text += f"; excess discordance of the candidate {points(noise.excess_discordance)} points"
        text += f" {interval(noise.excess_interval)}" if noise.excess_interval else ""
    return Check(ok=noise.passed, name="noise floor", text=_because(text, noise.reason))


def _control(control: Control) -> Check:
    outcome = "caught" if control.caught else "NOT caught"
    text = f"{control.variant}: {outcome}, pooled {points(control.delta)} points"
    text += f" {interval(control.interval)}" if control.interval else ""
    if control.blind_tasks:
        text += f"; blind: {', '.join(control.blind_tasks)}"
    ok = control.caught if control.required else (True if control.caught else None)
    required = "" if control.required else " (not required)"
    return Check(ok=ok, name=f"{control.strength} control{required}", text=_because(text, control.reason))


def _because(text: str, reason: str) -> str:
    return f"{text}; {reason}" if reason else text


def notes(model: ModelReport) -> Iterator[Note]:
    """Rows that say why, what would decide, or what is undefined; in the order of the table."""
    rows: list[tuple[str, TaskRow | PooledRow]] = [(row.task, row) for row in model.tasks]
    rows += [("pooled mean", model.pooled)] if model.pooled else []
    for name, row in rows:
        said = [_sentence(row.reason)] if row.reason else []
        said += [f"Would decide: {_sentence(row.would_decide)}"] if row.would_decide else []
        said += [f"{key} is undefined: {_sentence(why)}" for key, why in row.undefined.items()]
        if said:
            yield Note(name=name, text=" ".join(said))
    for logprob in model.logprobs:
        said = [_sentence(logprob.reason)] if logprob.reason else []
        undefined = {**logprob.undefined, **(logprob.kl.undefined if logprob.kl is not None else {})}
        named = {
            "kl": "KL is undefined",
            "kl_nats": "KL is infinite",
            "ceiling_nats": "KL has no upper bound",
        }
        said += [
            f"{named.get(key, f'{key} is undefined')}: {_sentence(why)}" for key, why in undefined.items()
        ]
        if said:
            yield Note(name=logprob.task, text=" ".join(said))

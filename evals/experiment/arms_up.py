"""The arms of one model, up: servers started, clients made, parity checked, facts recorded."""

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from equipoise.evals.backends.replay import Replay
from equipoise.evals.backends.sglang_server import SglangServer, serve_all
from equipoise.evals.errors import ParityError, ServerError
from equipoise.evals.experiment.questions import Question
from equipoise.evals.experiment.serving import ServerSpec, backend_of
from equipoise.evals.journal import Journal
from equipoise.evals.parity import check_parity
from equipoise.evals.plan import ArmSpec, ModelSpec, Plan
from equipoise.evals.provenance import without_secrets
from equipoise.evals.run_types import Arm
from equipoise.evals.types import ArmRole, Backend
from equipoise.quant.variants import Device

__all__ = ["Session", "arms_up"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What every step of one run needs."""

    plan: Plan
    questions: Sequence[Question]
    journal: Journal
    console: Console
    device: Device


@asynccontextmanager
async def arms_up(
    session: Session, model: ModelSpec, group: Sequence[ArmSpec], specs: Sequence[ServerSpec]
) -> AsyncIterator[list[Arm]]:
    """The group's arms with their servers up and parity checked; everything is ended on the way out."""
    names = {a.name for a in group}
    needed = [s for s in specs if any(a.name in names for a in s.arms)]
    directory = session.journal.path.parent
    async with AsyncExitStack() as stack:
        servers = [
            SglangServer(
                label=s.label,
                command=s.launch,
                log_path=directory / "logs" / f"{s.model}@{s.variant.name}.log",
            )
            for s in needed
        ]
        if servers:
            with session.console.status(
                f"{model.name}: starting {len(servers)} SGLang servers on {session.device}"
            ):
                await stack.enter_async_context(serve_all(servers))
        by_arm = {
            a.name: (spec, server) for spec, server in zip(needed, servers, strict=True) for a in spec.arms
        }
        backends: dict[str, Backend] = {}
        for arm in group:
            url = by_arm[arm.name][1].url if arm.name in by_arm else None
            backend = backend_of(session.plan, arm, url=url, run_id=directory.resolve().name)
            stack.push_async_callback(backend.close)
            backends[arm.name] = backend
        await _check_and_record(session, model, group, backends, {a: spec for a, (spec, _) in by_arm.items()})
        yield [
            Arm(
                model=model.name,
                name=arm.name,
                backend=backends[arm.name],
                alive=_alive(by_arm[arm.name][1]) if arm.name in by_arm else None,
            )
            for arm in group
        ]


def _alive(server: SglangServer) -> Callable[[], Awaitable[None]]:
    async def check() -> None:
        if not server.alive():
            tail = "\n".join(f"  {line}" for line in server.log_tail())
            raise ServerError(
                f"the server {server.label} died in mid-run; all answers so far are saved: mend the cause, "
                f"then continue with --resume. The end of its log ({server.log_path}):\n{tail}"
            )

    return check


async def _check_and_record(
    session: Session,
    model: ModelSpec,
    group: Sequence[ArmSpec],
    backends: dict[str, Backend],
    served_by: dict[str, ServerSpec],
) -> None:
    """Compare the arms and record what their servers are; a difference that matters stops the run."""
    served = {n: b for n, b in backends.items() if not isinstance(b, Replay)}
    needs_chat = any(q.task.needs_chat_template for q in session.questions)
    baseline = next((a.name for a in group if a.role is ArmRole.BASELINE), group[0].name)
    facts: dict[str, Any] = {"model": model.name, "device": session.device, "arms": {}, "differences": []}
    if baseline in served:
        report = await check_parity(
            served,
            baseline=baseline,
            allowed={a.name: session.plan.allowed_differences for a in group},
            needs_chat=needs_chat,
        )
        described = {f.arm: f for f in report.arms}
        facts["differences"] = [dataclasses.asdict(d) for d in report.differences]
    else:
        described = {}
    earlier = [v for _, _, v in session.journal.records("servers") if v["model"] == model.name]
    for arm in group:
        spec = served_by.get(arm.name)
        known = described.get(arm.name)
        facts["arms"][arm.name] = {
            "role": arm.role.value,
            "variant": spec.variant.arm if spec else "",
            "control": (spec.variant.control or "") if spec else "",
            "url": "" if spec else (arm.url or ""),
            "replay": arm.replay or "",
            "command": list(spec.launch.argv) if spec else [],
            "server": without_secrets(dict(known.facts)) if known else {},
            "rendered_chat_sha256": known.rendered_chat_sha256 if known else None,
            "tokens": {k: v if isinstance(v, int) else list(v) for k, v in known.tokens.items()}
            if known
            else {},
        }
    if earlier:
        _same_tokens(model, earlier[-1], facts)
        facts["arms"] = earlier[-1]["arms"] | facts["arms"]
        facts["differences"] = [*facts["differences"], *earlier[-1]["differences"]]
    session.journal.record("servers", facts)


def _same_tokens(model: ModelSpec, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Arms that are served one after another, or resumed, must still tokenize alike."""
    reference = next((a["tokens"] for a in before["arms"].values() if a["tokens"]), None)
    for name, arm in now["arms"].items():
        for probe, tokens in arm["tokens"].items():
            if reference is not None and reference.get(probe, tokens) != tokens:
                raise ParityError(
                    f"model {model.name!r}, arm {name!r}: {probe} differ from those of arms asked "
                    "before; serve the same tokenizer and chat template, or start a new run"
                )

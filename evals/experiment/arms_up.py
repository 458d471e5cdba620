"""The arms of one model, up: servers started, clients made, parity checked, facts recorded."""

import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from equipoise.evals.backends.replay import Replay
from equipoise.evals.backends.sglang_server import SglangServer, serve_all
from equipoise.evals.errors import ParityError, ServerError
from equipoise.evals.experiment.arm_checkpoint import CHECKPOINT_FACTS
from equipoise.evals.experiment.attempt_register import AttemptRegister
from equipoise.evals.experiment.probing import probes_of, recheck
from equipoise.evals.experiment.questions import Question
from equipoise.evals.experiment.serving import ServerSpec, backend_of
from equipoise.evals.journal import Journal
from equipoise.evals.parity import check_parity, compare_arms, is_same_process
from equipoise.evals.parity_probes import ArmFacts, RenderedPrompt
from equipoise.evals.plan import ArmSpec, ModelSpec, Plan
from equipoise.evals.provenance import without_secrets
from equipoise.evals.run_types import Arm
from equipoise.evals.types import ArmRole, Backend, SampleKey
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
    attempts: AttemptRegister | None = None  # None where nothing can be signed off
    explained: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # server label -> explanation


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
                log_path=directory / "logs" / f"{s.label}.log",
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
        described = await _check_and_record(
            session, model, group, backends, {a: spec for a, (spec, _) in by_arm.items()}
        )
        yield [
            Arm(
                model=model.name,
                name=arm.name,
                backend=backends[arm.name],
                alive=_alive(by_arm[arm.name][1]) if arm.name in by_arm else None,
            )
            for arm in group
        ]
        # Servers of our own cannot have changed; what stands behind a URL can.
        await recheck({n: b for n, b in backends.items() if n not in by_arm}, described)


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
) -> Mapping[str, ArmFacts]:
    """Compare the arms and record what their servers are; a difference that matters stops the run."""
    served = {n: b for n, b in backends.items() if not isinstance(b, Replay)}
    for name, backend in backends.items():
        if isinstance(backend, Replay):
            backend.verify(_asked(session, model, name))
    allowed = {a.name: _allowed(session.plan, a, served_by.get(a.name)) for a in group}
    earlier = [v for _, _, v in session.journal.records("servers") if v["model"] == model.name]
    facts: dict[str, Any] = {"model": model.name, "device": session.device, "arms": {}, "differences": []}
    described: dict[str, ArmFacts] = {}
    if served:
        reference = next(
            (a for a in group if a.role is ArmRole.BASELINE and a.name in served),
            next(a for a in group if a.name in served),
        )
        report = await check_parity(
            served,
            baseline=reference.name,
            allowed=allowed,
            probes=probes_of(session.questions),
        )
        described = {f.arm: _plain(f) for f in report.arms}
        _require_two_servers(group, reference, described)
        if reference.role is ArmRole.BASELINE:  # the report shows the differences from the baseline
            facts["differences"] = [dataclasses.asdict(d) for d in report.differences]
    for arm in group:
        spec = served_by.get(arm.name)
        explained = session.explained.get(spec.label) if spec else None
        facts["arms"][arm.name] = _arm_record(arm, spec, described.get(arm.name), explained)
    if earlier:
        found = [
            *facts["differences"],
            *_against_earlier(model, earlier[-1], described, allowed),
            *earlier[-1]["differences"],
        ]
        facts["differences"] = [d for i, d in enumerate(found) if d not in found[:i]]
        facts["arms"] = earlier[-1]["arms"] | facts["arms"]
    session.journal.record("servers", facts)
    return described


def _require_two_servers(
    group: Sequence[ArmSpec], baseline: ArmSpec, described: Mapping[str, ArmFacts]
) -> None:
    for arm in group:
        if arm.role is not ArmRole.CANDIDATE or arm.url is None or baseline.role is not ArmRole.BASELINE:
            continue
        ours, theirs = described.get(baseline.name), described.get(arm.name)
        if ours is not None and theirs is not None and is_same_process(ours.facts, theirs.facts):
            raise ParityError(
                f"arm {arm.name!r} at {theirs.label} is the server of the baseline {baseline.name!r} at "
                f"{ours.label}: it would be compared with itself; give the URL of the candidate's server"
            )


def _allowed(plan: Plan, arm: ArmSpec, spec: ServerSpec | None) -> tuple[str, ...]:
    """The facts in which an arm may differ: the plan's, its own, and with other weights, where they lie."""
    own = CHECKPOINT_FACTS if spec is not None and spec.own_checkpoint else ()
    return (*plan.allowed_differences, *arm.allowed_differences, *own)


def _asked(session: Session, model: ModelSpec, arm: str) -> dict[SampleKey, str]:
    return {
        SampleKey(model=model.name, arm=arm, task=item.task, item_id=item.id, repeat=k): item.content_hash
        for q in session.questions
        for item in q.items
        for k in range(q.spec.repeats)
    }


def _plain(facts: ArmFacts) -> ArmFacts:
    """As the journal keeps them: no secrets, JSON values only."""
    return dataclasses.replace(facts, facts=json.loads(json.dumps(without_secrets(dict(facts.facts)))))


def _arm_record(
    arm: ArmSpec, spec: ServerSpec | None, known: ArmFacts | None, explained: Mapping[str, Any] | None
) -> dict[str, Any]:
    tokens = {} if known is None else known.tokens
    return {
        "role": arm.role.value,
        "variant": spec.arm if spec else "",
        "control": spec.control if spec else "",
        "own_checkpoint": spec.own_checkpoint if spec else False,
        "checkpoint_note": spec.checkpoint.note if spec and spec.checkpoint else "",
        "url": "" if spec else (arm.url or ""),
        "replay": arm.replay or "",
        "command": list(spec.launch.argv) if spec else [],
        "explained": without_secrets(explained or {}),
        "server": {} if known is None else known.facts,
        "rendered_chat_sha256": None if known is None else known.rendered_chat_sha256,
        "tokens": {k: v if isinstance(v, int) else list(v) for k, v in tokens.items()},
        "prompts": {} if known is None else {k: dataclasses.asdict(p) for k, p in known.prompts.items()},
    }


def _against_earlier(
    model: ModelSpec,
    earlier: Mapping[str, Any],
    described: Mapping[str, ArmFacts],
    allowed: Mapping[str, Sequence[str]],
) -> list[dict[str, Any]]:
    """Arms served one after another, or resumed, against the baseline (else the first) asked before.

    Raises
    ------
    ParityError
        A difference that the plan does not allow.
    """
    with_facts = {n: a for n, a in earlier["arms"].items() if a["server"]}
    name = next((n for n, a in with_facts.items() if a["role"] == ArmRole.BASELINE.value), None)
    name = name or next(iter(with_facts), None)
    if name is None:
        return []
    before = ArmFacts(
        arm=name,
        label="the journal",
        facts=with_facts[name]["server"],
        tokens={k: v if isinstance(v, int) else tuple(v) for k, v in with_facts[name]["tokens"].items()},
        prompts={k: RenderedPrompt(**p) for k, p in with_facts[name].get("prompts", {}).items()},
    )
    differences = compare_arms(before, list(described.values()), allowed=allowed)
    forbidden = [d for d in differences if not d.allowed]
    if forbidden:
        lines = "; ".join(f"arm {d.arm!r} {d.name}: {d.value}, before {d.baseline}" for d in forbidden)
        raise ParityError(
            f"model {model.name!r} is served otherwise than the arm {name!r} asked before: {lines}; "
            "serve it alike, list the facts in allowed_differences, or start a new run"
        )
    return [dataclasses.asdict(d) for d in differences]

"""Arms that differ in what the plan does not allow are stopped before the first item."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from run_doubles import EchoTask, FakeServer, ScriptedBackend, chat_reply, item, key, output, sample

from equipoise.evals.backends.openai_http import OpenAIHttp
from equipoise.evals.backends.sglang_http import SglangHttp
from equipoise.evals.errors import ParityError, RequestError
from equipoise.evals.experiment.probing import probes_of
from equipoise.evals.experiment.questions import Question
from equipoise.evals.generation import Generation
from equipoise.evals.parity import (
    check_parity,
    compare_arms,
    compare_prompt_tokens,
    facts_changed,
    is_same_process,
)
from equipoise.evals.parity_probes import ArmFacts, Probes
from equipoise.evals.plan import TaskSpec
from equipoise.evals.types import Message, Request, SamplingParams

SERVER = {
    "kv_cache_dtype": "auto",
    "attention_backend": "fa3",
    "tp_size": 8,
    "chat_template": None,
    "port": 30000,
    "max_total_num_tokens": 1000,
    "random_seed": 1,
    "api_key": None,
}
TOKENS = {"tokens of 'x'": (1, 2)}


def facts(arm: str, **changes: Any) -> ArmFacts:
    tokens = changes.pop("tokens", TOKENS)
    return ArmFacts(arm=arm, label="http://h", facts={**SERVER, **changes}, tokens=tokens)


def differences(*, allowed: Sequence[str] = (), **changes: Any) -> list[tuple[str, bool]]:
    found = compare_arms(facts("A1"), [facts("B", **changes)], allowed={"B": allowed})
    return [(d.name, d.allowed) for d in found]


def test_the_kv_cache_dtype_may_differ() -> None:
    assert differences(kv_cache_dtype="fp8_e4m3") == [("kv_cache_dtype", True)]


@pytest.mark.parametrize(
    "change", [{"tp_size": 4}, {"attention_backend": "triton"}, {"chat_template": "x"}, {"new_fact": 1}]
)
def test_anything_else_needs_the_plans_permission(change: dict[str, Any]) -> None:
    (name,) = change
    assert differences(**change) == [(name, False)]
    assert differences(**change, allowed=[name]) == [(name, True)]


def test_ports_sizes_seeds_and_secrets_are_ignored() -> None:
    assert differences(port=1, max_total_num_tokens=9, random_seed=5, api_key="sk-secret") == []


def test_a_fact_that_only_one_arm_has_is_a_difference() -> None:
    ours, theirs = facts("A1"), facts("B")
    without = {k: v for k, v in theirs.facts.items() if k != "tp_size"}
    other = ArmFacts(arm="B", label="h", facts=without, tokens=TOKENS)
    assert [d.name for d in compare_arms(ours, [other], allowed={})] == ["tp_size"]


def test_token_ids_may_never_differ() -> None:
    changed = {"tokens of 'x'": (1, 3)}
    assert differences(tokens=changed, allowed=["tokens of 'x'"]) == [("tokens of 'x'", False)]
    assert differences(tokens={"tokens of 'x'": 2}) == []  # a count, where ids cannot be had
    assert differences(tokens={"tokens of 'x'": 3}) == [("tokens of 'x'", False)]


class FakeSglang(FakeServer):
    """Enough of a server for the probes: words are tokens, and the prefix cache obeys its salts."""

    def __init__(
        self,
        *,
        chat_template: bool = True,
        salted: bool = True,
        vocabulary: int = 0,
        system_prompt: bool = False,
        switches: Sequence[str] = (),
        **info: Any,
    ) -> None:
        super().__init__(self._answer)
        self.chat_template = chat_template
        self.salted = salted
        self.system_prompt = system_prompt
        self.switches = switches
        self.vocabulary = vocabulary
        self.info = {**SERVER, **info}
        self.cache: set[tuple[str | None, str]] = set()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = self.bodies[-1]
        if request.path == "/server_info":
            return web.json_response(self.info)
        if request.path == "/model_info":
            return web.json_response({"model_path": "/models/m"})
        if request.path == "/v1/tokenize" and "messages" in body:
            if not self.chat_template:
                message = "tokenizer.chat_template is not set and no template argument was passed"
                return web.json_response({"message": message}, status=400)
            kwargs = body.get("chat_template_kwargs", {})
            known = [int(bool(kwargs.get(name))) for name in self.switches]
            extra = [0] if self.system_prompt and len(body["messages"]) == 1 else []
            return web.json_response({"tokens": [7, len(body["messages"]), *known, *extra]})
        if request.path == "/v1/tokenize":
            return web.json_response({"tokens": [len(w) + self.vocabulary for w in body["prompt"].split()]})
        assert request.path == "/generate"
        where = (body.get("cache_salt") if self.salted else None, body["text"])
        cached = 40 if where in self.cache else 1  # BOS is always there
        self.cache.add(where)
        meta = {"finish_reason": {"type": "length"}, "prompt_tokens": 40, "completion_tokens": 1}
        return web.json_response({"text": "x", "meta_info": {**meta, "cached_tokens": cached}})


async def check(
    *servers: FakeServer, salts: Sequence[str | None] = ("A1", "A2", "B"), needs_chat: bool = True, **kw: Any
) -> Any:
    """Run the check over A1 and A2 on the first server and B on the last."""
    async with servers[0].running() as first, servers[-1].running() as last:
        arms = {
            name: SglangHttp(server.url, cache_salt=salt)
            for name, server, salt in zip(("A1", "A2", "B"), (first, first, last), salts, strict=True)
        }
        try:
            return await check_parity(
                arms,
                baseline="A1",
                allowed=kw.get("allowed", {}),
                probes=Probes(needs_chat=needs_chat, **kw.get("probes", {})),
            )
        finally:
            for backend in arms.values():
                await backend.close()


async def test_arms_that_differ_as_planned_pass_and_the_report_keeps_it() -> None:
    report = await check(FakeSglang(), FakeSglang(kv_cache_dtype="fp8_e4m3", port=2))
    assert [(d.arm, d.name, d.baseline, d.value) for d in report.differences] == [
        ("B", "kv_cache_dtype", '"auto"', '"fp8_e4m3"')
    ]
    assert report.forbidden == ()
    assert len({f.rendered_chat_sha256 for f in report.arms}) == 1
    assert report.arms[0].rendered_chat_sha256 is not None


async def test_a_forbidden_difference_is_named_with_both_values() -> None:
    with pytest.raises(ParityError, match=r"arm 'B' tp_size: 4 \(baseline 'A1': 8\)"):
        await check(FakeSglang(), FakeSglang(tp_size=4))


async def test_different_tokenizers_are_named() -> None:
    with pytest.raises(ParityError, match=r"arm 'B' tokens of 'The quick brown fox"):
        await check(FakeSglang(), FakeSglang(vocabulary=1))


async def test_a_missing_chat_template_matters_only_where_chat_is_needed() -> None:
    with pytest.raises(ParityError, match=r"arm 'A1' at http://.*chat template and the model has none"):
        await check(FakeSglang(chat_template=False), FakeSglang())
    await check(FakeSglang(chat_template=False), FakeSglang(chat_template=False), needs_chat=False)


async def test_arms_on_one_server_must_not_share_the_prefix_cache() -> None:
    with pytest.raises(ParityError, match=r"arms 'A1' and 'A2' .*share the prefix cache \(100%"):
        await check(FakeSglang(), FakeSglang(), salts=("same", "same", "B"))
    with pytest.raises(ParityError, match="share the prefix cache"):  # a server that ignores salts
        await check(FakeSglang(salted=False), FakeSglang())


async def test_namespaces_are_checked_afresh_when_a_run_is_resumed() -> None:
    server = FakeSglang()
    for _ in range(2):
        async with server.running():
            arms = {n: SglangHttp(server.url, cache_salt=n) for n in ("A1", "A2")}
            await check_parity(arms, baseline="A1", allowed={}, probes=Probes(needs_chat=False))
            for backend in arms.values():
                await backend.close()


async def test_openai_endpoints_are_compared_by_their_token_counts() -> None:
    def handler(prompt_tokens: int) -> Any:
        async def answer(request: web.Request) -> web.StreamResponse:
            if request.path == "/v1/models":
                return web.json_response({"data": [{"id": "m", "owned_by": "x", "created": prompt_tokens}]})
            reply = chat_reply()
            reply["choices"][0]["text"] = "ok"
            reply["usage"]["prompt_tokens"] = prompt_tokens
            return web.json_response(reply)

        return answer

    for ours, theirs in ((9, 9), (9, 10)):
        async with FakeServer(handler(ours)).running() as a, FakeServer(handler(theirs)).running() as b:
            arms = {n: OpenAIHttp(s.url, model="m") for n, s in (("A", a), ("B", b))}
            if ours == theirs:
                await check_parity(arms, baseline="A", allowed={}, probes=Probes(needs_chat=True))
            else:
                with pytest.raises(ParityError, match="tokens of a conversation"):
                    await check_parity(
                        arms, baseline="A", allowed={}, probes=Probes(needs_chat=True, needs_text=False)
                    )
            for backend in arms.values():
                await backend.close()


async def test_an_endpoint_that_only_chats_is_asked_for_conversations_alone() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m"}]})
        if request.path != "/v1/chat/completions":
            return web.json_response({"detail": "Not Found"}, status=404)
        reply = chat_reply()
        reply["usage"]["prompt_tokens"] = 2  # as many as the other arm's ids
        return web.json_response(reply)

    def probes(*, chat: bool) -> Probes:
        spec = TaskSpec(name="echo", items=1, margin=0.1)
        return probes_of([Question(spec=spec, task=EchoTask(chat=chat), items=[item(1)])])

    async with FakeServer(answer).running() as only_chats, FakeSglang().running() as sglang:
        arms = {"A": SglangHttp(sglang.url), "B": OpenAIHttp(only_chats.url, model="m")}
        allowed = {"B": [*SERVER, "model_path"]}
        try:
            report = await check_parity(arms, baseline="A", allowed=allowed, probes=probes(chat=True))
            with pytest.raises(RequestError, match="/v1/completions: HTTP 404"):
                await check_parity(arms, baseline="A", allowed=allowed, probes=probes(chat=False))
        finally:
            for backend in arms.values():
                await backend.close()
    assert [len(f.tokens) for f in report.arms] == [5, 1]


async def test_an_arm_without_a_server_is_reported_as_unchecked() -> None:
    report = await check_parity(
        {"A": ScriptedBackend(), "B": ScriptedBackend()},
        baseline="A",
        allowed={},
        probes=Probes(needs_chat=False),
    )
    assert report.unchecked == ("A", "B")


async def test_a_server_that_does_not_answer_is_not_a_difference(tmp_path: Path) -> None:
    async with FakeSglang().running() as server:
        url = server.url
    backend = SglangHttp(url)
    with pytest.raises(RequestError, match="cannot connect"):
        await check_parity({"A": backend}, baseline="A", allowed={}, probes=Probes(needs_chat=False))
    await backend.close()


def test_prompt_token_counts_are_compared_item_by_item() -> None:
    def one(i: int, arm: str, *counts: int) -> Any:
        return sample(i, arm=arm, outputs=tuple(output(prompt_tokens=c) for c in counts))

    baseline = [one(1, "A", 5), one(2, "A", 6, 20), one(3, "A", 7), sample(4, outputs=(), error="HTTP 500")]
    candidate = [one(1, "B", 5), one(2, "B", 6, 99), one(3, "B", 8), one(4, "B", 9), one(5, "B", 1)]
    found = compare_prompt_tokens(baseline, candidate)
    assert (found.compared, found.mismatched, found.examples) == (3, 1, (("echo", "3", 7, 8),))
    assert key(1).task == "echo"
    assert Message(role="user", content="x").role == "user"


ASKED = Request(
    messages=(Message(role="user", content="one two"),),
    sampling=SamplingParams(max_new_tokens=8),
)


async def test_a_real_items_prompt_must_be_rendered_alike() -> None:
    probes = {"prompts": {"task t item 1": ASKED}}
    report = await check(FakeSglang(), FakeSglang(), probes=probes)
    assert [f.prompts["task t item 1"].tokens for f in report.arms] == [2, 2, 2]
    with pytest.raises(ParityError, match=r"arm 'B' prompt of task t item 1: 3 tokens, SHA-256 \w+ \(base"):
        await check(FakeSglang(), FakeSglang(system_prompt=True), probes=probes)


@pytest.mark.parametrize(
    ("generation", "refused"),
    [
        (Generation(thinking="on"), None),
        (Generation(thinking="off"), None),
        (Generation(thinking="on", template_kwargs={"think_mode": "x"}), "template_kwargs.think_mode"),
        (Generation(reasoning_effort="high"), "reasoning_effort"),
        (Generation(template_kwargs={"enable_thinking": True}), None),
    ],
)
async def test_a_switch_that_the_chat_template_ignores_is_refused(
    generation: Generation, refused: str | None
) -> None:
    server, probes = FakeSglang(switches=("enable_thinking",)), {"generations": [generation]}
    if refused is None:
        await check(server, server, probes=probes)
        return
    with pytest.raises(ParityError, match=f"arm 'A1' at http.*does not know {refused}: the prompt"):
        await check(server, server, probes=probes)


def test_a_server_that_changed_since_is_told_by_the_fact() -> None:
    before = facts("B")
    assert facts_changed(before, {**SERVER, "port": 9, "random_seed": 3}) == ()
    assert facts_changed(before, {**SERVER, "kv_cache_dtype": "fp8_e4m3"}) == (
        'kv_cache_dtype: "fp8_e4m3", before "auto"',
    )


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"internal_states": [{"load": 3}]}, True),
        *(({name: 9}, False) for name in ("startup_time", "random_seed", "port", "kv_cache_dtype")),
    ],
)
def test_one_process_is_known_under_two_addresses(change: dict[str, Any], same: bool) -> None:
    server = {**SERVER, "startup_time": 31.7, "internal_states": [{"load": 0}]}
    assert is_same_process(server, {**server, **change}) is same
    assert not is_same_process(SERVER, SERVER)  # nothing tells one start from another

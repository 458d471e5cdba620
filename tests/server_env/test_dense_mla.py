"""A GLM-5-type model on the CPU server: dense MLA without the indexer, exact in short contexts, and said.

The reference is transformers in float32, whose own sparse attention and dense attention (index_topk beyond
the context) agree in the first ``TOPK`` tokens and differ by .70 nats a token after them.
"""

import asyncio
import json
import random
import sys
import urllib.request
from pathlib import Path

import pytest
import torch
from tiny_models import KIMI_EXTRAS, MOE, SHARED, VOCAB, edit_config
from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM

from equipoise.evals.backends.sglang_server import SglangServer, choose_port
from equipoise.evals.experiment.serving import _launch, variant_named
from equipoise.quant.sglang.dense_mla import DENSE_FACT, DENSE_FLAG, dense_limit
from equipoise.quant.variants import ServeOptions

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

TOPK = 64


def sizes(topk: int) -> GlmMoeDsaConfig:
    return GlmMoeDsaConfig(
        **SHARED,
        **MOE,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=96,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=32,
        v_head_dim=32,
        index_topk=topk,
        index_head_dim=64,
        index_n_heads=4,
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("glm5") / "glm5_tiny"
    torch.manual_seed(5)
    model = GlmMoeDsaForCausalLM(sizes(TOPK))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1 and not name.endswith("bias"):
                p.uniform_(0.5, 1.5)
    model.to(torch.bfloat16).save_pretrained(folder)
    edit_config(folder, {k: v for k, v in KIMI_EXTRAS.items() if k != "model_type"})
    return folder


@torch.no_grad()
def reference(folder: Path, ids: list[int], topk: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[len(ids) - 1] logprobs of the tokens after the first, in nats."""
    model = GlmMoeDsaForCausalLM.from_pretrained(folder, config=sizes(topk), dtype=dtype).eval()
    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits.float()
    return logits[0, :-1].log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[:, 0]


def launch(folder: Path):
    options = ServeOptions(
        served_model_name="glm5", max_total_tokens=2048, extra_args=("--skip-tokenizer-init",)
    )
    return _launch(str(folder), variant_named("bf16"), port=choose_port(), device="cpu", options=options)


def get(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=60) as reply:
        return json.loads(reply.read())


def test_served_dense_it_is_exact_in_short_contexts_and_says_so(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUIPOISE_SGLANG_PYTHON", sys.executable)
    command = launch(checkpoint)
    assert DENSE_FLAG in command.argv
    server = SglangServer(
        label="glm5", command=command, log_path=tmp_path / "server.log", start_timeout_s=400
    )
    ids = random.Random(0).choices(range(3, VOCAB - 1), k=200)

    async def serve() -> tuple[list, dict, dict]:
        await server.start()
        try:
            return await asyncio.to_thread(ask)
        finally:
            await server.stop()

    def ask() -> tuple[list, dict, dict]:
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        body |= {"return_logprob": True, "logprob_start_len": 0}
        request = urllib.request.Request(
            server.url + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            listed = json.loads(reply.read())["meta_info"]["input_token_logprobs"]
        return listed, get(server.url + "/server_info"), get(server.url + "/v1/models")

    listed, info, models = asyncio.run(serve())
    got = torch.tensor([x[0] for x in listed if x[0] is not None])
    sparse, dense = reference(checkpoint, ids, TOPK), reference(checkpoint, ids, 1024)
    noise = (reference(checkpoint, ids, 1024, torch.bfloat16) - dense).abs().mean().item()
    short, long = slice(0, TOPK - 1), slice(TOPK - 1, None)
    errors = {
        "short, sparse": (got - sparse)[short].abs().mean().item(),
        "long, dense": (got - dense)[long].abs().mean().item(),
        "long, sparse": (got - sparse)[long].abs().mean().item(),
    }
    print(f"bf16 noise {noise:.4f}, {errors}")
    assert errors["short, sparse"] < 3 * noise
    assert errors["long, dense"] < 3 * noise
    assert errors["long, sparse"] > 0.3  # nats: beyond index_topk it is another model, and the report says it
    assert f"at most {TOPK} tokens" in info[DENSE_FACT]
    assert models["data"][0]["id"] == "glm5+dense-mla"
    assert "sparse attention (DSA) was left out" in (tmp_path / "server.log").read_text()


def test_the_launcher_refuses_to_guess(checkpoint: Path) -> None:
    from equipoise.quant.sglang.dense_mla import split_dense

    assert dense_limit(str(checkpoint)) == TOPK
    with pytest.raises(SystemExit, match="add --dense-mla"):
        split_dense([f"--model-path={checkpoint}"])
    with pytest.raises(SystemExit, match="leave it out"):
        split_dense(["--model-path=org/name", DENSE_FLAG])

"""The real server stores the embedded models' caches in the layout it was told to.

Its log-probabilities are compared with a float32 model whose cache goes through a layout written
here, tile by tile, with torch alone. Two measures over 900 tokens:

* the mean |logprob difference| in nats, beside the noise of computing the same model in BF16 as the
  server does (.042 Kimi-shaped, .035 GLM-shaped). Noise before a cast flips codes, and where a
  scale follows the largest value also the scale: seen were .095 (ds656) and .217 (fp8_per_head);
  against flat FP8 .34 and .48.
* the share of a layout: how much of the change that it makes in the reference shows in the server
  (slope of one on the other). Seen: .50 (ds656), .62 (ds656_pow2), .77 (fp8_per_head), .70
  (fp8_per_token_head) for the layout served; at most .14 in absolute value for any other, and
  for every layout where the server stored BF16.
"""

import asyncio
import json
import random
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from equipoise.evals.backends.sglang_server import SglangServer, choose_port
from equipoise.quant.variants import KV_VARIANTS, ServeOptions, build_launch_command
from equipoise.tasks.embedded.checkpoint import load_model

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

MODELS = Path(__file__).resolve().parents[2] / "tasks" / "embedded"
Store = Callable[[int, str, torch.Tensor], torch.Tensor]
# Largest error against the server's own layout, in units of the model's BF16 noise.
NOISE_FACTOR = {"ds656": 3.5, "fp8_per_head": 9.0}
NEARER_THAN_FLAT = 0.75
OWN_SHARE, OTHERS_SHARE = 0.35, 0.25


def e4m3(x: torch.Tensor, scale: torch.Tensor | float) -> torch.Tensor:
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


def bf16(_layer: int, _part: str, x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def flat(_layer: int, _part: str, x: torch.Tensor) -> torch.Tensor:
    return e4m3(x.bfloat16().float(), 1.0)


def ds656(pow2: bool) -> Store:
    def store(_layer: int, part: str, x: torch.Tensor) -> torch.Tensor:
        x = x.bfloat16().float()
        if part == "rope":
            return x
        tiles = []
        for tile in x.split(128, dim=-1):
            # Three of the widened model's four tiles are zero in every token: without a floor they are NaN.
            scale = (tile.abs().amax(-1, keepdim=True) / 448).clamp_min(1e-4 if pow2 else 1e-30)
            tiles.append(e4m3(tile, scale.log2().ceil().exp2() if pow2 else scale))
        return torch.cat(tiles, dim=-1)

    return store


def per_head(layer: int, part: str, x: torch.Tensor) -> torch.Tensor:
    amax = json.loads((MODELS / "glm_tiny" / "kv_head_amax.json").read_text())["layers"][layer][part]
    return e4m3(x.bfloat16().float(), torch.tensor(amax)[:, None, None] / 448)  # x [batch, heads, time, dim]


def per_token_head(_layer: int, _part: str, x: torch.Tensor) -> torch.Tensor:
    x = x.bfloat16().float()
    return e4m3(x, x.abs().amax(-1, keepdim=True) / 448)


STORES: dict[str, dict[str, Store]] = {
    "kimi_tiny": {"bf16": bf16, "flat": flat, "ds656": ds656(False), "ds656_pow2": ds656(True)},
    "glm_tiny": {"bf16": bf16, "flat": flat, "fp8_per_head": per_head, "fp8_per_token_head": per_token_head},
}


class Served:
    def __init__(self, model: str, layout: str, folder: Path) -> None:
        self.model, self.layout = load_model(MODELS / model).eval(), layout
        self.stores = STORES[model]
        self.noise = self.bf16_noise(random_ids(150, seed=0))
        variant = next(v for v in KV_VARIANTS.values() if v.layout == layout)
        command = build_launch_command(
            str(MODELS / model),
            variant,
            port=choose_port(),
            device="cpu",
            python=sys.executable,
            options=ServeOptions(
                served_model_name="tiny", max_total_tokens=8192, extra_args=("--skip-tokenizer-init",)
            ),
        )
        self.server = SglangServer(
            label=layout, command=command, log_path=folder / "server.log", start_timeout_s=400
        )

    def generate(self, ids: list[int], *, new: int, start: int = -1) -> dict:
        sampling = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}
        body = {"input_ids": ids, "sampling_params": sampling, "return_logprob": True}
        request = urllib.request.Request(
            f"{self.server.url}/generate",
            json.dumps(body | {"logprob_start_len": start}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            return json.loads(reply.read())["meta_info"]

    @torch.no_grad()
    def reference(self, ids: list[int], store: Store) -> torch.Tensor:
        self.model.set_on_cache(store)
        logprobs = self.model(torch.tensor([ids]))[0, :-1].float().log_softmax(-1)
        return logprobs.gather(1, torch.tensor(ids)[1:, None])[:, 0]

    def bf16_noise(self, ids: list[int]) -> float:
        exact = self.reference(ids, bf16)
        with torch.autocast("cpu", torch.bfloat16):
            return (self.reference(ids, bf16) - exact).abs().mean().item()

    def errors(self, sequences: list[tuple[list[int], torch.Tensor]]) -> dict[str, float]:
        """By layout: the mean error of the last tokens of each sequence."""
        found = {}
        for name, store in self.stores.items():
            gaps = [(self.reference(ids, store)[-len(got) :] - got).abs() for ids, got in sequences]
            found[name] = torch.cat(gaps).mean().item()
        return found


@pytest.fixture(
    scope="module",
    params=[("kimi_tiny", "ds656"), ("glm_tiny", "fp8_per_head")],
    ids=lambda p: "-".join(p),
)
def served(request, tmp_path_factory):
    torch.set_num_threads(1)
    served = Served(*request.param, tmp_path_factory.mktemp(request.param[1]))
    asyncio.run(served.server.start())
    yield served
    asyncio.run(served.server.stop())


def random_ids(n: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(7, 63), k=n)


def shares(served: Served, sequences: list[tuple[list[int], torch.Tensor]]) -> dict[str, float]:
    """By layout: the slope of the server's change against that of the layout, from BF16."""
    got = torch.cat([got for _, got in sequences])
    refs = {
        name: torch.cat([served.reference(ids, store) for ids, _ in sequences])
        for name, store in served.stores.items()
    }
    base = refs.pop("bf16")
    return {name: ((got - base) @ (r - base) / (r - base).square().sum()).item() for name, r in refs.items()}


def test_prompt_logprobs_are_those_of_the_float32_reference_with_the_same_layout(served):
    sequences = []
    for seed in range(6):
        ids = random_ids(150, seed)
        listed = served.generate(ids, new=1, start=0)["input_token_logprobs"]
        got = [x[0] for x in listed if x[0] is not None]
        assert [x[1] for x in listed if x[0] is not None] == ids[1:]
        sequences.append((ids, torch.tensor(got)))
    errors, share = served.errors(sequences), shares(served, sequences)
    print(f"{served.layout}: noise {served.noise:.4f}", {name: round(e, 4) for name, e in errors.items()})
    print(f"{served.layout}: shares", {name: round(e, 3) for name, e in share.items()})
    assert errors[served.layout] < NOISE_FACTOR[served.layout] * served.noise
    assert errors[served.layout] < NEARER_THAN_FLAT * errors["flat"]
    assert share.pop(served.layout) > OWN_SHARE
    assert all(abs(other) < OTHERS_SHARE for other in share.values())


def test_decoded_tokens_read_the_same_layout_behind_a_cached_prefix(served):
    prefix = random_ids(90, seed=9)
    served.generate(prefix, new=1)
    sequences = []
    for seed in range(10, 18):
        ids = prefix + random_ids(5, seed)
        meta = served.generate(ids, new=24)
        assert meta["cached_tokens"] >= 80
        out = [(x[0], x[1]) for x in meta["output_token_logprobs"]]
        sequences.append((ids + [t for _, t in out], torch.tensor([logprob for logprob, _ in out])))
    errors = served.errors(sequences)
    print(f"{served.layout}: decode", {name: round(e, 4) for name, e in errors.items()})
    assert errors[served.layout] < NOISE_FACTOR[served.layout] * served.noise
    assert errors[served.layout] < NEARER_THAN_FLAT * errors["flat"]


def test_the_server_names_its_layout_wherever_it_is_asked(served):
    described = asyncio.run(served.server.describe())
    info = described["server_info"]
    assert info["kv_layout"] == served.layout
    assert info["kv_cache_dtype"] == "fp8_e4m3"
    assert info["served_model_name"] == f"tiny+kv-layout={served.layout}"
    assert described["model_info"]["served_model_name"] == f"tiny+kv-layout={served.layout}"
    log = served.server.log_path.read_text()
    bytes_ = {"ds656": 656, "fp8_per_head": 2 * 2 * 64}[served.layout]
    assert f"KV LAYOUT {served.layout}: {bytes_} bytes a token and layer" in log

"""The real server loads the scales of a calibrated overlay, and applies them on write and on read.

A random Llama whose K saturates at scale 1 and whose V is flushed to zero there. Compared are
log-probabilities of 150 tokens with a float32 reference that stores the cache at the written scales:
a mean difference of .039 nats was seen (the model's own BF16 noise is .019), and 1.17 from the
reference at scale 1.
"""

import asyncio
import json
import random
import sys
import urllib.request
from pathlib import Path

import pytest
import torch
from calibration_cases import rescale
from tiny_models import VOCAB, Reference, make_checkpoint, store_bf16, store_fp8

from equipoise.evals.backends.sglang_server import SglangServer, choose_port
from equipoise.quant.calibration.calibrate import calibrate
from equipoise.quant.calibration.model import load_model
from equipoise.quant.calibration.output import write
from equipoise.quant.calibration.prompts import TokenSequences
from equipoise.quant.calibration.settings import Settings
from equipoise.quant.variants import ServeOptions, build_launch_command, find_variant

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

FACTORS = [(2.0**8, 2.0**-12)] * 3
NOISE_FACTOR = 4.0  # as for every FP8 cache of these tiny models


def random_ids(n: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB - 1), k=n)


def prompt_logprobs(url: str, ids: list[int]) -> torch.Tensor:
    body = {
        "input_ids": ids,
        "sampling_params": {"temperature": 0, "max_new_tokens": 1},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    request = urllib.request.Request(
        url + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        listed = json.loads(reply.read())["meta_info"]["input_token_logprobs"]
    return torch.tensor([x[0] for x in listed if x[0] is not None])


def test_an_overlay_s_scales_are_loaded_and_applied(tmp_path: Path) -> None:
    folder = rescale(make_checkpoint("llama", tmp_path / "plain"), tmp_path / "rescaled", FACTORS)
    data = TokenSequences(
        sequences=tuple(tuple(random_ids(120, seed=s)) for s in range(1, 5)),
        where=("a", "b", "c", "d"),
        truncated=0,
        too_short=0,
    )
    report = calibrate(load_model(folder), data, Settings(method="mse", kl_prompts=1))
    out = tmp_path / "calibrated"
    write(report, folder, out)
    scales = [(x.parts["k"].scales[0], x.parts["v"].scales[0]) for x in report.layers]
    assert all(k > 1.0 and v < 1e-3 for k, v in scales)

    command = build_launch_command(
        str(out),
        find_variant("fp8_e4m3"),
        port=choose_port(),
        device="cpu",
        python=sys.executable,
        options=ServeOptions(max_total_tokens=4096, extra_args=("--skip-tokenizer-init",)),
    )
    server = SglangServer(
        label="calibrated", command=command, log_path=tmp_path / "server.log", start_timeout_s=400
    )
    ids = random_ids(150, seed=0)

    async def ask() -> torch.Tensor:
        await server.start()
        try:
            return await asyncio.to_thread(prompt_logprobs, server.url, ids)
        finally:
            await server.stop()

    got = asyncio.run(ask())
    log = (tmp_path / "server.log").read_text()
    for i, (k, v) in enumerate(scales):
        assert f"layer {i}: k_scale {k:g}, v_scale {v:g}" in log

    reference = Reference(folder, "llama")
    dtype = torch.float8_e4m3fn
    swapped = [(v, k) for k, v in scales]
    own, unit, wrong = (
        (got - reference.logprobs(ids, store_fp8(dtype, s))).abs().mean().item()
        for s in (scales, None, swapped)
    )
    noise = reference.bf16_noise(ids)
    lost = (
        (reference.logprobs(ids, store_fp8(dtype)) - reference.logprobs(ids, store_bf16)).abs().mean().item()
    )
    print(f"noise {noise:.4f}, own {own:.4f}, scale 1 {unit:.4f}, swapped {wrong:.4f}, lost at 1 {lost:.4f}")
    assert own < NOISE_FACTOR * noise
    assert own < 0.25 * min(unit, wrong)
    assert lost > 0.2

"""Train an embedded model: ``python -m equipoise.tasks.embedded.train {kimi,glm} OUT``.

One thread, float32, fixed seeds and step counts: the same machine gives the same weights.

Two phases. The first learns the tasks. The second (``harden``) starts from the written BF16
checkpoint and goes on with fresh relative noise on every cached value: a tiny model is otherwise
far more marginal than a large one, and an FP8 cache costs it more than the task margins.
"""

import argparse
import json
import math
import platform
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.tasks.embedded.architecture import GLM, KIMI, FastModel, Shape
from equipoise.tasks.embedded.checkpoint import load_model, write_checkpoint
from equipoise.tasks.embedded.curriculum import STAGES, Stage, stream
from equipoise.tasks.embedded.model_card import model_card
from equipoise.tasks.embedded.scoring import answer
from equipoise.tasks.embedded.sensitivity import SELECTION_SEED, TREATMENTS, calibrate, generated_tasks
from equipoise.tasks.embedded.widen import narrow, widen
from equipoise.tasks.generated import draw_held_out

__all__ = ["SHAPES", "finish", "harden", "train"]

SHAPES: dict[str, Shape] = {"kimi": KIMI, "glm": GLM}
LEARNING_RATE = 2e-3
WARMUP_STEPS = 100
DECAY_FROM = 0.6  # of all steps; cosine to 2% from there
BALANCE_RATE = 1e-3  # of the routers' selection bias
EVERY_STEPS = 300  # quick accuracies and a checkpoint
QUICK_ITEMS = 50  # a task
CALIBRATION_ITEMS = 64  # a task
_IGNORE = -100

HARDEN_STEPS = 450
HARDEN_RATE = 6e-4  # warmed up, then cosine to 2%
# Uniform on +-2**-4, the largest relative error of rounding to three mantissa bits (e4m3).
HARDEN_NOISE = 2.0**-4


def _batches(rng: random.Random, stage: Stage) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets, both [batch, length]; only answer tokens are targets."""
    source = stream(rng, stage)
    while True:
        rows = [next(source) for _ in range(stage.batch)]
        ids, is_answer = torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows])
        yield ids[:, :-1], torch.where(is_answer[:, 1:], ids[:, 1:], _IGNORE)


def _rate(step: int, total: int) -> float:
    done = step / total
    if done < DECAY_FROM:
        return LEARNING_RATE * min(1.0, (step + 1) / WARMUP_STEPS)
    return LEARNING_RATE * (0.02 + 0.49 * (1 + math.cos(math.pi * (done - DECAY_FROM) / (1 - DECAY_FROM))))


def _step(model: FastModel, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> float:
    loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=_IGNORE)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    for router in model.routers():  # experts chosen too rarely get a head start
        router.e_score_correction_bias += BALANCE_RATE * torch.sign(router.load.mean() - router.load)
    return float(loss.detach())


def _accuracies(model: FastModel, n: int) -> dict[str, float]:
    return {
        name: round(answer(model, draw_held_out(task, n, SELECTION_SEED)).accuracy, 4)
        for name, task in generated_tasks().items()
    }


def _write(model: FastModel, out: Path) -> None:
    state, shape = model.state_dict(), model.shape
    if shape.family == "kimi":
        state, shape = widen(state, shape)
    write_checkpoint(state, shape, out)


def train(family: str, out: Path, *, seed: int = 0) -> dict[str, Any]:
    """Train, write the checkpoint to ``out`` every few hundred steps, and return the log."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = FastModel(SHAPES[family])
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.05, fused=True
    )
    total, step, evaluations = sum(stage.steps for stage in STAGES), 0, []
    cpu_start, wall_start = time.process_time(), time.monotonic()
    for number, stage in enumerate(STAGES):
        source = _batches(random.Random(f"training-{seed}-{number}"), stage)
        for _ in range(stage.steps):
            for group in optimizer.param_groups:
                group["lr"] = _rate(step, total)
            loss = _step(model, optimizer, *next(source))
            step += 1
            if step % EVERY_STEPS == 0 or step == total:
                row = {"step": step, "loss": round(loss, 4), "cpu_s": round(time.process_time() - cpu_start)}
                evaluations.append(row | _accuracies(model, QUICK_ITEMS))
                print(json.dumps(evaluations[-1]), flush=True)
                _write(model, out)
    return {
        "family": family,
        "seed": seed,
        "steps": total,
        "cpu_s": round(time.process_time() - cpu_start),
        "wall_s": round(time.monotonic() - wall_start),
        "parameters_trained": sum(p.numel() for p in model.parameters()),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "evaluations": evaluations,
    }


def harden(family: str, out: Path, *, seed: int = 0) -> dict[str, Any]:
    """Second phase: train the checkpoint in ``out`` on with a noisy cache, write it, return the log."""
    torch.set_num_threads(1)
    torch.manual_seed(seed + 1)
    model = FastModel(SHAPES[family])
    state = load_model(out).state_dict()
    model.load_state_dict(narrow(state, SHAPES[family]) if family == "kimi" else state)
    model.train()
    model.set_on_cache(lambda _layer, _part, x: x * (1 + HARDEN_NOISE * (2 * torch.rand_like(x) - 1)))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=HARDEN_RATE, betas=(0.9, 0.98), weight_decay=0.05, fused=True
    )
    source = _batches(random.Random(f"hardening-{seed}"), STAGES[-1])
    cpu_start, losses = time.process_time(), []
    for step in range(HARDEN_STEPS):
        decay = 0.02 + 0.49 * (1 + math.cos(math.pi * step / HARDEN_STEPS))
        for group in optimizer.param_groups:
            group["lr"] = HARDEN_RATE * min(1.0, (step + 1) / 30) * decay
        losses.append(_step(model, optimizer, *next(source)))
        if (step + 1) % 50 == 0:
            recent = sum(losses[-50:]) / 50
            print(json.dumps({"hardening_step": step + 1, "loss": round(recent, 4)}), flush=True)
    model.set_on_cache(lambda _layer, _part, x: x)
    _write(model, out)
    return {
        "steps": HARDEN_STEPS,
        "cpu_s": round(time.process_time() - cpu_start),
        "noise": HARDEN_NOISE,
        "loss": round(sum(losses[-50:]) / 50, 4),
    }


def write_amax(out: Path, amax: Sequence[Mapping[str, Sequence[float]]], *, family: str) -> None:
    """``kv_amax.json`` for the planted faults; of GQA also ``kv_head_amax.json`` for layout fp8_per_head."""
    heads = [{part: [round(a, 4) for a in values] for part, values in layer.items()} for layer in amax]
    whole = [{part: max(values) for part, values in layer.items()} for layer in heads]
    (out / "kv_amax.json").write_text(json.dumps({"layers": whole}, indent=1) + "\n")
    if family == "glm":
        (out / "kv_head_amax.json").write_text(json.dumps({"layers": heads}, indent=1) + "\n")


def finish(out: Path, log: dict[str, Any], *, items_per_task: int = 400) -> None:
    """Calibrate and score the checkpoint as written (BF16 weights and cache); write log and card."""
    model = load_model(out)
    write_amax(out, calibrate(model, items_per_task=CALIBRATION_ITEMS), family=model.shape.family)
    model.set_on_cache(TREATMENTS["bf16"](()))
    log = log | {
        "accuracies": _accuracies(model, items_per_task),
        "accuracy_items_per_task": items_per_task,
        "accuracy_seed": SELECTION_SEED,
    }
    (out / "training.json").write_text(json.dumps(log, indent=1) + "\n")
    (out / "README.md").write_text(model_card(log), encoding="utf-8")
    print(json.dumps(log["accuracies"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", choices=list(SHAPES))
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--finish-only", action="store_true", help="score and document what OUT holds")
    parser.add_argument("--harden-only", action="store_true", help="second phase of a checkpoint in OUT")
    arguments = parser.parse_args()
    out: Path = arguments.out
    if arguments.finish_only or arguments.harden_only:
        log = json.loads((out / "training.json").read_text())
    else:
        out.mkdir(parents=True, exist_ok=True)
        log = train(arguments.family, out, seed=arguments.seed)
        (out / "training.json").write_text(json.dumps(log, indent=1) + "\n")
    if not arguments.finish_only:
        log["hardening"] = harden(arguments.family, out, seed=arguments.seed)
        (out / "training.json").write_text(json.dumps(log, indent=1) + "\n")
    finish(out, log)


if __name__ == "__main__":
    main()

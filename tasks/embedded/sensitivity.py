"""What a faulty KV cache does to the embedded models, task by task.

``python -m equipoise.tasks.embedded.sensitivity MODEL_DIR [--items N] [--seed S] [--json OUT]``

Everything a server caches (MLA: normed latent and rotated key; GQA: rotated K and V) is quantized
and read back by every attention, as on a server that reads its pool in prefill too. Computation is
float32, so the differences are those of the cache alone.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.kernels.drift import fake_quantize_drifting
from equipoise.kernels.formats import E4M3FN, E5M2, fake_quantize_float8, fake_quantize_int
from equipoise.tasks.addition import Addition
from equipoise.tasks.brackets import Brackets
from equipoise.tasks.copy import Copy
from equipoise.tasks.dialog_recall import DialogRecall
from equipoise.tasks.embedded.architecture import CachePart, FastModel, OnCache
from equipoise.tasks.embedded.checkpoint import load_model
from equipoise.tasks.embedded.scoring import Answers, answer
from equipoise.tasks.generated import Draw, GeneratedTask, draw_held_out
from equipoise.tasks.kv_retrieval import KvRetrieval
from equipoise.tasks.sort import Sort

__all__ = ["CALIBRATION_SEED", "SELECTION_SEED", "TREATMENTS", "calibrate", "compare", "generated_tasks"]

# Neither is ever an evaluation seed (plans use small numbers).
SELECTION_SEED = 777_001
CALIBRATION_SEED = 777_777

Amax = Sequence[Mapping[str, float]]  # [layer][part]


def _bf16(_: Amax) -> OnCache:
    return lambda layer, part, x: x.bfloat16().float()


def _float8(fmt: Any) -> Callable[[Amax], OnCache]:
    return lambda amax: lambda layer, part, x: fake_quantize_float8(x.bfloat16(), fmt)


def _int_tensor(bits: int) -> Callable[[Amax], OnCache]:
    def build(amax: Amax) -> OnCache:
        return lambda layer, part, x: fake_quantize_int(x.bfloat16(), bits=bits, amax=amax[layer][part])

    return build


def _int_token(bits: int) -> Callable[[Amax], OnCache]:
    def store(layer: int, part: CachePart, x: Tensor) -> Tensor:  # x [batch, heads, time, dim]
        per_token = x.bfloat16().float().abs().amax(dim=(1, 3), keepdim=True)
        return fake_quantize_int(x.bfloat16(), bits=bits, amax=per_token)

    return lambda amax: store


def _clip(factor: float) -> Callable[[Amax], OnCache]:
    def build(amax: Amax) -> OnCache:
        def store(layer: int, part: CachePart, x: Tensor) -> Tensor:
            scale = amax[layer][part] / E4M3FN.max_finite / factor
            return fake_quantize_float8(x.bfloat16(), E4M3FN, scale=scale)

        return store

    return build


def _drift(_: Amax) -> OnCache:
    def store(layer: int, part: CachePart, x: Tensor) -> Tensor:  # x [batch, heads, time, dim]
        amax = x.bfloat16().float().abs().amax(dim=(1, 3), keepdim=True)
        positions = torch.arange(x.shape[2]).view(1, 1, -1, 1)
        return fake_quantize_drifting(x.bfloat16(), amax=amax, positions=positions).bfloat16().float()

    return store


# Name -> from the calibrated amax to what the cache gives back.
TREATMENTS: Mapping[str, Callable[[Amax], OnCache]] = {
    "bf16": _bf16,
    "e4m3": _float8(E4M3FN),
    "e5m2": _float8(E5M2),
    "int5-token": _int_token(5),
    "int5-tensor": _int_tensor(5),
    "int4-token": _int_token(4),
    "int4-tensor": _int_tensor(4),
    "int6-token": _int_token(6),  # noise of about e4m3's size, for choosing without looking at e4m3
    "clip2": _clip(2.0),
    "drift": _drift,
}


def generated_tasks() -> dict[str, GeneratedTask]:
    """The embedded tasks that are scored by exact answers."""
    tasks = (KvRetrieval(), DialogRecall(), Copy(), Sort(), Brackets(), Addition())
    return {task.name: task for task in tasks}


def calibrate(model: FastModel, *, items_per_task: int) -> list[dict[str, list[float]]]:
    """Largest magnitude of each head of each cached part in each layer, over calibration items.

    ``calibrate(...)[layer][part]`` has one number for each KV head (one for MLA's parts).
    """
    amax: list[dict[str, list[float]]] = [{} for _ in model.model.layers]

    def observe(layer: int, part: CachePart, x: Tensor) -> Tensor:
        now = x.bfloat16().float().abs().amax(dim=(0, 2, 3)).tolist()
        amax[layer][part] = [max(pair) for pair in zip(now, amax[layer].get(part, now), strict=True)]
        return x

    model.set_on_cache(observe)
    for task in generated_tasks().values():
        answer(model, draw_held_out(task, items_per_task, CALIBRATION_SEED))
    model.set_on_cache(_bf16(()))
    return amax


def compare(model: FastModel, amax: Amax, items: Mapping[str, Sequence[Draw]], names: Sequence[str]) -> Any:
    """Accuracy, lost and gained items and NLL difference (nats a token) from bf16, by treatment and task."""
    results: dict[str, dict[str, dict[str, float]]] = {}
    baseline: dict[str, Answers] = {}
    for name in ["bf16", *(n for n in names if n != "bf16")]:
        model.set_on_cache(TREATMENTS[name](amax))
        answers = {task: answer(model, draws) for task, draws in items.items()}
        baseline = baseline or answers
        rows: dict[str, dict[str, float]] = {}
        for task, got in answers.items():
            pairs = list(zip(baseline[task].right, got.right, strict=True))
            nll_differences = [b - a for a, b in zip(baseline[task].nll_nats, got.nll_nats, strict=True)]
            rows[task] = {
                "n": len(pairs),
                "accuracy": got.accuracy,
                "lost": sum(a and not b for a, b in pairs),
                "gained": sum(b and not a for a, b in pairs),
                "delta_nll_nats": sum(nll_differences) / len(nll_differences),
            }
        results[name] = rows
    return results


def _table(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    tasks = list(results["bf16"])
    lines = [f"{'treatment':12s} {'pooled':>22s} " + " ".join(f"{task:>20s}" for task in tasks)]
    for name, rows in results.items():
        n = sum(row["n"] for row in rows.values())
        pooled = sum(row["accuracy"] for row in rows.values()) / len(rows)
        delta = sum((row["gained"] - row["lost"]) / row["n"] for row in rows.values()) / len(rows)
        flips = sum(row["gained"] + row["lost"] for row in rows.values()) / n
        cells = " ".join(
            f"{row['accuracy']:8.3f} {'-' + str(row['lost']):>5s}/{'+' + str(row['gained']):<5s}"
            for row in rows.values()
        )
        lines.append(f"{name:12s} {pooled:6.3f} {delta:+7.3f} pd{flips:6.3f} {cells}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--items", type=int, default=400, help="a task")
    parser.add_argument("--seed", type=int, default=SELECTION_SEED)
    parser.add_argument("--treatments", nargs="+", default=list(TREATMENTS), choices=list(TREATMENTS))
    parser.add_argument("--json", type=Path, help="write the numbers there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(arguments.model)
    amax = json.loads((arguments.model / "kv_amax.json").read_text())["layers"]
    items = {
        name: draw_held_out(task, arguments.items, arguments.seed) for name, task in generated_tasks().items()
    }
    results = compare(model, amax, items, arguments.treatments)
    print(_table(results))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""How much the overlay controls (quant/controls.py) take from the embedded models, by kind and strength.

``.venv-sglang/bin/python -P tests/calibration/overlay_controls.py [--items N] [--write]``

Each control is written as a real overlay of the shipped checkpoint and loaded again; the model computes in
float32 with a bfloat16 cache, on the selection seed of tasks/embedded (plans use other seeds). ``--write``
makes overlay_controls.md.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from equipoise.quant.checkpoint import Checkpoint
from equipoise.quant.controls import ControlKind, ControlSpec, plan_control
from equipoise.quant.overlay import write_overlay
from equipoise.tasks.embedded.checkpoint import load_model
from equipoise.tasks.embedded.scoring import Answers, answer
from equipoise.tasks.embedded.sensitivity import SELECTION_SEED, generated_tasks
from equipoise.tasks.generated import Draw, draw_held_out

EMBEDDED = Path(__file__).resolve().parents[2] / "tasks" / "embedded"
MODELS = ("kimi_tiny", "glm_tiny")
STRENGTHS: dict[ControlKind, tuple[float, ...]] = {
    "noise-k": (0.3, 0.4, 0.6),
    "scale-k": (0.7, 1.4, 1.5, 1.6, 1.7, 2.0),
    "rope-theta": (2.0, 2.25, 3.0, 4.0),
}
ONE_LAYER = (0.4, 1.0)  # of noise-k in one of the three layers


def _answers(folder: Path, items: dict[str, list[Draw]]) -> dict[str, Answers]:
    model = load_model(folder)
    model.set_on_cache(lambda layer, part, x: x.bfloat16().float())
    return {task: answer(model, draws) for task, draws in items.items()}


def _row(baseline: dict[str, Answers], got: dict[str, Answers]) -> tuple[float, float]:
    """Change of the pooled accuracy, and the share of flipped answers."""
    delta = sum(got[t].accuracy - baseline[t].accuracy for t in got) / len(got)
    pairs = [(a, b) for t in got for a, b in zip(baseline[t].right, got[t].right, strict=True)]
    return delta, sum(a != b for a, b in pairs) / len(pairs)


def measure(model: str, items_per_task: int, controls: Sequence[ControlSpec]) -> list[str]:
    """One table row for each control of one model."""
    source = EMBEDDED / model
    items = {n: draw_held_out(t, items_per_task, SELECTION_SEED) for n, t in generated_tasks().items()}
    baseline = _answers(source, items)
    checkpoint = Checkpoint.open(source)
    rows = []
    with tempfile.TemporaryDirectory() as work:
        for number, spec in enumerate(controls):
            out = Path(work) / str(number)
            write_overlay(plan_control(checkpoint, spec), out)
            delta, flips = _row(baseline, _answers(out, items))
            which = ", ".join(map(str, spec.layers or ())) or "all"
            rows.append(
                f"| {model} | {spec.kind} | {spec.strength:g} | {which} | {delta:+.3f} | {flips:.3f} |"
            )
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=200, help="a task")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    controls = [
        ControlSpec(kind=kind, strength=strength, layers=())
        for kind, strengths in STRENGTHS.items()
        for strength in strengths
    ]
    controls += [ControlSpec(kind="noise-k", strength=strength, layers=(1,)) for strength in ONE_LAYER]
    rows = [row for model in MODELS for row in measure(model, arguments.items, controls)]
    if arguments.write:
        head = [
            "# Overlay controls on the embedded models",
            "",
            f"Written by `overlay_controls.py`: {arguments.items} items a task, six tasks, item seed "
            f"{SELECTION_SEED}; change of the pooled accuracy against the unaltered checkpoint, and share of "
            "flipped answers. Float32 computation, bfloat16 cache. Three layers in all.",
            "",
            "| model | kind | strength | layers | pooled | flips |",
            "|---|---|---|---|---|---|",
        ]
        Path(__file__).with_suffix(".md").write_text("\n".join([*head, *rows]) + "\n")


if __name__ == "__main__":
    main()

"""Where a calibration goes: an overlay checkpoint, SGLang's JSON file, and how both are served; no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.evals.errors import UsageError
from equipoise.quant.calibration.delivery import (
    Delivery,
    attention_prefixes,
    delivery_of,
    quantization_config,
    scale_json,
)
from equipoise.quant.calibration.overlay import write_overlay
from equipoise.quant.calibration.report import CalibrationReport, to_json
from equipoise.quant.checkpoint import Checkpoint
from equipoise.quant.geometry import load_geometry
from equipoise.quant.kv_layouts import HEAD_AMAX_FILE

__all__ = ["PLAN_NOTE", "REPORT_FILE", "SCALE_FILE", "Output", "describe", "write"]

REPORT_FILE = "kv_calibration.json"
SCALE_FILE = "kv_cache_scales.json"
PLAN_NOTE = (
    "SGLang 0.5.23 has one KV dtype for all layers (--kv-cache-dtype): it cannot serve a mixed plan. The "
    "plan says what such a cache would cost and gain."
)
_E4M3_MAX = 448.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """``served``: whether SGLang on a GPU applies the scales (None: not known here).

    ``launch`` are the arguments of servers that get them, each a whole alternative.
    """

    served: bool | None
    notes: tuple[str, ...]
    launch: tuple[str, ...]
    files: tuple[str, ...] = ()


def describe(report: CalibrationReport, folder: Path, out: Path | None) -> Output:
    """What SGLang makes of the scales of this report, written or not."""
    delivery = delivery_of(load_geometry(folder))
    where = str(out) if out is not None else "OUT"
    if report.granularity == "token-tile":
        served = report.attention == "dsa"
        note = (
            "Scales of token tiles are computed by the server as it writes; there is nothing to calibrate. "
            + (
                "SGLang 0.5.23 has this cache for DSA models on Hopper."
                if served
                else "SGLang 0.5.23 has no such cache for this model on a GPU; the CPU server has it."
            )
        )
        return Output(served=served, notes=(note,), launch=())
    if report.granularity == "head":
        note = (
            f"SGLang 0.5.23 has one scale a tensor: scales of heads ({HEAD_AMAX_FILE}) are for the CPU "
            "server's layout fp8_per_head."
        )
        launch = (f"--model-path {where} --kv-cache-dtype fp8_e4m3 --kv-layout fp8_per_head",)
        return Output(served=False, notes=(note,), launch=launch)
    notes = [delivery.note]
    launches = [f"--model-path {where} --kv-cache-dtype fp8_e4m3"]
    if delivery.reads_json:
        launches.append(
            f"--model-path {folder} --kv-cache-dtype fp8_e4m3 --quantization-param-path {where}/{SCALE_FILE} "
            "--attention-backend trtllm_mha"
        )
        notes.append(
            f"{SCALE_FILE} holds one number a layer, the larger of K's and V's, and goes with the original "
            "checkpoint: with the scale tensors it ends the launch. Of the GPU backends trtllm_mha alone "
            "applies it; fa3 and triton fail on it, flashinfer reads unscaled."
        )
    applied = True if delivery.unit_only else delivery.tensors_loaded
    return Output(served=applied, notes=tuple(notes), launch=tuple(launches))


def write(report: CalibrationReport, folder: Path, out: Path, *, tp_size: int = 1) -> Output:
    """Write the overlay of ``folder`` with this report's scales.

    Parameters
    ----------
    folder : Path
        The checkpoint to link: the calibrated one, or a quantized release of the same model.
    tp_size : int
        Tensor-parallel ranks of the servers, for the JSON file.

    Raises
    ------
    UsageError
        ``out`` exists, nothing to write (token tiles), or ``folder`` is of another geometry.
    CheckpointError
        ``folder`` is damaged, or ``out`` cannot be written.
    """
    geometry = load_geometry(folder)
    _require_same(report, folder, geometry.architecture, geometry.num_layers)
    output = describe(report, folder, out)
    described = to_json(report) | {"sglang": to_json(output)}
    if report.granularity == "token-tile":
        raise UsageError(
            "--granularity token-tile leaves nothing to write; drop --out, or choose tensor or head"
        )
    if report.granularity == "head":
        layers = [
            {part: [scale * _E4M3_MAX for scale in found.scales] for part, found in layer.parts.items()}
            for layer in report.layers
        ]
        files: dict[str, Any] = {REPORT_FILE: described, HEAD_AMAX_FILE: {"layers": layers}}
        write_overlay(folder, out, scales={}, files=files)
        return _with_files(output, out, files)
    checkpoint = Checkpoint.open(folder)
    delivery = delivery_of(geometry)
    pairs = [_pair(report, layer, delivery) for layer in range(geometry.num_layers)]
    scales: dict[str, float] = {}
    for prefix, (k, v) in zip(attention_prefixes(checkpoint, geometry.num_layers), pairs, strict=True):
        scales |= {f"{prefix}{delivery.k_suffix}": k, f"{prefix}{delivery.v_suffix}": v}
    files = {REPORT_FILE: described}
    if delivery.reads_json:
        files[SCALE_FILE] = scale_json(geometry.family, pairs, tp_size=tp_size)
    config = quantization_config(checkpoint.config)
    write_overlay(folder, out, scales=scales, config=config, files=files)
    return _with_files(output, out, files)


def _pair(report: CalibrationReport, layer: int, delivery: Delivery) -> tuple[float, float]:
    first, second = (part.scales[0] for part in report.layers[layer].parts.values())
    assert not delivery.unit_only or first == second == 1.0
    return first, second


def _require_same(report: CalibrationReport, folder: Path, architecture: str, num_layers: int) -> None:
    if (architecture, num_layers) != (report.architecture, len(report.layers)):
        raise UsageError(
            f"{folder} is {architecture} with {num_layers} layers, and {report.architecture} with "
            f"{len(report.layers)} was calibrated; give a release of the same model"
        )


def _with_files(output: Output, out: Path, files: dict[str, Any]) -> Output:
    return Output(
        served=output.served,
        notes=output.notes,
        launch=output.launch,
        files=(str(out), *(str(out / name) for name in files)),
    )

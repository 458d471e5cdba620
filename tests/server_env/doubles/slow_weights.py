"""Weights rounded to a format in float64, block by block: shares no code with the converter.

Written from the formats: E4M3 with the scale amax / 448 (float32) for 128 x 128 values or for a row; codes
-8 to 7 with the scale amax / 7.5 (bfloat16) for 32 values of a row, routed experts alone.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from equipoise.kernels.formats import E4M3FN
from equipoise.kernels.reference_formats import nearest_float8

__all__ = ["rounded_slowly", "write_rounded_slowly"]

_EXPERT = re.compile(r".*\.mlp\.experts\.\d+\.(gate|up|down)_proj\.weight")
_LINEAR = re.compile(r".*_proj(_with_mqa)?\.weight")
_ROUNDED = {"fp8-block": _LINEAR, "fp8-channel": _LINEAR, "int4-g32": _EXPERT}


def _groups(rows: int, columns: int, format_name: str) -> Iterator[tuple[slice, slice]]:
    height, width = {"fp8-block": (128, 128), "fp8-channel": (1, columns), "int4-g32": (1, 32)}[format_name]
    for top in range(0, rows, height):
        for left in range(0, columns, width):
            yield slice(top, top + height), slice(left, left + width)


def rounded_slowly(weight: torch.Tensor, format_name: str) -> torch.Tensor:
    """What is read back of a BF16 matrix [out_features, in_features]: bfloat16, as a decoded checkpoint."""
    exact = weight.double()
    back = torch.empty_like(exact)
    for place in _groups(*weight.shape, format_name):
        x = exact[place]
        amax = x.abs().max()
        if amax == 0.0:  # the widened model has such blocks
            back[place] = 0.0
            continue
        if format_name == "int4-g32":
            scale = (amax / 7.5).to(torch.bfloat16).double()
            codes = (x / scale).round().clamp(-8.0, 7.0)
        else:
            scale = (amax / 448.0).float().double()
            codes = nearest_float8(x / scale, E4M3FN)
        back[place] = codes * scale
    return back.to(torch.bfloat16)


def write_rounded_slowly(source: Path, folder: Path, format_name: str) -> Path:
    """The checkpoint with its weights so rounded."""
    shutil.copytree(source, folder)
    tensors = {
        name: rounded_slowly(t, format_name) if _ROUNDED[format_name].fullmatch(name) else t
        for name, t in load_file(source / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder

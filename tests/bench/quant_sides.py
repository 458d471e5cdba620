"""Who encodes and decodes a BF16 matrix in `bench_quant`: our routines, our torch code, other packages."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from bench_lossless import Coder, ours, zipnn_coder

from equipoise.kernels import weight_formats
from equipoise.quant.sglang.torchvision_ops import declare_torchvision_ops
from equipoise.quant.weights.fp8 import (
    fp8_block_decode,
    fp8_block_encode,
    fp8_channel_decode,
    fp8_channel_encode,
)
from equipoise.quant.weights.int4 import int4_decode, int4_encode
from equipoise.quant.weights.tiles import Scratch

FORMATS = ("fp8-block", "fp8-channel", "int4-g32")
COMPILED, TORCH, THEIRS = "compiled", "torch", "compressed-tensors"


@dataclass(frozen=True, kw_only=True)
class Side:
    """``prepare`` makes what ``encode`` takes, ``keep`` of its result what ``decode`` takes: not timed."""

    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    prepare: Callable[[], Any] = lambda: None
    keep: Callable[[Any], Any] = lambda stored: stored


def codes_of(encoded: Any) -> torch.Tensor:
    """The bytes of the codes in what a quantizing side returned."""
    if isinstance(encoded, dict):
        encoded = (encoded["weight_packed" if "weight_packed" in encoded else "weight"],)
    return encoded[0].contiguous().view(torch.uint8)


def _empty_parts(name: str, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = x.shape
    if name == "int4-g32":
        packed = torch.zeros(rows, columns // 8, dtype=torch.int32)
        return packed, torch.zeros(rows, columns // 32, dtype=torch.bfloat16)
    codes = torch.zeros(rows, columns, dtype=torch.float8_e4m3fn)
    if name == "fp8-block":
        return codes, torch.zeros(-(-rows // 128), -(-columns // 128))
    return codes, torch.zeros(rows, 1)


def ours_quantizing(name: str, x: torch.Tensor) -> tuple[Side, Side]:
    """The compiled routine and the torch code, both into buffers that are there already."""
    encode: Callable[..., Any] = {
        "fp8-block": fp8_block_encode, "fp8-channel": fp8_channel_encode, "int4-g32": int4_encode,
    }[name]  # fmt: skip
    decode: Callable[..., Any] = {
        "fp8-block": fp8_block_decode,
        "fp8-channel": fp8_channel_decode,
        "int4-g32": lambda *parts, **named: int4_decode(*parts, columns=x.shape[1], **named),
    }[name]
    (codes, scales), decoded, scratch = _empty_parts(name, x), torch.zeros_like(x), Scratch()

    def run_encode(_: Any) -> Any:
        return encode(x, out=codes, scale_out=scales, scratch=scratch)[:2]

    def run_decode(parts: Any) -> torch.Tensor:
        return decode(*parts, out=decoded, scratch=scratch)  # type: ignore[no-any-return]

    def in_torch(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(given: Any) -> Any:
            with patch.object(weight_formats, "_routine", lambda: None):
                return call(given)

        return run

    compiled = Side(name=COMPILED, encode=run_encode, decode=run_decode)
    return compiled, Side(name=TORCH, encode=in_torch(run_encode), decode=in_torch(run_decode))


def compressed_tensors(name: str, x: torch.Tensor) -> Side:
    """Its ``compress`` with the scales given: finding them is not in its time, and is in ours."""
    declare_torchvision_ops()  # it imports transformers, which may find torchvision without its operators
    from compressed_tensors.compressors import NaiveQuantizationCompressor, PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    arguments = {
        "fp8-block": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]},
        "fp8-channel": {"num_bits": 8, "type": "float", "strategy": "channel"},
        "int4-g32": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
    }[name]
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(symmetric=True, **arguments))
    compressor: Any = PackedQuantizationCompressor if name == "int4-g32" else NaiveQuantizationCompressor
    scales = ours_quantizing(name, x)[0].encode(None)[1]
    return Side(
        name=f"{THEIRS} {version('compressed-tensors')}",
        encode=lambda _: compressor.compress({"weight": x, "weight_scale": scales}, scheme),
        decode=lambda stored: compressor.decompress(stored, scheme)["weight"].to(torch.bfloat16),
    )


def lossless(x: torch.Tensor) -> list[Side]:
    """Our codec and zipnn, which writes over its input and so gets a copy each time."""
    values = x.view(torch.int16).numpy().view(np.uint16)

    def side(coder: Coder) -> Side:
        mutates = coder.name.startswith("zipnn")
        return Side(
            name=coder.name,
            prepare=lambda: bytearray(values.tobytes()) if mutates else values,
            encode=lambda given: coder.encode(given)[0],
            keep=bytearray if mutates else lambda stored: stored,
            decode=lambda stored: torch.from_numpy(coder.decode(stored, values).view(np.int16)),
        )

    return [side(coder) for coder in (ours(1), zipnn_coder(1)) if coder is not None]

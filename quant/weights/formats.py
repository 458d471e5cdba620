"""The weight formats as one interface: which tensors stand for a weight, and how rows become them.

A format works on slabs of whole rows, so that a tensor of any size passes through buffers of a few
megabytes. Every part of a weight is cut along rows too, or is one small tensor for the whole weight.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from equipoise.evals.errors import CheckpointError
from equipoise.quant.weights.fp4 import (
    E2M1_MAX,
    mxfp4_decode,
    mxfp4_encode,
    nvfp4_decode,
    nvfp4_encode,
    nvfp4_global_scale,
)
from equipoise.quant.weights.fp8 import (
    e8m0_to_float32,
    fp8_block_decode,
    fp8_block_encode,
    fp8_channel_decode,
    fp8_channel_encode,
    mxfp8_decode,
    mxfp8_encode,
)
from equipoise.quant.weights.int4 import int4_decode, int4_encode
from equipoise.quant.weights.tiles import EncodeCounts, Scratch

__all__ = [
    "WEIGHT_FORMATS",
    "Fp8Block",
    "Fp8Channel",
    "Int4Grouped",
    "Mxfp4",
    "Mxfp8",
    "Nvfp4",
    "Part",
    "WeightFormat",
]

Parts = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A tensor that stands for (a share of) a weight.

    ``name`` is what takes the place of ``weight`` in the tensor's name; ``rows_each`` is how many rows of
    the weight one row of the part covers, 0 for a part that is one small tensor for the whole weight.
    """

    name: str
    dtype: str  # as safetensors spells it
    shape: tuple[int, ...]
    rows_each: int


class WeightFormat(Protocol):
    """How a weight [out_features, in_features] is stored.

    ``typical_sqnr_db`` is what Gaussian weights give; ``decodes_bfloat16``: ``decode`` also takes a bfloat16
    ``out`` and rounds to it.
    """

    @property
    def name(self) -> str: ...
    @property
    def row_multiple(self) -> int: ...
    @property
    def needs_amax(self) -> bool: ...
    @property
    def decodes_bfloat16(self) -> bool: ...
    @property
    def typical_sqnr_db(self) -> float: ...

    def parts(self, shape: tuple[int, ...]) -> tuple[Part, ...]:
        """The parts of a weight of this shape.

        Raises
        ------
        CheckpointError
            The format cannot hold this shape; says why.
        """

    def encode(
        self, slab: torch.Tensor, *, shape: tuple[int, ...], amax: float | None, scratch: Scratch
    ) -> tuple[dict[str, torch.Tensor], EncodeCounts]:
        """Rows of a weight of ``shape`` to rows of its parts; those with ``rows_each`` 0 come every time."""

    def decode(self, parts: Parts, *, columns: int, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        """Rows of the parts (whole tensors where ``rows_each`` is 0) to float32 ``out`` [rows, columns]."""

    def error_bound(self, x: torch.Tensor, parts: Parts) -> torch.Tensor:
        """The largest |x - decoded| the format allows at each element, float32 like ``x``."""


def _multiple_of(columns: int, group: int, name: str) -> None:
    if columns % group:
        raise CheckpointError(
            f"{name} needs in_features that are a multiple of {group}, not {columns}; keep this weight in "
            "BF16 (--ignore)"
        )


def _spread(scales: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Scales [rows, groups] to one a value [rows, columns]."""
    return scales.repeat_interleave(x.shape[1] // scales.shape[1], dim=1)


# On top of the format's half step: a float32 division that rounds across a midpoint and the multiplication
# back, 2**-24 of the value each, where half a step is 2**-5 of the value at least.
_SLACK = 1.0 + 2.0**-17


def _e4m3_bound(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    # Half a step: 2**-4 of a normal value, half of 2**-9 below.
    return torch.maximum(x.abs() * 2.0**-4, scale * 2.0**-10) * _SLACK


def _e2m1_bound(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    # Half a step is .25 up to 2, then at most a fifth of the value; beyond 6 what is cut off.
    within = torch.maximum(scale * 0.25, x.abs() * 0.2)
    return torch.maximum(within, x.abs() - E2M1_MAX * scale) * _SLACK


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Block:
    """E4M3 with a float32 scale a block, ``weight_scale_inv`` (DeepSeek, GLM-5)."""

    block: tuple[int, int] = (128, 128)
    name: str = "fp8-block"
    needs_amax: bool = False
    decodes_bfloat16: bool = True
    typical_sqnr_db: float = 31.6

    @property
    def row_multiple(self) -> int:
        return self.block[0]

    def parts(self, shape: tuple[int, ...]) -> tuple[Part, ...]:
        rows, columns = shape
        grid = (-(-rows // self.block[0]), -(-columns // self.block[1]))
        return (
            Part(name="weight", dtype="F8_E4M3", shape=shape, rows_each=1),
            Part(name="weight_scale_inv", dtype="F32", shape=grid, rows_each=self.block[0]),
        )

    def encode(
        self, slab: torch.Tensor, *, shape: tuple[int, ...], amax: float | None, scratch: Scratch
    ) -> tuple[dict[str, torch.Tensor], EncodeCounts]:
        out = scratch.take("out", tuple(slab.shape), torch.float8_e4m3fn)
        codes, scales, counts = fp8_block_encode(slab, block=self.block, out=out, scratch=scratch)
        return {"weight": codes, "weight_scale_inv": scales}, counts

    def decode(self, parts: Parts, *, columns: int, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        codes, scales = parts["weight"], parts["weight_scale_inv"]
        return fp8_block_decode(codes, scales, block=self.block, out=out, scratch=scratch)

    def error_bound(self, x: torch.Tensor, parts: Parts) -> torch.Tensor:
        scales = parts["weight_scale_inv"].to(torch.float32)
        spread = scales.repeat_interleave(self.block[0], 0).repeat_interleave(self.block[1], 1)
        return _e4m3_bound(x, spread[: x.shape[0], : x.shape[1]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Channel:
    """E4M3 with a float32 scale a row (compressed-tensors ``float-quantized``; GLM-4.5 to 4.7)."""

    name: str = "fp8-channel"
    row_multiple: int = 1
    needs_amax: bool = False
    decodes_bfloat16: bool = True
    typical_sqnr_db: float = 31.6

    def parts(self, shape: tuple[int, ...]) -> tuple[Part, ...]:
        return (
            Part(name="weight", dtype="F8_E4M3", shape=shape, rows_each=1),
            Part(name="weight_scale", dtype="F32", shape=(shape[0], 1), rows_each=1),
        )

    def encode(
        self, slab: torch.Tensor, *, shape: tuple[int, ...], amax: float | None, scratch: Scratch
    ) -> tuple[dict[str, torch.Tensor], EncodeCounts]:
        out = scratch.take("out", tuple(slab.shape), torch.float8_e4m3fn)
        codes, scales, counts = fp8_channel_encode(slab, out=out, scratch=scratch)
        return {"weight": codes, "weight_scale": scales}, counts

    def decode(self, parts: Parts, *, columns: int, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        return fp8_channel_decode(parts["weight"], parts["weight_scale"], out=out, scratch=scratch)

    def error_bound(self, x: torch.Tensor, parts: Parts) -> torch.Tensor:
        return _e4m3_bound(x, parts["weight_scale"].to(torch.float32).reshape(-1, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4Grouped:
    """Packed INT4 (compressed-tensors ``pack-quantized``; Kimi K2-Thinking, K2.5, K2.6)."""

    group: int = 32
    name: str = "int4-g32"
    row_multiple: int = 1
    needs_amax: bool = False
    decodes_bfloat16: bool = True
    typical_sqnr_db: float = 20.4

    def parts(self, shape: tuple[int, ...]) -> tuple[Part, ...]:
        rows, columns = shape
        _multiple_of(columns, self.group, self.name)
        return (
            Part(name="weight_packed", dtype="I32", shape=(rows, columns // 8), rows_each=1),
            Part(name="weight_scale", dtype="BF16", shape=(rows, columns // self.group), rows_each=1),
            Part(name="weight_shape", dtype="I32", shape=(2,), rows_each=0),
        )

    def encode(
        self, slab: torch.Tensor, *, shape: tuple[int, ...], amax: float | None, scratch: Scratch
    ) -> tuple[dict[str, torch.Tensor], EncodeCounts]:
        rows, columns = slab.shape
        out = scratch.take("out", (rows, columns // 8), torch.int32)
        packed, scales, counts = int4_encode(slab, group=self.group, out=out, scratch=scratch)
        shape_tensor = torch.tensor(shape, dtype=torch.int32)
        return {"weight_packed": packed, "weight_scale": scales, "weight_shape": shape_tensor}, counts

    def decode(self, parts: Parts, *, columns: int, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        packed, scales = parts["weight_packed"], parts["weight_scale"]
        return int4_decode(packed, scales, columns=columns, out=out, scratch=scratch)

    def error_bound(self, x: torch.Tensor, parts: Parts) -> torch.Tensor:
        # Half a step, and a peak that the scale's rounding to bfloat16 put up to 2**-8 beyond 7.5.
        return _spread(parts["weight_scale"].to(torch.float32), x) * (0.5 + 7.5 * 2.0**-8) * _SLACK


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvfp4:
    """E2M1 with an E4M3 scale for 16 values and a float32 one for the tensor (modelopt)."""

    group: int = 16
    name: str = "nvfp4"
    row_multiple: int = 1
    needs_amax: bool = True
    decodes_bfloat16: bool = False
    typical_sqnr_db: float = 20.4

    def parts(self, shape: tuple[int, ...]) -> tuple[Part, ...]:
        rows, columns = shape
        _multiple_of(columns, self.group, self.name)
        return (
            Part(name="weight", dtype="U8", shape=(rows, columns // 2), rows_each=1),
            Part(name="weight_scale", dtype="F8_E4M3", shape=(rows, columns // self.group), rows_each=1),
            Part(name="weight_scale_2", dtype="F32", shape=(), rows_each=0),
        )

    def encode(
        self, slab: torch.Tensor, *, shape: tuple[int, ...], amax: float | None, scratch: Scratch
    ) -> tuple[dict[str, torch.Tensor], EncodeCounts]:
        assert amax is not None, "nvfp4 needs the amax of the whole tensor (and of those merged with it)"
        rows, columns = slab.shape
        scale = nvfp4_global_scale(amax)
        out = scratch.take("out", (rows, columns // 2), torch.uint8)
        packed, scales, counts = nvfp4_encode(slab, scale, group=self.group, out=out, scratch=scratch)
        return {"weight": packed, "weight_scale": scales, "weight_scale_2": torch.tensor(scale)}, counts

    def decode(self, parts: Parts, *, columns: int, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        scale = float(parts["weight_scale_2"])
        return nvfp4_decode(parts["weight"], parts["weight_scale"], scale, out=out, scratch=scratch)

    def error_bound(self, x: torch.Tensor, parts: Parts) -> torch.Tensor:
        scales = parts["weight_scale"].to(torch.float32) * float(parts["weight_scale_2"])
        return _e2m1_bound(x, _spread(scales, x))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mxfp4:
    """E2M1 with an E8M0 scale for 32 values (compressed-tensors ``mxfp4-pack-quantized``)."""

    group: int = 32
    name: str = "mxfp4"
    row_multiple: int = 1
    needs_amax: bool = False
    decodes_bfloat16: bool = False
    typical_sqnr_db: float = 19.0

    def parts(self, shape: tuple[int, ...]) -> tuple[Part, ...]:
        rows, columns = shape
        _multiple_of(columns, self.group, self.name)
        return (
            Part(name="weight_packed", dtype="U8", shape=(rows, columns // 2), rows_each=1),
            Part(name="weight_scale", dtype="U8", shape=(rows, columns // self.group), rows_each=1),
        )

    def encode(
        self, slab: torch.Tensor, *, shape: tuple[int, ...], amax: float | None, scratch: Scratch
    ) -> tuple[dict[str, torch.Tensor], EncodeCounts]:
        rows, columns = slab.shape
        out = scratch.take("out", (rows, columns // 2), torch.uint8)
        packed, scales, counts = mxfp4_encode(slab, group=self.group, out=out, scratch=scratch)
        return {"weight_packed": packed, "weight_scale": scales}, counts

    def decode(self, parts: Parts, *, columns: int, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        return mxfp4_decode(parts["weight_packed"], parts["weight_scale"], out=out, scratch=scratch)

    def error_bound(self, x: torch.Tensor, parts: Parts) -> torch.Tensor:
        return _e2m1_bound(x, _spread(e8m0_to_float32(parts["weight_scale"]), x))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mxfp8:
    """E4M3 with an E8M0 scale for 32 values, ``weight_scale_inv`` uint8 (SGLang's ``mxfp8``)."""

    group: int = 32
    name: str = "mxfp8"
    row_multiple: int = 1
    needs_amax: bool = False
    decodes_bfloat16: bool = False
    typical_sqnr_db: float = 31.5

    def parts(self, shape: tuple[int, ...]) -> tuple[Part, ...]:
        rows, columns = shape
        _multiple_of(columns, self.group, self.name)
        return (
            Part(name="weight", dtype="F8_E4M3", shape=shape, rows_each=1),
            Part(name="weight_scale_inv", dtype="U8", shape=(rows, columns // self.group), rows_each=1),
        )

    def encode(
        self, slab: torch.Tensor, *, shape: tuple[int, ...], amax: float | None, scratch: Scratch
    ) -> tuple[dict[str, torch.Tensor], EncodeCounts]:
        out = scratch.take("out", tuple(slab.shape), torch.float8_e4m3fn)
        codes, scales, counts = mxfp8_encode(slab, group=self.group, out=out, scratch=scratch)
        return {"weight": codes, "weight_scale_inv": scales}, counts

    def decode(self, parts: Parts, *, columns: int, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        codes, scales = parts["weight"], parts["weight_scale_inv"]
        return mxfp8_decode(codes, scales, group=self.group, out=out, scratch=scratch)

    def error_bound(self, x: torch.Tensor, parts: Parts) -> torch.Tensor:
        return _e4m3_bound(x, _spread(e8m0_to_float32(parts["weight_scale_inv"]), x))


WEIGHT_FORMATS: dict[str, WeightFormat] = {
    f.name: f for f in (Fp8Block(), Fp8Channel(), Int4Grouped(), Nvfp4(), Mxfp4(), Mxfp8())
}

"""One tensor against another: identical, quantized within its format's bound, or decoded exactly."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from equipoise.quant.checkpoint import TensorInfo
from equipoise.quant.weights.jobs import Tick
from equipoise.quant.weights.schemes import StoredWeight
from equipoise.quant.weights.shards import ShardReader, slabs_of_bytes
from equipoise.quant.weights.tiles import Scratch

__all__ = ["SQNR_TOLERANCE_DB", "CompareJob", "TensorCheck"]

# How far below the Gaussian figure of its format a tensor may fall. Groups with heavy tails cost INT4 up to
# 2.7 dB (Student's t with 4 degrees of freedom); a wrong scale costs 6 dB and more.
SQNR_TOLERANCE_DB = 5.0
JUDGED_FROM_ELEMENTS = 4096  # a smaller tensor's SQNR says little


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorCheck:
    """One tensor of the source. ``problem`` is empty if it passed.

    ``sqnr_db`` is None for a tensor that must be identical, and where the signal or the error is zero.
    ``worst`` is the largest error as a share of what the format allows at that element; over 1 is wrong.
    """

    name: str
    kind: str  # "quantized", "decoded" or "identical"
    n: int
    sqnr_db: float | None
    worst: float
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareJob:
    """The tensors of one shard of the source (or, decoding, of the target) against the other side."""

    before: Path
    after: Path
    identical: Mapping[str, tuple[TensorInfo, TensorInfo]]
    quantized: Mapping[str, tuple[TensorInfo, StoredWeight]]
    decoded: Mapping[str, tuple[StoredWeight, TensorInfo]]

    @property
    def names(self) -> list[str]:
        return [*self.identical, *self.quantized, *self.decoded]

    @property
    def input_bytes(self) -> int:
        plain = [info for info, _ in (*self.identical.values(), *self.quantized.values())]
        return sum(i.nbytes for i in plain) + sum(i.nbytes for _, i in self.decoded.values())

    def run(self, tick: Tick) -> list[TensorCheck]:
        scratch = Scratch()
        with ShardReader(self.before) as before, ShardReader(self.after) as after:
            checks = [
                _compare_identical(name, before, a, after, b, tick) for name, (a, b) in self.identical.items()
            ]
            for name, (info, weight) in self.quantized.items():
                checks.append(_compare_quantized(name, before, info, after, weight, scratch))
                tick(info.nbytes)
            for name, (weight, info) in self.decoded.items():
                checks.append(_compare_decoded(name, before, weight, after, info, scratch))
                tick(info.nbytes)
        return checks


def _compare_identical(  # noqa: PLR0917
    name: str, before: ShardReader, a: TensorInfo, after: ShardReader, b: TensorInfo, tick: Tick
) -> TensorCheck:
    problem = ""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        problem = f"was {a.dtype}{list(a.shape)} and is {b.dtype}{list(b.shape)}"
    else:
        for begin, end in slabs_of_bytes(a.nbytes):
            if not torch.equal(before.read_bytes(a, begin, end), after.read_bytes(b, begin, end)):
                problem = f"differs from the source between its bytes {begin:,} and {end:,}"
                break
    tick(a.nbytes)
    return TensorCheck(name=name, kind="identical", n=a.numel, sqnr_db=None, worst=0.0, problem=problem)


def _compare_quantized(  # noqa: PLR0917
    name: str,
    before: ShardReader,
    info: TensorInfo,
    after: ShardReader,
    weight: StoredWeight,
    scratch: Scratch,
) -> TensorCheck:
    if info.shape != weight.shape:
        problem = f"was {list(info.shape)} and is {list(weight.shape)}"
        return TensorCheck(
            name=name, kind="quantized", n=info.numel, sqnr_db=None, worst=0.0, problem=problem
        )
    signal = noise = worst = 0.0
    lost_nan = invented = 0
    for top, bottom, parts in weight.part_slabs(after):
        rows = before.read_rows(info, top, bottom)
        x = scratch.take("original", tuple(rows.shape), torch.float32).copy_(rows)
        decoded = weight.decode(top, bottom, parts, scratch)
        nan = x.isnan()
        if bool(nan.any()):
            lost_nan += int((nan & ~decoded.isnan()).sum())
        usable = x.isfinite() & decoded.isfinite()
        if not bool(usable.all()):
            # In an integer or 4-bit format a whole group reads as NaN where one value was.
            groups_with_nan = _spread_nan(nan, parts, weight)
            invented += int((~decoded.isfinite() & x.isfinite() & ~groups_with_nan).sum())
            x, decoded = torch.where(usable, x, 0.0), torch.where(usable, decoded, 0.0)
        error = (x - decoded).abs_()
        bound = weight.format.error_bound(x, parts).clamp_min(torch.finfo(torch.float32).tiny)
        share = torch.where(usable, error / bound, 0.0)
        worst = max(worst, float(share.max()))
        signal += float(x.square_().sum(dtype=torch.float64))
        noise += float(error.square_().sum(dtype=torch.float64))
    sqnr_db = 10.0 * math.log10(signal / noise) if signal > 0.0 and noise > 0.0 else None
    problem = _judge(weight, info.numel, sqnr_db, worst, lost_nan, invented)
    return TensorCheck(
        name=name, kind="quantized", n=info.numel, sqnr_db=sqnr_db, worst=worst, problem=problem
    )


def _spread_nan(nan: torch.Tensor, parts: Mapping[str, torch.Tensor], weight: StoredWeight) -> torch.Tensor:
    """Where the scale itself may be NaN because a NaN is in its group; formats with a NaN code have none."""
    group: int | None = getattr(weight.format, "group", None)
    if group is None or weight.format.name == "mxfp8":
        return nan
    return nan.view(nan.shape[0], -1, group).any(-1, keepdim=True).expand(-1, -1, group).reshape(nan.shape)


def _judge(  # noqa: PLR0917
    weight: StoredWeight, n: int, sqnr_db: float | None, worst: float, lost_nan: int, invented: int
) -> str:
    floor = weight.format.typical_sqnr_db - SQNR_TOLERANCE_DB
    if lost_nan:
        return f"{lost_nan} NaN of the source became numbers"
    if invented:
        return f"{invented} numbers of the source became NaN or infinite"
    if worst > 1.0:
        return f"an error {worst:.2f} times what {weight.format.name} allows"
    if sqnr_db is not None and n >= JUDGED_FROM_ELEMENTS and sqnr_db < floor:
        return f"SQNR {sqnr_db:.1f} dB, where {weight.format.name} gives {weight.format.typical_sqnr_db:.1f}"
    return ""


def _compare_decoded(  # noqa: PLR0917
    name: str,
    before: ShardReader,
    weight: StoredWeight,
    after: ShardReader,
    info: TensorInfo,
    scratch: Scratch,
) -> TensorCheck:
    problem = ""
    if (info.dtype, info.shape) != ("BF16", weight.shape):
        problem = f"should be BF16{list(weight.shape)} and is {info.dtype}{list(info.shape)}"
    else:
        for top, bottom, parts in weight.part_slabs(before):
            due = weight.decode(top, bottom, parts, scratch).to(torch.bfloat16)
            found = after.read_rows(info, top, bottom)
            same = (due.view(torch.int16) == found.view(torch.int16)) | (due.isnan() & found.isnan())
            if not bool(same.all()):
                problem = (
                    f"{int((~same).sum())} values of rows {top} to {bottom - 1} are not what decoding gives"
                )
                break
    return TensorCheck(name=name, kind="decoded", n=info.numel, sqnr_db=None, worst=0.0, problem=problem)

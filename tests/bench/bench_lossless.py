# ruff: noqa: E402
"""Lossless BF16 beside zipnn and the coders it was chosen over, and a memory copy; writes lossless.md.

Run in an environment with zipnn (``pip install --no-deps zipnn==0.5.4``; without it its rows are missing):
python tests/bench/bench_lossless.py [--repeats N] [--threads 1 2]

GB/s are bytes of BF16 per second, in memory, the best of several runs, all sides in turn in one process. Per
second of CPU is what other work on the machine disturbs least; threads do not change it, but for their cost.
zipnn changes its input, so it gets a copy of its own each time, made outside the clock. Every decoded tensor
is compared with the original, outside the clock.
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_threads] = "1"  # read when numpy is imported

import numpy as np
import zstandard
from numpy.typing import NDArray

from equipoise.kernels.bf16_split import backend
from equipoise.quant.checkpoint import read_shard
from equipoise.quant.lossless import decode_tensor, encode_tensor
from equipoise.quant.lossless.entropy import entropy_bits
from equipoise.quant.lossless.layout import BLOCK_ELEMENTS

Values = NDArray[np.uint16]
BLOCK = BLOCK_ELEMENTS
COMMAND = "tests/bench/bench_lossless.py"
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Speed:
    """``ratio`` is stored / original; GB of BF16 a second, and a second of CPU."""

    ratio: float
    encode: float
    decode: float
    encode_cpu: float
    decode_cpu: float


@dataclass(frozen=True, kw_only=True)
class Coder:
    """``encode`` returns what ``decode`` takes, and the bytes stored."""

    name: str
    encode: Callable[[Values], tuple[Any, int]]
    decode: Callable[[Any, Values], Values]


def to_bf16(x: NDArray[np.float32]) -> Values:
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def weights(rows: int = 1024, columns: int = 8192, row_spread: float = 0.35) -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    scales = (0.02 * np.exp(row_spread * rng.standard_normal((rows, 1)))).astype(np.float32)
    return rng.standard_normal((rows, columns), dtype=np.float32) * scales


def stored_weights(path: Path, most: int = 1 << 23) -> Iterator[Values]:
    """The matrices of a checkpoint, up to so many values in all."""
    shard = read_shard(path)
    with path.open("rb") as file:
        for info in shard.tensors.values():
            if info.dtype != "BF16" or len(info.shape) != 2 or info.numel < 1 << 15 or info.numel > most:
                continue
            most -= info.numel
            file.seek(info.begin)
            yield np.frombuffer(file.read(info.nbytes), "<u2").reshape(info.shape)


def data_sets() -> dict[str, list[Values]]:
    gaussian = weights()
    sets = {
        "Gaussian, one scale": [to_bf16(weights(row_spread=0.0))],
        "Gaussian, a scale a row (sd of log .35)": [to_bf16(gaussian)],
        "Gaussian, a scale a row (sd of log 1)": [to_bf16(weights(row_spread=1.0))],
        "INT4 group scales (amax / 7 of 32)": [
            to_bf16(np.abs(gaussian.reshape(1024, -1, 32)).max(axis=2) / np.float32(7))
        ],
    }
    for name, path in {
        "SmolLM2-135M (dequantized Q4_1)": ROOT / "models/smollm2/model.safetensors",
        "embedded GLM": ROOT / "tasks/embedded/glm_tiny/model.safetensors",
        "embedded Kimi (widened: many zeros)": ROOT / "tasks/embedded/kimi_tiny/model.safetensors",
    }.items():
        if path.exists():
            sets[name] = list(stored_weights(path))
    return sets


def ours(threads: int) -> Coder:
    def encode(values: Values) -> tuple[Any, int]:
        encoded = encode_tensor(values, threads=threads)
        return encoded, encoded.nbytes

    return Coder(
        name=f"this codec, {threads} thread{'s' * (threads > 1)}",
        encode=encode,
        decode=lambda encoded, _: decode_tensor(encoded, threads=threads),
    )


def zipnn_coder(threads: int) -> Coder | None:
    try:
        from zipnn import ZipNN
    except ImportError:
        return None
    codec = ZipNN(bytearray_dtype="bfloat16", threads=threads)

    def encode(copied: Any) -> tuple[Any, int]:
        stored = codec.compress(copied)
        return stored, len(stored)

    return Coder(
        name=f"zipnn {version('zipnn')}, {threads} thread{'s' * (threads > 1)}",
        encode=encode,
        decode=lambda stored, like: np.frombuffer(codec.decompress(stored), np.uint16).reshape(like.shape),
    )


def split(values: Values) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    rest = values & 0x807F
    return (values >> 7).astype(np.uint8), (rest | rest >> 8).astype(np.uint8)


def join(plane: NDArray[np.uint8], rest: NDArray[np.uint8]) -> Values:
    wide = rest.astype(np.uint16) * np.uint16(0x0101) & np.uint16(0x807F)
    joined: Values = plane.astype(np.uint16) << 7 | wide
    return joined


def by_blocks(
    name: str, encode: Callable[[Any], Any], decode: Callable[[Any, int], Any], size: Callable[[Any], int]
) -> Coder:
    """A coder of exponent planes, block by block; signs and mantissas as they are."""

    def encode_all(values: Values) -> tuple[Any, int]:
        flat, parts = values.reshape(-1), []
        for begin in range(0, flat.size, BLOCK):
            plane, rest = split(flat[begin : begin + BLOCK])
            parts.append((encode(plane), rest))
        return parts, sum(size(e) + rest.size for e, rest in parts)

    def decode_all(parts: Any, like: Values) -> Values:
        out, position = np.empty(like.size, np.uint16), 0
        for stored, rest in parts:
            out[position : position + rest.size] = join(decode(stored, rest.size), rest)
            position += rest.size
        return out.reshape(like.shape)

    return Coder(name=name, encode=encode_all, decode=decode_all)


def zstd_coder(name: str, parameters: zstandard.ZstdCompressionParameters) -> Coder:
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    decompressor = zstandard.ZstdDecompressor()
    return by_blocks(
        name,
        lambda plane: compressor.compress(plane.data),
        lambda stored, _: np.frombuffer(decompressor.decompress(stored), np.uint8),
        len,
    )


def fixed_width(bits: int) -> Coder:
    """Distances below a base in so many bits, the last one an escape."""
    escape = (1 << bits) - 1

    def encode(plane: NDArray[np.uint8]) -> Any:
        held = np.cumsum(np.bincount(plane[::32], minlength=256))
        held[escape:] -= held[:-escape].copy()
        base = np.uint8(np.argmax(held))
        distance = base - plane
        escaped = np.flatnonzero(distance >= escape)
        distance[escaped] = escape
        return base, [np.packbits(distance >> k & 1) for k in range(bits)], plane[escaped]

    def decode(stored: Any, count: int) -> NDArray[np.uint8]:
        base, planes, escapes = stored
        distance = np.zeros(count, np.uint8)
        for k, packed in enumerate(planes):
            distance |= np.unpackbits(packed, count=count) << k
        plane: NDArray[np.uint8] = base - distance
        plane[distance == escape] = escapes
        return plane

    return by_blocks(
        f"{bits} bits and escapes, numpy",
        encode,
        decode,
        lambda stored: 1 + sum(p.size for p in stored[1]) + stored[2].size,
    )


def candidates() -> list[Coder]:
    literals = zstandard.ZstdCompressionParameters(
        strategy=zstandard.STRATEGY_FAST, min_match=7, hash_log=6, chain_log=6, search_log=1, target_length=0,
        window_log=17, write_content_size=True,
    )  # fmt: skip
    found = [
        zstd_coder(f"zstd level {level}", zstandard.ZstdCompressionParameters.from_level(level))
        for level in (-1, 1, 3, 9)
    ]
    found += [zstd_coder("zstd, nearly no matches: Huffman", literals), fixed_width(3), fixed_width(4)]
    return found


class Stopwatch:
    """The least wall and CPU seconds of several runs."""

    def __init__(self) -> None:
        self.wall = self.cpu = float("inf")

    def __enter__(self) -> None:
        self._start = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        wall, cpu = self._start
        self.wall = min(self.wall, time.perf_counter() - wall)
        self.cpu = min(self.cpu, time.process_time() - cpu)


def measure(coder: Coder, tensors: list[Values], repeats: int) -> Speed:
    """All tensors one after another; the best of ``repeats``, each tensor for itself."""
    gigabytes = sum(v.nbytes for v in tensors) / 1e9
    mutates = coder.name.startswith("zipnn")
    stored_bytes = 0
    watches: list[tuple[Stopwatch, Stopwatch]] = []
    for values in tensors:
        encoding, decoding = Stopwatch(), Stopwatch()
        for _ in range(repeats):
            given: Any = bytearray(values.tobytes()) if mutates else values
            with encoding:
                stored, size = coder.encode(given)
            kept = bytearray(stored) if mutates else stored
            with decoding:
                decoded = coder.decode(kept, values)
            assert np.array_equal(decoded, values), coder.name
        stored_bytes += size
        watches.append((encoding, decoding))
    return Speed(
        ratio=stored_bytes / 1e9 / gigabytes,
        encode=gigabytes / sum(e.wall for e, _ in watches),
        decode=gigabytes / sum(d.wall for _, d in watches),
        encode_cpu=gigabytes / sum(e.cpu for e, _ in watches),
        decode_cpu=gigabytes / sum(d.cpu for _, d in watches),
    )


def copy_speed(tensors: list[Values], repeats: int) -> float:
    """A memory copy into a buffer that is there already, GB/s of bytes copied."""
    seconds = 0.0
    for values in tensors:
        target, watch = values.copy(), Stopwatch()
        for _ in range(repeats):
            with watch:
                np.copyto(target, values)
        seconds += watch.wall
    return sum(v.nbytes for v in tensors) / seconds / 1e9


def report(repeats: int, threads: list[int]) -> str:
    sets = data_sets()
    setting = (
        f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"numpy {np.__version__}, zstandard {zstandard.__version__}, split by {backend()}; best of {repeats}"
    )
    load = f"The machine's load was {os.getloadavg()[1]:.0f} when this began: wall figures suffer from it"
    lines = ["# Lossless BF16: ratio and speed", "", f"{setting}. {load}. `python {COMMAND}`", ""]
    head = "| | ratio | encode GB/s | decode GB/s | encode GB/CPU s | decode GB/CPU s |"
    for i, (name, tensors) in enumerate(sets.items()):
        exponents = np.concatenate([(v >> 7 & 0xFF).reshape(-1) for v in tensors])
        entropy = entropy_bits(exponents)
        lines += [f"## {name}", "", f"{sum(v.nbytes for v in tensors) / 1e6:,.1f} MB; exponents of "
                  f"{entropy:.3f} bits, (H+8)/16 = {(entropy + 8) / 16:.4f}; copy "
                  f"{copy_speed(tensors, repeats):.1f} GB/s", "", head, "|---|" + "---:|" * 5]  # fmt: skip
        coders = [c for t in threads for c in (ours(t), zipnn_coder(t)) if c is not None]
        for coder in coders + (candidates() if i < 2 else []):
            speed = measure(coder, tensors, repeats)
            figures = (speed.encode, speed.decode, speed.encode_cpu, speed.decode_cpu)
            lines.append(f"| {coder.name} | {speed.ratio:.4f} |" + "".join(f" {f:.2f} |" for f in figures))
            print(name, lines[-1], file=sys.stderr, flush=True)
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("lossless.md"))
    chosen = parser.parse_args()
    chosen.out.write_text(report(chosen.repeats, chosen.threads))


if __name__ == "__main__":
    main()

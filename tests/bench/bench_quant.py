# ruff: noqa: E402
"""FP8, INT4 and lossless weights beside a memory copy, our torch code and other packages; writes quant.md.

Run: make bench-quant, or in an environment with torch and compressed-tensors (and zipnn, without which its
rows are missing): python tests/bench/bench_quant.py [--repeats N] [--gigabytes G] [--folder DIR]
[--llm-compressor PYTHON]. llm-compressor needs versions of packages that sglang's environment cannot have.

GB/s are bytes of BF16 a second of CPU, in memory, on one thread; a copy's are bytes copied, np.copyto into a
buffer that is there already. Each round runs all sides in turn in one process, each beside a copy of the same
matrix; every figure and ratio is of the best rounds, which other work on the machine disturbs least. FP8 and
INT4 of ours go to buffers that are there already, as in a conversion, and find the scales; compressed-tensors
gets the scales, and allocates its results. Both lossless codecs allocate theirs.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_threads] = "1"  # read when numpy and torch are imported

import numpy as np
import quant_files
import torch
from quant_sides import (
    COMPILED,
    FORMATS,
    THEIRS,
    TORCH,
    Side,
    codes_of,
    compressed_tensors,
    lossless,
    ours_quantizing,
)

from equipoise.kernels import bf16_split, weight_formats

MATRICES = {
    "2048 x 7168, an expert of Kimi K2": (2048, 7168),
    "5120 x 12288, an attention output of GLM-4.6": (5120, 12288),
}
COPY = "memory copy"
LOSSLESS = "bf16-lossless"


@dataclass(frozen=True, kw_only=True)
class Timed:
    """CPU seconds of each round, and of the copies beside it."""

    encode: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    copy: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Promise:
    """``measured`` must be at least (``most``: at most) ``bound``."""

    what: str
    bound: float
    measured: float
    most: bool = False

    @property
    def kept(self) -> bool:
        return self.measured <= self.bound if self.most else self.measured >= self.bound

    def row(self) -> str:
        sign, verdict = ("<=" if self.most else ">="), ("PASS" if self.kept else "FAIL")
        return f"| {self.what} | {sign} {self.bound:g} | {self.measured:.2f} | {verdict} |"


def seconds_of(call: Callable[[Any], Any], given: Any) -> tuple[float, Any]:
    start = time.process_time()
    result = call(given)
    return time.process_time() - start, result


def weights(rows: int, columns: int) -> torch.Tensor:
    """Gaussian, with a scale for each row (standard deviation of its log .35)."""
    random = torch.Generator().manual_seed(0)
    scales = 0.02 * torch.exp(0.35 * torch.randn(rows, 1, generator=random))
    return (torch.randn(rows, columns, generator=random) * scales).to(torch.bfloat16)


def race(x: torch.Tensor, sides: list[Side], repeats: int) -> dict[str, Timed]:
    found = {side.name: Timed() for side in sides}
    source = x.view(torch.int16).numpy()
    target = source.copy()
    for _ in range(repeats):
        for side in sides:
            timed, given = found[side.name], side.prepare()
            timed.copy.append(seconds_of(lambda _: np.copyto(target, source), None)[0])
            seconds, stored = seconds_of(side.encode, given)
            timed.encode.append(seconds)
            kept = side.keep(stored)
            timed.decode.append(seconds_of(side.decode, kept)[0])
    return found


def check(name: str, x: torch.Tensor, sides: list[Side]) -> str:
    """Our two sides agree bit for bit; how many codes another package has otherwise, with the same scales."""
    (compiled, in_torch), others = sides[:2], sides[2:]
    codes, decoded = codes_of(compiled.encode(None)).clone(), compiled.decode(compiled.encode(None)).clone()
    again = in_torch.encode(None)
    assert torch.equal(codes_of(again), codes), name
    assert torch.equal(in_torch.decode(again).view(torch.int16), decoded.view(torch.int16)), name
    share = [float((codes_of(o.encode(None)) != codes).double().mean()) for o in others]
    return ", ".join(f"{s:.2%} of the bytes of {o.name} differ" for o, s in zip(others, share, strict=True))


def ratio(mine: list[float], theirs: list[float]) -> float:
    """How many times faster than ``theirs``."""
    return min(theirs) / min(mine)


def table(x: torch.Tensor, races: dict[str, dict[str, Timed]]) -> list[str]:
    gigabytes = x.nbytes / 1e9
    copies = [s for sides in races.values() for timed in sides.values() for s in timed.copy]
    lines = ["| | encode GB/s | of a copy | decode GB/s | of a copy |", "|---|" + "---:|" * 4]
    lines.append(f"| {COPY} | {gigabytes / min(copies):.1f} | | | |")
    for name, sides in races.items():
        for side, timed in sides.items():
            figures = (
                f"{gigabytes / min(seconds):.2f} | {ratio(seconds, timed.copy):.0%}"
                for seconds in (timed.encode, timed.decode)
            )
            lines.append(f"| {name}: {side} | {' | '.join(figures)} |")
    return lines


def promises(races: list[dict[str, dict[str, Timed]]]) -> list[Promise]:
    """The worst matrix of each."""

    def worst(name: str, other: str, part: str) -> float | None:
        found = []
        for race_of in races:
            sides = list(race_of[name].items())
            theirs = next((t for n, t in sides if n.startswith(other)), None)
            if theirs is not None:
                found.append(ratio(getattr(sides[0][1], part), getattr(theirs, part)))
        return min(found, default=None)

    made = []
    for name in FORMATS:
        for other, part, bound in ((THEIRS, "encode", 10.0), (TORCH, "encode", 1.0), (TORCH, "decode", 1.0)):
            if (measured := worst(name, other, part)) is not None:
                made.append(Promise(what=f"{name} {part}: times {other}", bound=bound, measured=measured))
    for name in FORMATS[:2]:
        shares = [ratio(r[name][COMPILED].encode, r[name][COMPILED].copy) for r in races]
        made.append(Promise(what=f"{name} encode: share of a copy", bound=0.4, measured=min(shares)))
    for part in ("encode", "decode"):
        if (measured := worst(LOSSLESS, "zipnn", part)) is not None:
            made.append(Promise(what=f"{LOSSLESS} {part}: times zipnn", bound=1.0, measured=measured))
    return made


def files(
    folder: Path, gigabytes: float, repeats: int, llm_compressor: Path | None
) -> tuple[list[str], list[Promise]]:
    names = (*FORMATS, LOSSLESS)
    seconds = quant_files.end_to_end(folder, names, repeats, llm_compressor)
    base = seconds["load + save"]
    lines = ["| one shard of 1.07 GB, one worker | seconds | times load + save |", "|---|---:|---:|"]
    lines.append(f"| load_file + save_file, safetensors {version('safetensors')} | {min(base):.2f} | |")
    made = []
    for name in names:
        times = 1 / ratio(seconds[name], base)
        lines.append(f"| equipoise quant convert --format {name} | {min(seconds[name]):.2f} | {times:.2f} |")
        made.append(
            Promise(what=f"convert to {name}: times load + save", bound=2.0, measured=times, most=True)
        )
    for name in [n for n in seconds if "llm-compressor" in n]:
        lines.append(f"| {name} | {min(seconds[name]):.2f} | {1 / ratio(seconds[name], base):.2f} |")
    memory = quant_files.peak_memory(folder, gigabytes=gigabytes, workers=2)
    lines += [
        "",
        f"A checkpoint of {memory.checkpoint_bytes / 1e9:.1f} GB to fp8-block with {memory.workers} workers: "
        f"{memory.seconds:.1f} s; a worker held {memory.idle / 1e6:.0f} MB before its first shard and "
        f"{memory.peak / 1e6:.0f} MB at its peak: together {memory.above_idle / 1e6:.0f} MB above idle. "
        f"The largest tensor has {quant_files.TENSOR_BYTES / 1e6:.0f} MB.",
    ]
    bound = "peak memory above idle: share of 3 x largest tensor x workers"
    made.append(Promise(what=bound, bound=1.0, measured=memory.above_idle / memory.allowed, most=True))
    return lines, made


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    known = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)
    held = {key.strip(): value.strip() for key, value in known.items()}
    flags = [f for f in held.get("flags", "").split() if f.startswith(("avx", "f16c", "fma", "gfni"))]
    return f"{held.get('model name', platform.machine())} ({' '.join(flags)})"


def report(repeats: int, gigabytes: float, folder: Path, llm_compressor: Path | None) -> str:
    torch.set_num_threads(1)
    versions = ", ".join(
        [f"Python {platform.python_version()}", f"numpy {np.__version__}", f"torch {torch.__version__}"]
    )
    load = os.getloadavg()[1]
    lines = [
        "# Quantized weights: speed and memory", "",
        f"{date.today()}, {os.cpu_count()} cores of {processor()}; {versions}; FP8 and INT4 "
        f"{weight_formats.backend()}, lossless split {bf16_split.backend()}; {repeats} rounds; "
        f"the machine's load was {load:.1f} when this began. `make bench-quant`", "",
    ]  # fmt: skip
    lines += [" ".join((__doc__ or "").split("\n\n")[2].split()), ""]
    races = []
    for described, shape in MATRICES.items():
        x, found, notes = weights(*shape), {}, []
        for name in FORMATS:
            sides = [*ours_quantizing(name, x), compressed_tensors(name, x)]
            notes.append(f"{name}, {check(name, x, sides)}")
            found[name] = race(x, sides, repeats)
            print(described, name, file=sys.stderr, flush=True)
        found[LOSSLESS] = race(x, lossless(x), repeats)
        races.append(found)
        lines += [f"## {described}: {x.nbytes / 1e6:.1f} MB", "", *table(x, found), ""]
        lines += [f"Compiled and torch give the same bytes. Others, with our scales: {'; '.join(notes)}.", ""]
    described_files, kept = files(folder, gigabytes, max(1, repeats // 3), llm_compressor)
    lines += ["## Files", "", *described_files, ""]
    lines += ["## What is promised", "", "| | | measured, the worse matrix | |", "|---|---:|---:|---|"]
    lines += [promise.row() for promise in (*promises(races), *kept)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument(
        "--gigabytes", type=float, default=20.0, help="of the checkpoint whose memory is measured"
    )
    parser.add_argument("--folder", type=Path, help="where files of 1.5 times that are made, and removed")
    parser.add_argument("--llm-compressor", type=Path, help="the Python of an environment that has it")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("quant.md"))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-quant-", dir=chosen.folder) as folder:
        text = report(chosen.repeats, chosen.gigabytes, Path(folder), chosen.llm_compressor)
    chosen.out.write_text(text)


if __name__ == "__main__":
    main()

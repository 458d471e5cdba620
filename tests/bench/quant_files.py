"""Conversions of whole checkpoints for `bench_quant`: time beside reading and writing a file, and memory."""

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

HIDDEN = 8192
TENSOR_BYTES = 2 * HIDDEN * HIDDEN
COMMAND = "from equipoise.evals.cli import main; main()"
LOAD_AND_SAVE = """
import sys, time, torch
from safetensors.torch import load_file, save_file
torch.set_num_threads(1)
start = time.perf_counter()
save_file(load_file(sys.argv[1]), sys.argv[2])
print(time.perf_counter() - start)
"""

LLM_COMPRESSOR = """
import importlib.metadata, sys, time, torch
from llmcompressor import model_free_ptq
torch.set_num_threads(1)
start = time.perf_counter()
model_free_ptq(sys.argv[1], sys.argv[2], scheme=sys.argv[3], max_workers=1, device="cpu")
print(f"\\n{importlib.metadata.version('llmcompressor')} {time.perf_counter() - start}")
"""
ITS_SCHEMES = {"fp8-block": "FP8_BLOCK", "fp8-channel": "FP8_DYNAMIC"}


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Of a conversion: the largest worker's resident bytes before its first job, and at its peak."""

    checkpoint_bytes: int
    workers: int
    seconds: float
    idle: int
    peak: int

    @property
    def above_idle(self) -> int:
        return self.workers * (self.peak - self.idle)

    @property
    def allowed(self) -> int:
        return 3 * TENSOR_BYTES * self.workers


def make_checkpoint(folder: Path, *, shards: int, tensors: int) -> int:
    """A dense model of Gaussian matrices of 134 MB; one matrix serves all. Returns the bytes."""
    folder.mkdir()
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": shards * tensors,
        "hidden_size": HIDDEN, "vocab_size": 16, "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    x = torch.randn(HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(0)) * 0.02
    data = memoryview(x.to(torch.bfloat16).view(torch.uint8).numpy()).cast("B")
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        names = [f"model.layers.{shard * tensors + i}.mlp.down_proj.weight" for i in range(tensors)]
        header = {
            name: {
                "dtype": "BF16",
                "shape": [HIDDEN, HIDDEN],
                "data_offsets": [i * len(data), (i + 1) * len(data)],
            }
            for i, name in enumerate(names)
        }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / file).open("wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for _ in names:
                f.write(data)
        weight_map |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return shards * tensors * len(data)


@contextmanager
def _removed(path: Path) -> Iterator[Path]:
    try:
        yield path
    finally:
        for made in (path, path.with_name(path.name + ".partial")):
            if made.is_dir():
                shutil.rmtree(made)
            else:
                made.unlink(missing_ok=True)


def _run(code: str, *arguments: object, python: str | Path = sys.executable) -> str:
    done = subprocess.run(
        [python, "-P", "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return done.stdout


def convert(source: Path, target: Path, format_name: str, workers: int) -> dict[str, Any]:
    """What ``equipoise quant convert --json`` prints."""
    arguments = ("quant", "convert", source, target, "--format", format_name, "--workers", workers, "--json")
    found: dict[str, Any] = json.loads(_run(COMMAND, *arguments))
    return found


def load_and_save_seconds(source: Path, target: Path) -> float:
    """One file read and written by the safetensors package, imports not counted."""
    return float(_run(LOAD_AND_SAVE, source, target))


def end_to_end(
    folder: Path, formats: tuple[str, ...], repeats: int, llm_compressor: Path | None
) -> dict[str, list[float]]:
    """Seconds of each run with one worker on a shard of 1.07 GB; all in turn, "load + save" among them.

    ``llm_compressor`` is the Python of an environment that has it; it runs once, named with its version.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ("load + save", *formats)}
    with _removed(folder / "shard") as source:
        make_checkpoint(source, shards=1, tensors=8)
        (shard,) = source.glob("*.safetensors")
        for turn in range(repeats):
            with _removed(folder / "copy.safetensors") as target:
                seconds["load + save"].append(load_and_save_seconds(shard, target))
            for name in formats:
                with _removed(folder / "made") as target:
                    seconds[name].append(float(convert(source, target, name, 1)["seconds"]))
            for name, scheme in ITS_SCHEMES.items() if llm_compressor and turn == 0 else ():
                with _removed(folder / "made") as target:
                    printed = _run(LLM_COMPRESSOR, source, target, scheme, python=llm_compressor or "")
                version, took = printed.split()[-2:]
                seconds.setdefault(f"{name}: llm-compressor {version}", []).append(float(took))
    return seconds


def peak_memory(folder: Path, *, gigabytes: float, workers: int) -> Memory:
    """Convert a checkpoint of about so many GB, or of what the disk holds, to fp8-block."""
    usable = 0.6 * shutil.disk_usage(folder).free / 1.5  # source and result, and room for others
    shards = max(workers, int(min(gigabytes * 1e9, usable) / (8 * TENSOR_BYTES) + 0.999))
    with _removed(folder / "checkpoint") as source, _removed(folder / "made") as target:
        nbytes = make_checkpoint(source, shards=shards, tensors=8)
        found = convert(source, target, "fp8-block", workers)
    return Memory(
        checkpoint_bytes=nbytes,
        workers=workers,
        seconds=found["seconds"],
        idle=found["idle_rss_bytes"],
        peak=found["peak_rss_bytes"],
    )

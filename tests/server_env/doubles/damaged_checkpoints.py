"""Checkpoints in several shards, and ways to damage one."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

Change = Callable[[Path], None]


def fingerprint(folder: Path) -> dict[str, str]:
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir()) if p.is_file()
    }


def sharded(source: Path, folder: Path, shards: int = 3) -> Path:
    """The same model in several shards with an index."""
    folder.mkdir()
    tensors = list(load_file(source / "model.safetensors").items())
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        some = dict(tensors[i::shards])
        save_file(some, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(some, file)
    index = {"metadata": {"total_size": sum(t.nbytes for _, t in tensors)}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in ("config.json", "tokenizer.json", "chat_template.jinja"):
        shutil.copy(source / name, folder)
    return folder


def damaged(source: Path, folder: Path, change: Change) -> Path:
    shutil.copytree(source, folder)
    change(folder)
    return folder


def cut_shard(folder: Path) -> None:
    path = folder / "model-00002-of-00003.safetensors"
    os.truncate(path, path.stat().st_size - 1000)


def garble_header(folder: Path) -> None:
    with (folder / "model-00001-of-00003.safetensors").open("r+b") as f:
        f.seek(20)
        f.write(b"\xff" * 16)


def escape(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["lm_head.weight"] = "../secret.safetensors"
    path.write_text(json.dumps(index))


def retype(folder: Path) -> None:
    path = folder / "model-00001-of-00003.safetensors"
    tensors = load_file(path)
    name = next(n for n in tensors if n.endswith("up_proj.weight"))
    save_file(tensors | {name: tensors[name].to(torch.int16)}, path)


def edit_config(**changes: object) -> Change:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def only_pickles(folder: Path) -> None:
    for path in [*folder.glob("*.safetensors"), folder / "model.safetensors.index.json"]:
        path.unlink()
    torch.save({"a": torch.ones(2)}, folder / "pytorch_model.bin")


def unindexed(folder: Path) -> None:
    save_file({"model.mystery.weight": torch.ones(4)}, folder / "extra.safetensors")

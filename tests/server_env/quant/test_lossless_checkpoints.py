"""Lossless checkpoints: converted, verified and restored by the command line; refused by loaders."""

import json
import shutil
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from equipoise.evals.cli import app
from equipoise.quant.lossless import (
    LosslessFile,
    decode_tensor,
    encode_tensor,
    verify_lossless,
    write_lossless,
)

INDEX = "model.safetensors.index.json"
EMBEDDED = Path(str(files("equipoise.tasks") / "embedded"))


def quant(*arguments):
    return CliRunner().invoke(app.main, ["quant", *map(str, arguments), "--workers", "1"])


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.int16), b.view(torch.int16))


@pytest.fixture(scope="module", params=["kimi_tiny", "glm_tiny"])
def converted(request, tmp_path_factory):
    """An embedded model as two shards with an index, and its lossless conversion."""
    source = tmp_path_factory.mktemp("source") / request.param
    shutil.copytree(EMBEDDED / request.param, source)
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    names, weight_map = sorted(tensors), {}
    for i, part in enumerate((names[::2], names[1::2]), 1):
        shard = f"model-{i:05d}-of-00002.safetensors"
        save_file({n: tensors[n] for n in part}, source / shard, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, shard)
    index = {"metadata": {}, "weight_map": weight_map}
    (source / INDEX).write_text(json.dumps(index))
    target = source.parent / "lossless"
    result = quant("convert", source, target, "--format", "bf16-lossless")
    assert result.exit_code == 0, result.output
    return source, target, tensors


def test_convert_verify_dequantize_verify(converted, tmp_path):
    source, target, _ = converted
    assert quant("verify", source, target).exit_code == 0
    restored = tmp_path / "restored"
    assert quant("dequantize", target, restored).exit_code == 0
    assert quant("verify", target, restored).exit_code == 0
    for shard in sorted(p.name for p in source.glob("*.safetensors")):
        assert (restored / shard).read_bytes() == (source / shard).read_bytes()
        assert (target / shard).stat().st_size < 0.75 * (source / shard).stat().st_size
    for name, key in (("config.json", None), (INDEX, "weight_map")):
        before, after = (json.loads((folder / name).read_text()) for folder in (source, restored))
        assert after == before if key is None else after[key] == before[key]


def test_one_flipped_bit_fails_verification_by_name(converted, tmp_path):
    source, target, _ = converted
    damaged = tmp_path / "damaged"
    shutil.copytree(target, damaged)
    shard = min(damaged.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-2000] ^= 1
    shard.write_bytes(data)
    result = quant("verify", source, damaged)
    assert result.exit_code != 0
    assert shard.name in result.output and "block" in result.output


def test_tensors_decode_to_the_bits_that_torch_reads(converted):
    _, target, tensors = converted
    for shard in target.glob("*.safetensors"):
        with LosslessFile.open(shard) as file:
            for name, tensor in file.tensors.items():
                decoded = torch.from_numpy(file.decode(name))
                if tensor.dtype == "BF16":
                    assert same_bits(decoded.view(torch.bfloat16), tensors[name])
                else:
                    assert torch.equal(decoded, tensors[name])


def test_the_safetensors_library_reads_the_container_as_bytes(converted):
    _, target, tensors = converted
    held = {k: v for shard in target.glob("*.safetensors") for k, v in load_file(shard).items()}
    assert held.keys() == tensors.keys()
    encoded = [n for n, t in held.items() if t.dtype == torch.uint8]
    assert encoded and all(tensors[n].dtype == torch.bfloat16 for n in encoded)


def test_loaders_that_do_not_know_the_container_refuse_it(converted):
    """Never random weights in place of what they cannot read."""
    from sglang.srt.configs.model_config import ModelConfig
    from transformers import AutoModelForCausalLM

    _, target, _ = converted
    with pytest.raises(RuntimeError, match=r"conversion of the weights|size|shape"):
        AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="bf16-lossless"):
        ModelConfig(str(target))


def test_values_a_cast_would_change_survive_torch_and_back(tmp_path):
    patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    assert int(patterns.isnan().sum()) == 254
    bits = patterns.view(torch.uint16).numpy()
    decoded = torch.from_numpy(decode_tensor(encode_tensor(bits))).view(torch.bfloat16)
    assert same_bits(decoded, patterns)
    save_file({"w": patterns}, tmp_path / "a.safetensors")
    write_lossless(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    special = verify_lossless(tmp_path / "b.safetensors", tmp_path / "a.safetensors").special
    assert (special.nan, special.infinite, special.subnormal, special.negative_zero) == (254, 2, 254, 1)
    assert np.array_equal(LosslessFile.open(tmp_path / "b.safetensors").decode("w"), bits)

"""Lossless files: the original comes back byte for byte, in bounded memory; damage is named."""

import json
import os
import re
import resource
import struct
import tracemalloc
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.checkpoint import read_shard
from equipoise.quant.lossless import LosslessFile, verify_lossless, write_lossless
from equipoise.quant.lossless.config import lossless_config, original_config
from equipoise.quant.lossless.container import RAW_BLOCK_BYTES

EMBEDDED = Path(str(files("equipoise.tasks") / "embedded"))


def write_safetensors(path, tensors, *, metadata=None, pad=0):
    """{name: (dtype, shape, bytes)} in this order."""
    header, position = ({"__metadata__": metadata} if metadata else {}), 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + len(data)]}
        position += len(data)
    text = json.dumps(header, ensure_ascii=False).encode() + b" " * pad
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))
    return path


def bf16(*shape, seed=0):
    bits = (np.random.default_rng(seed).standard_normal(shape) * 0.02).astype(np.float32).view(np.uint32)
    return (bits >> 16).astype(np.uint16)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Every dtype of the format, odd sizes, empty tensors and scalars, names that need escapes."""
    rng = np.random.default_rng(3)
    specials = np.arange(1 << 16, dtype=np.uint16)
    tensors = {
        "w": ("BF16", [301, 77], bf16(301, 77).tobytes()),
        'all "patterns"\n': ("BF16", [256, 256], specials.tobytes()),
        "norm": ("BF16", [7], bf16(7).tobytes()),
        "scalar": ("BF16", [], bf16().tobytes()),
        "none": ("BF16", [0, 9000], b""),
        "nibbles": ("F4", [3, 10], rng.bytes(15)),
        "Gewicht ü": ("F32", [5, 5], rng.bytes(100)),
        "large.int32": ("I32", [2, 2_000_000], rng.bytes(16_000_000)),
        "e4m3": ("F8_E4M3", [33, 3], rng.bytes(99)),
        "after odd bytes": ("F64", [1], rng.bytes(8)),
        "last": ("BF16", [4097], bf16(4097, seed=1).tobytes()),
    }
    folder = tmp_path_factory.mktemp("mixed")
    source = write_safetensors(folder / "a.safetensors", tensors, metadata={"format": "pt", "x": "ü"}, pad=5)
    written = write_lossless(source, folder / "b.safetensors", threads=2)
    return source, folder / "b.safetensors", tensors, written


def test_the_original_file_comes_back_byte_for_byte(mixed, tmp_path):
    source, lossless, _, written = mixed
    with LosslessFile.open(lossless) as file:
        file.restore(tmp_path / "again", threads=2)
    assert (tmp_path / "again").read_bytes() == source.read_bytes()
    assert written.original_bytes == source.stat().st_size
    assert written.stored_bytes == lossless.stat().st_size
    assert [p.name for p in tmp_path.iterdir()] == ["again"]


@pytest.mark.parametrize("model", ["kimi_tiny", "glm_tiny"])
def test_embedded_models_come_back_byte_for_byte(model, tmp_path):
    source = EMBEDDED / model / "model.safetensors"
    before = source.read_bytes()
    write_lossless(source, tmp_path / "lossless")
    with LosslessFile.open(tmp_path / "lossless") as file:
        file.restore(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == before == source.read_bytes()
    assert (tmp_path / "lossless").stat().st_size < 0.7 * len(before)
    verified = verify_lossless(tmp_path / "lossless", source)
    assert verified.nbytes == len(before) and verified.tensors == len(read_shard(source).tensors)


def test_the_container_is_a_safetensors_file_whose_encoded_tensors_no_loader_can_mistake(mixed):
    _, lossless, tensors, _ = mixed
    shard = read_shard(lossless)  # offsets, sizes and dtypes are checked by it
    assert list(shard.tensors) == list(tensors)
    stored = {name: (info.dtype, list(info.shape)) for name, info in shard.tensors.items()}
    for name in ("w", 'all "patterns"\n', "last"):
        assert stored[name][0] == "U8" and len(stored[name][1]) == 1
    for name in set(tensors) - {"w", 'all "patterns"\n', "last"}:
        assert stored[name] == tensors[name][:2]
    assert all(info.nbytes % 8 == 0 for info in shard.tensors.values() if info.dtype == "U8")
    assert "format" not in shard.metadata  # loaders that ask for "pt" stop here


def test_verify_counts_the_values_a_cast_would_lose(mixed):
    source, lossless, _, _ = mixed
    special = verify_lossless(lossless, source, threads=2).special
    # Of all 65,536 patterns; random weights have none of them.
    assert (special.nan, special.infinite, special.subnormal, special.negative_zero) == (254, 2, 254, 1)


def test_verify_finds_one_altered_bit_of_the_original(mixed, tmp_path):
    source, lossless, _, _ = mixed
    data = bytearray(source.read_bytes())
    at = read_shard(source).tensors["w"].begin + 4321
    data[at] ^= 1
    (tmp_path / "altered").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"tensor w differs from .*altered at its byte 4,321"):
        verify_lossless(lossless, tmp_path / "altered")


def test_verify_refuses_another_original(mixed, tmp_path):
    other = write_safetensors(tmp_path / "other", {"w": ("BF16", [2], b"abcd")})
    with pytest.raises(CheckpointError, match="was not made from"):
        verify_lossless(mixed[1], other)


NUMPY = {"BF16": "<u2", "F32": "<f4", "F64": "<f8", "I32": "<i4", "F8_E4M3": "u1"}


def test_tensors_and_rows_decode_without_the_rest(mixed):
    _, lossless, tensors, _ = mixed
    with LosslessFile.open(lossless) as file:
        assert {n: (t.dtype, list(t.shape)) for n, t in file.tensors.items()} == {
            n: t[:2] for n, t in tensors.items()
        }
        for name, (dtype, shape, data) in tensors.items():
            if dtype == "F4":
                assert file.decode(name).tobytes() == data
                continue
            expected = np.frombuffer(data, NUMPY[dtype]).reshape(shape)
            decoded = file.decode(name, threads=2)
            assert decoded.shape == expected.shape and decoded.tobytes() == data
            if shape:
                first, last = shape[0] // 3, shape[0]
                assert file.decode(name, rows=(first, last)).tobytes() == expected[first:last].tobytes()
        with pytest.raises(UsageError, match="has no tensor nothing"):
            file.decode("nothing")
        with pytest.raises(UsageError, match="no such rows"):
            file.decode("w", rows=(300, 302))


def test_rows_of_less_than_a_byte_are_refused_not_rounded(tmp_path):
    source = write_safetensors(tmp_path / "a", {"t": ("F4", [2, 3], b"abc")})
    write_lossless(source, tmp_path / "b")
    with LosslessFile.open(tmp_path / "b") as file, pytest.raises(UsageError, match="whole bytes"):
        file.decode("t", rows=(0, 1))


def test_a_file_without_tensors_comes_back(tmp_path):
    source = write_safetensors(tmp_path / "a", {})
    write_lossless(source, tmp_path / "b")
    with LosslessFile.open(tmp_path / "b") as file:
        file.restore(tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == source.read_bytes()


def damaged(lossless, tmp_path, name, offset):
    """A copy with one bit flipped in the stored bytes of a tensor."""
    data = bytearray(lossless.read_bytes())
    data[read_shard(lossless).tensors[name].begin + offset] ^= 16
    (tmp_path / "damaged.safetensors").write_bytes(data)
    return tmp_path / "damaged.safetensors"


@pytest.mark.parametrize(
    ("name", "offset", "where"),
    [
        ("w", 30, "tensor w: "),
        ("w", 9000, "tensor w, block 0 of 1: "),
        ("large.int32", RAW_BLOCK_BYTES + 1, "tensor large.int32, block 1 of 4: "),
        ("norm", 0, "tensor norm, block 0 of 1: "),
    ],
)
def test_damage_is_named_by_file_tensor_and_block(mixed, tmp_path, name, offset, where):
    path = damaged(mixed[1], tmp_path, name, offset)
    with LosslessFile.open(path) as file:
        with pytest.raises(CheckpointError, match=re.escape(f"{path}: {where}")):
            file.decode(name)
        with pytest.raises(CheckpointError, match=re.escape(f"{path}: {where}")):
            file.restore(tmp_path / "again")
        assert file.decode("last").tobytes() == mixed[2]["last"][2]
    assert [p.name for p in tmp_path.iterdir()] == [path.name]  # nothing that looks whole


def rewritten(lossless, path, change):
    """The lossless file with its header changed."""
    data = lossless.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    return path


def _set(key, value):
    return lambda header: header["__metadata__"].__setitem__(key, value)


def _swap_shape(header):
    # Two tensors of one length change places: the original's header must not be taken at its word.
    original = header["__metadata__"]["equipoise_lossless_header"]
    header["__metadata__"]["equipoise_lossless_header"] = original.replace("[301, 77]", "[77, 301]")


HOSTILE = {
    "a newer version": (_set("equipoise_lossless", "2"), "version '2', and this program reads 1"),
    "an older version": (_set("equipoise_lossless", "0"), "version '0'"),
    "no header of the original": (_set("equipoise_lossless_header", ""), "no safetensors header"),
    "an altered header of the original": (_swap_shape, "checksum of the original's header"),
    "no checksums": (_set("equipoise_lossless_checksums", "{}"), "checksum of the original's header"),
    "checksums that are none": (_set("equipoise_lossless_checksums", '{"w": "xyz"}'), "not readable"),
    "checksums that are a list": (_set("equipoise_lossless_checksums", "[]"), "not readable"),
    "a nesting bomb": (_set("equipoise_lossless_checksums", "[" * 100_000), "not readable"),
    "nothing of ours": (lambda h: h["__metadata__"].pop("equipoise_lossless"), "is not a lossless file"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_headers_that_contradict_themselves_are_refused(mixed, tmp_path, name):
    change, message = HOSTILE[name]
    path = rewritten(mixed[1], tmp_path / "hostile", change)
    with pytest.raises(CheckpointError, match=message) as raised:
        LosslessFile.open(path)
    assert str(path) in str(raised.value)


def test_a_tensor_encoded_with_another_shape_is_refused(tmp_path):
    """Both headers are whole, but not of one file."""
    for name, shape in (("a", [64, 64]), ("b", [32, 128])):
        source = write_safetensors(tmp_path / name, {"w": ("BF16", shape, bf16(64, 64).tobytes())})
        write_lossless(source, tmp_path / f"{name}.lossless")
    other = read_shard(tmp_path / "b.lossless").metadata
    path = rewritten(
        tmp_path / "a.lossless", tmp_path / "mixed", lambda h: h.__setitem__("__metadata__", dict(other))
    )
    with (
        LosslessFile.open(path) as file,
        pytest.raises(CheckpointError, match=r"shape \[64, 64\], but .* says \[32, 128\]"),
    ):
        file.decode("w")


@pytest.mark.parametrize("keep", [0, 7, 100, 5000, -1])
def test_truncated_files_are_refused(mixed, tmp_path, keep):
    path = tmp_path / "short"
    path.write_bytes(mixed[1].read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        LosslessFile.open(path)


def test_a_file_that_shrinks_while_it_is_open_is_an_error(mixed, tmp_path):
    path = tmp_path / "shrinks"
    path.write_bytes(mixed[1].read_bytes())
    with LosslessFile.open(path) as file:
        os.truncate(path, 10_000)
        with pytest.raises(CheckpointError, match="truncated while it was read"):
            file.decode("last")


def test_nothing_is_overwritten(mixed, tmp_path):
    (tmp_path / "there").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("there", "link"):
        with pytest.raises(UsageError, match="exists"):
            write_lossless(mixed[0], tmp_path / name)
        with LosslessFile.open(mixed[1]) as file, pytest.raises(UsageError, match="exists"):
            file.restore(tmp_path / name)
    assert (tmp_path / "there").read_text() == "mine"


def test_a_lossless_file_is_not_encoded_again(mixed, tmp_path):
    with pytest.raises(UsageError, match="lossless file already"):
        write_lossless(mixed[1], tmp_path / "twice")


def test_a_damaged_source_leaves_nothing_behind(mixed, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(mixed[0].read_bytes()[:-1])
    with pytest.raises(CheckpointError):
        write_lossless(source, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_a_disk_full_in_mid_write_leaves_nothing_behind(mixed, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_000, hard))  # as a full disk, but for the error's name
    try:
        with pytest.raises(CheckpointError, match=r"cannot write .*out: File too large"):
            write_lossless(mixed[0], tmp_path / "out")
        with LosslessFile.open(mixed[1]) as file, pytest.raises(CheckpointError, match="cannot write"):
            file.restore(tmp_path / "again")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_memory_does_not_grow_with_the_tensor(tmp_path):
    tensor = np.tile(bf16(1 << 20), 48)  # 96 MiB
    source = write_safetensors(tmp_path / "a", {"w": ("BF16", [4096, 12288], tensor.tobytes())})
    del tensor
    tracemalloc.start()
    try:
        write_lossless(source, tmp_path / "b", threads=2)
        _, encode_peak = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        with LosslessFile.open(tmp_path / "b") as file:
            file.restore(tmp_path / "c")
        _, decode_peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert encode_peak < 16 << 20
    assert decode_peak < 40 << 20  # one chunk of 16 blocks, and the one before it


@pytest.mark.parametrize("config", [{"a": 1}, {"a": 1, "quantization_config": {"quant_method": "x"}}])
def test_config_names_a_method_that_servers_refuse_and_comes_back(config):
    changed = lossless_config(config)
    assert changed["quantization_config"]["quant_method"] == "bf16-lossless"
    assert original_config(changed) == config
    with pytest.raises(CheckpointError, match="not a lossless checkpoint"):
        original_config(config)
    changed["quantization_config"]["version"] = 9
    with pytest.raises(CheckpointError, match="version 9"):
        original_config(changed)

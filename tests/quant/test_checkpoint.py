"""Headers of safetensors checkpoints: read whole; refused when damaged, hostile or contradictory."""

import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import pytest

from equipoise.evals.errors import CheckpointError
from equipoise.quant.checkpoint import INDEX_NAME, MAX_HEADER_BYTES, Checkpoint, read_shard


def shard_bytes(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


TWO = {"b": entry("F32", [2], 8, 16), "a": entry("BF16", [2, 2], 0, 8), "__metadata__": {"format": "pt"}}


def write(
    folder: Path, name: str = "model.safetensors", header: object = TWO, data: bytes = bytes(16)
) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / name).write_bytes(shard_bytes(header, data))
    return folder


def write_index(folder: Path, weight_map: dict[str, str], **metadata: object) -> None:
    (folder / INDEX_NAME).write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))


def test_a_single_file_is_read_with_offsets_in_the_file(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(write(tmp_path / "m"))
    a, b = checkpoint.tensors["a"], checkpoint.tensors["b"]
    assert (a.dtype, a.shape, a.shard, a.nbytes, a.numel) == ("BF16", (2, 2), "model.safetensors", 8, 4)
    assert a.end == b.begin and b.end == (tmp_path / "m" / "model.safetensors").stat().st_size
    assert list(checkpoint.shards["model.safetensors"].tensors) == ["a", "b"]  # in the order of their bytes
    assert (checkpoint.weight_bytes, checkpoint.largest_tensor_bytes) == (16, 8)
    assert checkpoint.config == {"model_type": "llama"} and not checkpoint.has_index


def test_an_index_names_the_shards_and_what_it_does_not_list_is_told(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", "x.safetensors")
    write(folder, "stray.safetensors", {"c": entry("U8", [3], 0, 3)}, b"abc")
    write_index(folder, {"a": "x.safetensors"}, total_size=8)
    checkpoint = Checkpoint.open(folder)
    assert list(checkpoint.tensors) == ["a"] and checkpoint.has_index
    assert checkpoint.unindexed == (("x.safetensors", "b"),)
    assert checkpoint.unlisted_files == ("stray.safetensors",)
    assert checkpoint.index_metadata == {"total_size": 8}


def test_an_empty_tensor_and_a_scalar_are_fine(tmp_path: Path) -> None:
    header = {"none": entry("F16", [0, 7], 0, 0), "one": entry("F64", [], 0, 8)}
    checkpoint = Checkpoint.open(write(tmp_path / "m", header=header, data=bytes(8)))
    assert (checkpoint.tensors["none"].nbytes, checkpoint.tensors["one"].numel) == (0, 1)


BAD_HEADERS: dict[str, tuple[object, bytes, str]] = {
    "truncated": (TWO, bytes(15), "describes"),
    "too long": (TWO, bytes(17), "describes"),
    "not JSON": (b"{nonsense", b"", "JSON"),
    "no object": (b"[]", b"", "no safetensors header"),
    "deep": (b'{"a":' + b"[" * 100_000, b"", "JSON"),
    "huge number": (b'{"a":' + b"9" * 5000 + b"}", b"", "JSON"),
    "not UTF-8": (b'{"\xff\xfe": 1}', b"", "JSON"),
    "duplicate": (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b"x",
        "twice",
    ),
    "overlap": ({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, bytes(6), "hole or overlap"),
    "hole": ({"a": entry("U8", [4], 0, 4), "b": entry("U8", [2], 6, 8)}, bytes(8), "hole or overlap"),
    "does not begin at 0": ({"a": entry("U8", [4], 4, 8)}, bytes(8), "hole or overlap"),
    "unknown dtype": ({"a": entry("F17", [1], 0, 2)}, bytes(2), "unknown dtype"),
    "dtype no string": (
        {"a": {"dtype": ["U8"], "shape": [1], "data_offsets": [0, 1]}},
        b"x",
        "unknown dtype",
    ),
    "wrong size": ({"a": entry("BF16", [3], 0, 5)}, bytes(5), "needs 6 bytes"),
    "negative": ({"a": entry("U8", [-1], 0, 1)}, bytes(1), "shape"),
    "boolean shape": ({"a": {"dtype": "U8", "shape": [True], "data_offsets": [0, 1]}}, b"x", "shape"),
    "astronomic": ({"a": entry("F32", [2**62, 2**62, 2**62], 0, 8)}, bytes(8), "needs"),
    "backwards": ({"a": entry("U8", [0], 4, 0)}, bytes(4), "span -4"),
    "rank": ({"a": entry("U8", [1] * 40, 0, 1)}, bytes(1), "shape"),
    "entry malformed": ({"a": {"dtype": "U8"}}, b"", "malformed"),
    "entry no object": ({"a": 5}, b"", "malformed"),
    "metadata": ({"__metadata__": {"x": 1}}, b"", "__metadata__"),
    "odd nibbles": ({"a": entry("F4", [3], 0, 2)}, bytes(2), "needs 1 bytes"),
}


@pytest.mark.parametrize("case", BAD_HEADERS)
def test_a_damaged_header_is_refused_by_file_and_reason(tmp_path: Path, case: str) -> None:
    header, data, reason = BAD_HEADERS[case]
    with pytest.raises(CheckpointError, match=reason) as e:
        Checkpoint.open(write(tmp_path / "m", header=header, data=data))
    assert "model.safetensors" in str(e.value)


@pytest.mark.parametrize("content", [b"", b"\x00" * 7, struct.pack("<Q", 10), struct.pack("<Q", 10) + b"{}"])
def test_a_file_cut_in_its_header_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        Checkpoint.open(folder)


def test_a_header_that_claims_gigabytes_is_refused_unread(tmp_path: Path) -> None:
    folder = write(tmp_path / "m")
    with (folder / "model.safetensors").open("wb") as f:
        f.write(struct.pack("<Q", MAX_HEADER_BYTES + 1))
        f.truncate(MAX_HEADER_BYTES * 3)  # sparse
    with pytest.raises(CheckpointError, match="limit"):
        Checkpoint.open(folder)


def test_a_pickle_is_refused_whatever_it_is_called(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin.*can run code"):
        Checkpoint.open(folder)
    (folder / "model.safetensors").write_bytes(pickle.dumps({"a": list(range(1000))}))
    with pytest.raises(CheckpointError, match="pickle"):
        Checkpoint.open(folder)
    with zipfile.ZipFile(folder / "model.safetensors", "w") as z:
        z.writestr("archive/data.pkl", b"x" * 100)
    with pytest.raises(CheckpointError, match="pickle or zip"):
        Checkpoint.open(folder)


@pytest.mark.parametrize(
    "file",
    [
        "../other/model.safetensors",
        "/etc/passwd",
        "..",
        "",
        "sub/model.safetensors",
        "a\\b.safetensors",
        "a\0.safetensors",
        5,
    ],
)
def test_an_index_cannot_name_files_of_other_folders(tmp_path: Path, file: str) -> None:
    write(tmp_path / "other")
    folder = write(tmp_path / "m")
    write_index(folder, {"a": file})
    with pytest.raises(CheckpointError, match="not a plain file name"):
        Checkpoint.open(folder)


def test_an_index_to_a_pickle_a_missing_shard_or_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "m")
    write_index(folder, {"a": "pytorch_model.bin"})
    with pytest.raises(CheckpointError, match=r"only \.safetensors is read"):
        Checkpoint.open(folder)
    write_index(folder, {"a": "model-2.safetensors"})
    with pytest.raises(CheckpointError, match=r"model-2\.safetensors, which is missing"):
        Checkpoint.open(folder)
    write_index(folder, {"a": "model.safetensors", "absent": "model.safetensors"})
    with pytest.raises(CheckpointError, match="absent should be in"):
        Checkpoint.open(folder)
    for text in (
        "{}",
        '{"weight_map": []}',
        '{"weight_map": {}}',
        "[",
        '{"weight_map": {"a": "b"}, "metadata": 1}',
    ):
        (folder / INDEX_NAME).write_text(text)
        with pytest.raises(CheckpointError, match=INDEX_NAME):
            Checkpoint.open(folder)


def test_without_an_index_a_missing_number_or_a_tensor_twice_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", "model-00001-of-00003.safetensors", {"a": entry("U8", [1], 0, 1)}, b"x")
    write(folder, "model-00003-of-00003.safetensors", {"b": entry("U8", [1], 0, 1)}, b"x")
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.safetensors is missing"):
        Checkpoint.open(folder)
    write(folder, "model-00002-of-00003.safetensors", {"b": entry("U8", [1], 0, 1)}, b"y")
    with pytest.raises(CheckpointError, match="tensor b is in"):
        Checkpoint.open(folder)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a folder"):
        Checkpoint.open(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Checkpoint.open(tmp_path / "empty")
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors"):
        Checkpoint.open(tmp_path / "empty", require_config=False)
    folder = write(tmp_path / "m")
    (folder / "config.json").write_text("{" + " " * 17_000_000 + "}")
    with pytest.raises(CheckpointError, match="refused"):
        Checkpoint.open(folder)


def test_a_device_or_pipe_is_no_shard(tmp_path: Path) -> None:
    (tmp_path / "null.safetensors").symlink_to("/dev/null")
    with pytest.raises(CheckpointError, match="not a regular file"):
        read_shard(tmp_path / "null.safetensors")
    folder = write(tmp_path / "m")
    link = tmp_path / "m" / "link"
    link.symlink_to(folder / "model.safetensors")  # as the hub's cache does it
    assert read_shard(link).size == os.path.getsize(folder / "model.safetensors")

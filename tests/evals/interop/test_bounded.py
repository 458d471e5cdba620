"""Files that are too large or made to be."""

import json
import zipfile
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from equipoise.evals.errors import UsageError
from equipoise.evals.interop import bounded
from equipoise.evals.interop.formats import detect_format, split_source
from equipoise.evals.interop.inspect_log import read_inspect
from equipoise.evals.interop.result_set import ReadOptions

HEADER = {"version": 2, "status": "success", "eval": {"task": "t", "model": "m"}}


def sample(**more: object) -> str:
    return json.dumps({"id": "a", "epoch": 1, "input": "q", "target": "1"} | more)


def test_a_line_beyond_the_limit_is_refused_without_reading_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "MAX_LINE_BYTES", 1 << 20)
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"item": "' + b"x" * (3 << 20) + b'", "score": 1}\n')
    with pytest.raises(UsageError, match=r"t\.jsonl:1: a line of more than 1 MiB"):
        list(bounded.iter_lines(path))


def test_too_many_lines_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "MAX_ROWS", 10)
    path = tmp_path / "t.csv"
    path.write_text("a\n" * 11)
    with pytest.raises(UsageError, match="more than 10 lines"):
        list(bounded.iter_lines(path))


def test_a_document_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "MAX_JSON_BYTES", 100)
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"a": "x" * 200}))
    with pytest.raises(UsageError, match="is larger than"):
        bounded.read_json(path)


@pytest.mark.parametrize("method", ["deflate", "zstd"])
def test_a_zip_bomb_is_refused_at_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(bounded, "MAX_MEMBER_BYTES", 1 << 20)
    path = tmp_path / "bomb.eval"
    bomb = sample(pad="0" * (64 << 20)).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps(HEADER))
        if method == "deflate":
            archive.writestr("samples/a_epoch_1.json", bomb)
        else:
            store_zstandard(archive, "samples/a_epoch_1.json", bomb)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(UsageError, match=r"a_epoch_1\.json unpacks to more than 1 MiB"):
        read_inspect(path, ReadOptions())


def store_zstandard(archive: zipfile.ZipFile, name: str, data: bytes, frames: int = 1) -> None:
    """A member packed as inspect packs it, in several frames if asked; the directory is edited by hand."""
    step = -(-len(data) // frames)
    packed = b"".join(
        pa.compress(data[i : i + step], codec="zstd", asbytes=True) for i in range(0, len(data), step)
    )
    info = zipfile.ZipInfo(name)
    archive.writestr(info, packed)  # stored
    info.compress_type, info.CRC, info.file_size = 93, zlib.crc32(data), len(data)


def test_a_member_of_several_zstandard_frames_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "frames.eval"
    scored = sample(
        output={"choices": [{"message": {}, "stop_reason": "stop"}], "completion": "1" * 100_000},
        scores={"match": {"value": "C"}},
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps(HEADER))
        store_zstandard(archive, "samples/a_epoch_1.json", scored.encode(), frames=5)
    (item,) = read_inspect(path, ReadOptions()).tasks["t"].items
    assert item.score == 1.0


def test_a_log_without_samples_or_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.eval"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", json.dumps(HEADER))
    with pytest.raises(UsageError, match="no samples"):
        read_inspect(path, ReadOptions())
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.json", "{}")
    with pytest.raises(UsageError, match=r"neither header\.json nor"):
        read_inspect(path, ReadOptions())


def test_what_is_not_there_or_not_known_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or directory"):
        split_source(str(tmp_path / "none:x"))
    with pytest.raises(UsageError, match=r"no results found; looked for .*samples_\*\.jsonl"):
        detect_format(tmp_path)
    other = tmp_path / "notes.txt"
    other.write_text("hello")
    with pytest.raises(UsageError, match="--input-format lm-eval, sgl-eval, inspect, table or run"):
        detect_format(other)


def test_a_colon_in_a_file_name_is_not_a_selector(tmp_path: Path) -> None:
    path = tmp_path / "a:b.csv"
    path.write_text("item,score\n")
    assert split_source(str(path)) == (path, "")
    assert split_source(f"{path}:x:y") == (path, "x:y")

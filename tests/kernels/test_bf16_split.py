"""The compiled split of BF16 values gives the bytes of its numpy reference, and is optional."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.kernels import bf16_split
from equipoise.kernels.bf16_split import (
    Split,
    backend,
    count_escapes,
    count_escapes_reference,
    join,
    join_reference,
    split,
    split_reference,
)
from equipoise.kernels.cpu import compiled

ALL_PATTERNS = np.arange(1 << 16, dtype=np.uint16)
HAS_COMPILER = bool(os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc"))


def spelled_out(values, bases):
    """The definition, one value at a time."""
    columns, half = values.size // len(bases), (values.size + 1) // 2
    pairs, escapes, rest = [0] * half, [], []
    for i, value in enumerate(values.tolist()):
        exponent, base = value >> 7 & 0xFF, int(bases[i // columns])
        distance = (base - exponent) % 256
        if distance >= 15:
            distance = 15
            escapes.append(exponent)
        pairs[i % half] |= distance << (4 if i >= half else 0)
        rest.append(value >> 15 << 7 | value & 0x7F)
    return pairs, escapes, rest


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler here")
def test_the_compiled_routine_is_used_where_it_can_be_compiled():
    assert backend().startswith("compiled (")


@given(
    rows=st.integers(1, 5),
    columns=st.sampled_from([1, 2, 3, 63, 64, 65, 127, 200]),
    seed=st.integers(0, 2**32),
    narrow=st.booleans(),
)
def test_both_follow_the_definition_at_every_length(rows, columns, seed, narrow):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 1 << 16, rows * columns, dtype=np.uint16)
    if narrow:  # few escapes, as in weights
        values = values & 0x83FF | 0x3C00
    bases = rng.integers(0, 256, rows, dtype=np.uint8) if not narrow else np.full(rows, 127, np.uint8)
    expected = spelled_out(values, bases)
    for split_with, join_with, count in (
        (split, join, count_escapes),
        (split_reference, join_reference, count_escapes_reference),
    ):
        parts = split_with(values, bases)
        assert tuple(p.tolist() for p in parts) == expected
        assert count(parts.pairs) == len(expected[1])
        out = np.full_like(values, 0xABCD)
        assert join_with(parts, bases, out)
        assert np.array_equal(out, values)


@pytest.mark.parametrize("base", [0, 1, 14, 15, 127, 254, 255])
def test_every_pattern_comes_back_from_every_kind_of_base(base):
    bases = np.array([base], np.uint8)
    parts, expected = split(ALL_PATTERNS, bases), split_reference(ALL_PATTERNS, bases)
    assert all(np.array_equal(a, b) for a, b in zip(parts, expected, strict=True))
    out = np.empty_like(ALL_PATTERNS)
    assert join(parts, bases, out)
    assert np.array_equal(out, ALL_PATTERNS)


@pytest.mark.parametrize("join_with", [join, join_reference])
def test_escapes_that_the_pairs_do_not_ask_for_are_told(join_with):
    bases, out = np.array([127], np.uint8), np.empty(1000, np.uint16)
    values = np.random.default_rng(0).integers(0, 1 << 16, 1000, dtype=np.uint16)
    parts = split(values, bases)
    for escapes in (parts.escapes[:-1], np.append(parts.escapes, np.uint8(1)), parts.escapes[:0]):
        assert not join_with(Split(parts.pairs, escapes, parts.rest), bases, out)


def test_nothing_is_written_beyond_the_values():
    buffer = np.full(1 + 131 + 1, 0xABCD, np.uint16)
    values = ALL_PATTERNS[:131].copy()
    bases = np.array([0], np.uint8)
    assert join(split(values, bases), bases, buffer[1:-1])
    assert buffer[0] == buffer[-1] == 0xABCD
    assert np.array_equal(buffer[1:-1], values)


def test_no_values_are_no_work():
    nothing = np.empty(0, np.uint16)
    parts = split(nothing, np.array([5], np.uint8))
    assert [p.size for p in parts] == [0, 0, 0]
    assert join(parts, np.array([5], np.uint8), nothing)


@pytest.mark.parametrize(
    ("values", "bases"),
    [
        (np.zeros(4, np.int16), np.zeros(1, np.uint8)),
        (np.zeros((2, 2), np.uint16), np.zeros(1, np.uint8)),
        (np.zeros(8, np.uint16)[::2], np.zeros(1, np.uint8)),
        (np.zeros(4, np.uint16), np.zeros(3, np.uint8)),
        (np.zeros(4, np.uint16), np.zeros(0, np.uint8)),
        (np.zeros(4, np.uint16), np.zeros(1, np.int8)),
    ],
)
def test_arrays_the_routine_cannot_take_never_reach_it(values, bases):
    with pytest.raises(ValueError, match=r"values|bases"):
        split(values, bases)


def test_parts_of_other_lengths_never_reach_it():
    bases, out = np.array([127], np.uint8), np.empty(10, np.uint16)
    parts = split(np.zeros(10, np.uint16), bases)
    for wrong in (parts._replace(pairs=parts.pairs[:-1]), parts._replace(rest=parts.rest[:-1])):
        with pytest.raises(ValueError, match="for 10 values"):
            join(wrong, bases, out)


def run_elsewhere(tmp_path, **environment):
    code = "from equipoise.kernels.bf16_split import backend; print(backend())"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **environment},
    )  # fmt: skip
    return done.stdout.strip()


def test_without_a_compiler_numpy_serves_and_says_why(tmp_path):
    assert run_elsewhere(tmp_path, EQUIPOISE_COMPILE="0") == "numpy (EQUIPOISE_COMPILE=0)"
    assert run_elsewhere(tmp_path, CC="/nowhere/cc").startswith("numpy (/nowhere/cc: ")
    assert run_elsewhere(tmp_path, CC=shutil.which("false")).startswith("numpy (")


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler here")
def test_what_was_compiled_is_kept_where_nobody_else_can_write(tmp_path):
    assert run_elsewhere(tmp_path).startswith("compiled (")
    folder = tmp_path / ".cache" / "equipoise"
    (library,) = folder.iterdir()
    made = library.stat().st_mtime_ns
    assert folder.stat().st_mode & 0o022 == 0
    assert run_elsewhere(tmp_path).startswith("compiled (")
    assert library.stat().st_mtime_ns == made
    folder.chmod(0o777)
    library.write_bytes(b"not a library")  # what somebody else might have left there
    assert run_elsewhere(tmp_path).startswith("compiled (")


def test_wrong_results_are_not_used(monkeypatch):
    class Wrong:
        library = object()
        how = "cc"

    def identity(values, bases):
        parts = split_reference(values, bases)
        return parts._replace(rest=parts.rest ^ np.uint8(values.size == 1 << 16))

    bf16_split._implementation.cache_clear()
    monkeypatch.setattr(bf16_split, "load", lambda name: Wrong())
    monkeypatch.setattr("equipoise.kernels.cpu.bf16_split.compiled_split", identity)
    monkeypatch.setattr("equipoise.kernels.cpu.bf16_split.compiled_count_escapes", count_escapes_reference)
    monkeypatch.setattr("equipoise.kernels.cpu.bf16_split.compiled_join", join_reference)
    try:
        assert backend() == "numpy (cc: its results are wrong)"
    finally:
        bf16_split._implementation.cache_clear()


def test_the_source_is_part_of_the_package():
    assert (Path(compiled.__file__).parent / "bf16_split.c").is_file()

"""The compiled weight routines give the bits of the reference and of the torch path, and are optional."""

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.kernels import weight_formats
from equipoise.kernels.cpu import compiled
from equipoise.kernels.cpu import weight_formats as calls
from equipoise.kernels.reference_weights import (
    fp8_decode_reference,
    fp8_encode_reference,
    int4_decode_reference,
    int4_encode_reference,
)
from equipoise.quant.weights.fp8 import (
    fp8_block_decode,
    fp8_block_encode,
    fp8_channel_decode,
    fp8_channel_encode,
)
from equipoise.quant.weights.int4 import int4_decode, int4_encode
from equipoise.quant.weights.tiles import EncodeCounts, counted

HAS_COMPILER = bool(shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"))
X86 = platform.machine() in ("x86_64", "AMD64")
EVERY = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
FINITE = EVERY[EVERY.isfinite()]
DECODED = (torch.float32, torch.bfloat16)


def clear_caches() -> None:
    for cached in (compiled.load, weight_formats._choose, calls._fp8, calls._int4):
        cached.cache_clear()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((), id="native"),
        pytest.param(
            ("-mno-avx512vbmi",), id="no-vbmi", marks=pytest.mark.skipif(not X86, reason="x86 flag")
        ),
        pytest.param(("-mno-avx512f",), id="no-avx512", marks=pytest.mark.skipif(not X86, reason="x86 flag")),
    ],
)
def routine(request, tmp_path_factory):
    """The compiled routines, also as processors without the wide instructions get them."""
    if not HAS_COMPILER:
        pytest.skip("no C compiler here")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("EQUIPOISE_CACHE", str(tmp_path_factory.mktemp("compiled")))
        patched.delenv("EQUIPOISE_COMPILE", raising=False)
        patched.setattr(compiled, "FLAGS", (*compiled.FLAGS, *request.param))
        clear_caches()
        assert weight_formats.backend().startswith("compiled (")
        yield
    clear_caches()


def torch_path(call: Callable, *arguments, **named):
    """What the tiled torch code makes of it."""
    with patch.object(weight_formats, "_routine", lambda: None):
        return call(*arguments, **named)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    a, b = a.contiguous(), b.contiguous()
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def check_fp8(x: torch.Tensor, block: tuple[int, int]) -> None:
    codes, scales, counts = fp8_encode_reference(x, block=block)
    got, got_scales = torch.full_like(codes, 1.0), torch.full_like(scales, -1.0)
    assert weight_formats.fp8_encode(x, got, got_scales, block=block) == counts
    assert same_bits(got_scales, scales) and same_bits(got, codes)
    for dtype in DECODED:
        out = torch.full(x.shape, 7.0, dtype=dtype)
        assert weight_formats.fp8_decode(codes, scales, out, block=block)
        assert same_bits(out, fp8_decode_reference(codes, scales, block=block, dtype=dtype))


def check_int4(x: torch.Tensor, group: int = 32) -> None:
    packed, scales, counts = int4_encode_reference(x, group=group)
    got, got_scales = torch.full_like(packed, -1), torch.full_like(scales, -1.0)
    assert weight_formats.int4_encode(x, got, got_scales, group=group) == counts
    assert same_bits(got_scales, scales) and same_bits(got, packed)
    for dtype in DECODED:
        out = torch.full(x.shape, 7.0, dtype=dtype)
        assert weight_formats.int4_decode(packed, scales, out)
        assert same_bits(out, int4_decode_reference(packed, scales, columns=x.shape[1], dtype=dtype))


def beside(peak: torch.Tensor, values: torch.Tensor, width: int) -> torch.Tensor:
    """Rows of ``width``: the peak, then values."""
    padded = torch.nn.functional.pad(values, (0, -values.numel() % (width - 1)))
    rows = padded.view(-1, width - 1)
    return torch.cat([peak.expand(len(rows), 1), rows], dim=1)


@pytest.mark.usefixtures("routine")
@pytest.mark.parametrize("exponent", [1, 2, 40, 118, 127, 254])
def test_every_value_under_a_peak_gets_its_code_whatever_the_peak(exponent):
    """The 128 mantissas of a peak give all scales there are, but for powers of two."""
    for mantissa in range(0, 128, 1 if exponent == 127 else 17):
        peak = torch.tensor([exponent << 7 | mantissa], dtype=torch.int16).view(torch.bfloat16)
        values = FINITE[FINITE.abs() <= peak]
        if exponent == 127:  # what is far below the peak becomes zero, and is left to the other exponents
            values = values[values.abs() >= 2.0**-20]
        check_fp8(beside(peak, values, 640), (1, 640))
        check_int4(beside(peak, values, 32).view(1, -1))


@pytest.mark.usefixtures("routine")
@pytest.mark.parametrize("block", [(128, 128), (1, 1024), (64, 1024), (3, 5)])
def test_every_pattern_survives_beside_nan_and_infinity(block):
    check_fp8(EVERY.view(64, 1024), block)
    if block[1] == 1024:
        check_int4(EVERY.view(64, 1024))
        check_int4(EVERY.view(512, 128), group=128)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 300),
    columns=st.integers(1, 700),
    block=st.sampled_from([(128, 128), (1, 10_000), (16, 600), (2, 3), (128, 64)]),
    kind=st.sampled_from(["weights", "bits", "outliers", "zeros", "tiny"]),
    seed=st.integers(0, 2**31),
)
@pytest.mark.usefixtures("routine")
def test_matrices_of_any_shape_have_the_bits_of_the_reference(rows, columns, block, kind, seed):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=random) * 0.02
    if kind == "outliers":
        x[torch.rand(x.shape, generator=random) < 1e-3] *= 1e6
    elif kind == "zeros":
        x[torch.rand(x.shape, generator=random) < 0.7] *= -0.0
        x[: rows // 2, : columns // 2] = 0.0
    elif kind == "tiny":
        x *= 1e-37
    x = x.to(torch.bfloat16)
    if kind == "bits":
        x = EVERY[torch.randint(0, 1 << 16, (rows, columns), generator=random)]
    block = (block[0], min(block[1], columns))
    if rows * columns < 40 * block[0] * block[1] or block[0] > 3:  # the reference is slow on small blocks
        check_fp8(x, block)
    if columns >= 32:
        check_int4(x[:, : columns // 32 * 32].contiguous())


def untouched_beyond(view: torch.Tensor) -> bool:
    """Whether the gaps after the rows of a view still hold the filling."""
    gap = (view.shape[0], view.stride(0) - view.shape[1])
    beyond = torch.as_strided(view, gap, view.stride(), view.storage_offset() + view.shape[1])
    return bool((beyond.contiguous().view(torch.uint8) == 0x5A).all())


@pytest.mark.usefixtures("routine")
@pytest.mark.parametrize("byte", [0, 1, 2, 3, 32, 63])
def test_views_and_storage_at_any_byte_are_read_and_written_in_place(byte):
    def placed(dtype: torch.dtype, rows: int, columns: int, stride: int) -> torch.Tensor:
        size = torch.empty(0, dtype=dtype).element_size()
        raw = bytearray(b"\x5a" * (rows * stride * size + byte))
        whole = torch.frombuffer(raw, dtype=dtype, offset=byte, count=rows * stride)
        return whole.view(rows, stride)[:, :columns]

    values = torch.randn(40, 352, generator=torch.Generator().manual_seed(byte)).to(torch.bfloat16)
    for rows in (1, 40):
        x = placed(torch.bfloat16, rows, 352, 357).copy_(values[:rows])
        codes, scales, counts = fp8_encode_reference(x, block=(32, 128))
        got, got_scales = placed(torch.float8_e4m3fn, rows, 352, 353), torch.empty_like(scales)
        assert weight_formats.fp8_encode(x, got, got_scales, block=(32, 128)) == counts
        assert same_bits(got, codes) and same_bits(got_scales, scales)
        packed, scales4, counts = int4_encode_reference(x.contiguous(), group=32)
        got4, got_scales4 = placed(torch.int32, rows, 44, 45), torch.empty_like(scales4)
        assert weight_formats.int4_encode(x, got4, got_scales4, group=32) == counts
        assert same_bits(got4, packed) and same_bits(got_scales4, scales4)
        for dtype in DECODED:
            out = placed(dtype, rows, 352, 360)
            assert weight_formats.fp8_decode(got, scales, out, block=(32, 128))
            assert same_bits(out, fp8_decode_reference(codes, scales, block=(32, 128), dtype=dtype))
            assert weight_formats.int4_decode(got4, scales4, out)
            assert same_bits(out, int4_decode_reference(packed, scales4, columns=352, dtype=dtype))
            assert untouched_beyond(out)
        assert untouched_beyond(got) and untouched_beyond(got4)


@pytest.mark.usefixtures("routine")
@pytest.mark.parametrize("dtype", DECODED)
def test_all_codes_decode_under_any_scale(dtype):
    scales = [1.0, 0.37, -2.5, 0.0, -0.0, 1e-45, 2.0**-126, 3e38, -3e38, torch.inf, -torch.inf, torch.nan]
    column = torch.tensor(scales)[:, None]
    codes = torch.arange(256, dtype=torch.uint8).repeat(len(scales), 3).view(torch.float8_e4m3fn)
    out = torch.empty(codes.shape, dtype=dtype)
    assert weight_formats.fp8_decode(codes, column, out, block=(1, 768))
    due = fp8_decode_reference(codes, column, block=(1, 768), dtype=dtype)
    assert same_bits(out, due)
    for held in (torch.bfloat16, torch.float16, torch.float32):
        packed = torch.arange(0, 1 << 32, (1 << 32) // 1024).to(torch.int32).repeat(len(scales), 1)
        factors = column.to(held).repeat(1, 8 * 1024 // 32)
        out = torch.empty(len(scales), 8 * 1024, dtype=dtype)
        assert weight_formats.int4_decode(packed, factors, out)
        assert same_bits(out, int4_decode_reference(packed, factors, columns=8 * 1024, dtype=dtype))


@pytest.mark.usefixtures("routine")
@pytest.mark.parametrize(("columns", "groups"), [(40, 5), (36, 3), (12, 12), (7, 1), (64, 1)])
def test_int4_groups_of_any_size_and_padded_words_decode(columns, groups):
    random = torch.Generator().manual_seed(columns)
    packed = torch.randint(-(2**31), 2**31, (3, -(-columns // 8)), generator=random).to(torch.int32)
    scales = torch.randn(3, groups, generator=random).to(torch.bfloat16)
    for dtype in DECODED:
        out = torch.empty(3, columns, dtype=dtype)
        assert weight_formats.int4_decode(packed, scales, out)
        assert same_bits(out, int4_decode_reference(packed, scales, columns=columns, dtype=dtype))


@pytest.mark.usefixtures("routine")
@pytest.mark.parametrize("kind", ["weights", "bits"])
def test_the_tiled_torch_path_has_the_same_bits_and_counts(kind):
    random = torch.Generator().manual_seed(1)
    x = (torch.randn(300, 736, generator=random) * 0.02).to(torch.bfloat16)
    if kind == "bits":
        x = EVERY[torch.randint(0, 1 << 16, (300, 736), generator=random)]
    for encode, decode in (
        (fp8_block_encode, fp8_block_decode),
        (fp8_channel_encode, fp8_channel_decode),
        (int4_encode, lambda *parts, out: int4_decode(*parts, columns=736, out=out)),
    ):
        ours, due = encode(x), torch_path(encode, x)
        assert ours[2] == due[2]
        assert all(same_bits(a, b) for a, b in zip(ours[:2], due[:2], strict=True))
        for dtype in DECODED:
            out, slow = torch.empty(x.shape, dtype=dtype), torch.empty(x.shape, dtype=dtype)
            assert same_bits(decode(*ours[:2], out=out), torch_path(decode, *ours[:2], out=slow))


@pytest.mark.usefixtures("routine")
def test_one_scale_for_a_tensor_decodes_as_one_for_each_row():
    codes = (
        torch.arange(0, 250, dtype=torch.uint8).repeat(9, 2)[:, :120].contiguous().view(torch.float8_e4m3fn)
    )
    for scale in (torch.tensor(0.3), torch.tensor([0.3]), torch.tensor([[0.3]])):
        assert same_bits(fp8_channel_decode(codes, scale), fp8_channel_decode(codes, torch.full((9,), 0.3)))


def tensors(**changed):
    held = {
        "x": torch.ones(4, 64, dtype=torch.bfloat16),
        "codes": torch.empty(4, 64, dtype=torch.float8_e4m3fn),
        "scales": torch.empty(4, 1),
    }
    return held | changed


@pytest.mark.parametrize(
    "changed",
    [
        {"x": torch.ones(4, 64)},
        {"x": torch.ones(64, 4, dtype=torch.bfloat16).t()},
        {"x": torch.ones(0, 64, dtype=torch.bfloat16)},
        {"codes": torch.empty(4, 63, dtype=torch.float8_e4m3fn)},
        {"codes": torch.empty(4, 64, dtype=torch.uint8)},
        {"codes": torch.empty(1, 64, dtype=torch.float8_e4m3fn).expand(4, 64)},
        {"scales": torch.empty(3, 1)},
        {"scales": torch.empty(4, 1, dtype=torch.float64)},
        {"scales": torch.empty(4, 2)[:, :1]},
    ],
)
def test_tensors_the_routine_cannot_take_never_reach_it(changed):
    given = tensors(**changed)
    assert weight_formats.fp8_encode(**tensors(), block=(1, 64)) is not None or not HAS_COMPILER
    assert weight_formats.fp8_encode(**given, block=(1, 64)) is None


def test_int4_tensors_the_routine_cannot_take_never_reach_it():
    x, packed = torch.ones(4, 64, dtype=torch.bfloat16), torch.empty(4, 8, dtype=torch.int32)
    scales = torch.empty(4, 2, dtype=torch.bfloat16)
    for wrong in (
        (x.float(), packed, scales),
        (x, packed[:3], scales),
        (x, packed.to(torch.int64), scales),
        (x, packed, scales[:, :1]),
        (x, packed, scales.float()),
    ):
        assert weight_formats.int4_encode(*wrong, group=32) is None
    out = torch.empty(4, 64)
    for decoding in (
        (packed[:, :7], scales, out),
        (packed, torch.ones(4, 3), out),
        (packed, scales, out.double()),
    ):
        assert not weight_formats.int4_decode(*decoding)


def test_other_dtypes_and_layouts_still_encode_with_torch():
    x = torch.randn(96, 64, generator=torch.Generator().manual_seed(5)).to(torch.bfloat16)
    for encode in (fp8_block_encode, fp8_channel_encode, int4_encode):
        due = encode(x)
        for same in (x.float(), x.t().contiguous().t()):
            got = encode(same)
            assert got[2] == due[2] and all(same_bits(a, b) for a, b in zip(got[:2], due[:2], strict=True))
    assert fp8_block_encode(x[:0])[2] == fp8_channel_encode(x[:0])[2] == EncodeCounts()
    assert counted(x, weight_formats.Counts(1, 2, 3)) == EncodeCounts(
        n=6144, saturated=1, flushed_to_zero=2, nan=3
    )


@pytest.mark.parametrize("name", ["fp8_encode", "fp8_decode", "int4_encode", "int4_decode"])
def test_wrong_results_are_not_used(monkeypatch, name):
    if not HAS_COMPILER:
        pytest.skip("no C compiler here")
    real = getattr(calls, f"compiled_{name}")

    def wrong(*given, **named):
        counts = real(*given, **named)
        target = given[1] if name.endswith("encode") else given[2]
        target.view(torch.uint8)[-1, -1] ^= 1
        return counts

    monkeypatch.setattr(calls, f"compiled_{name}", wrong)
    weight_formats._choose.cache_clear()
    try:
        assert weight_formats.backend().endswith(f": {name} is wrong)")
        assert weight_formats.fp8_encode(**tensors(), block=(1, 64)) is None
    finally:
        weight_formats._choose.cache_clear()


def test_without_a_compiler_torch_serves_and_says_why(tmp_path):
    code = "from equipoise.kernels.weight_formats import backend; print(backend())"

    def elsewhere(**environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **environment},
        )  # fmt: skip
        return done.stdout.strip()

    assert elsewhere(EQUIPOISE_COMPILE="0") == "torch (EQUIPOISE_COMPILE=0)"
    assert elsewhere(CC="/nowhere/cc").startswith("torch (/nowhere/cc: ")


def test_the_sources_are_part_of_the_package():
    folder = Path(compiled.__file__).parent
    assert (folder / "fp8_weights.c").is_file() and (folder / "int4_weights.c").is_file()

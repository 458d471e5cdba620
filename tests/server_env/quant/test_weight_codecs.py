"""Every code is the nearest one: encoders against tables written out from the formats' definitions."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.quant.weights.formats import WEIGHT_FORMATS
from equipoise.quant.weights.fp4 import (
    mxfp4_decode,
    mxfp4_encode,
    nvfp4_decode,
    nvfp4_encode,
    nvfp4_global_scale,
)
from equipoise.quant.weights.fp8 import (
    decode_e4m3,
    e8m0_to_float32,
    fp8_block_decode,
    fp8_block_encode,
    fp8_channel_decode,
    fp8_channel_encode,
    mxfp8_decode,
    mxfp8_encode,
)
from equipoise.quant.weights.int4 import int4_decode, int4_encode
from equipoise.quant.weights.tiles import TILE_ELEMENTS, EncodeCounts, Scratch

E4M3 = [
    (c & 7) * 2.0**-9 if c < 8 else (1 + (c & 7) / 8) * 2.0 ** ((c >> 3) - 7) for c in range(127)
]  # 0x7F is NaN
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]

bf16_bits = st.integers(0, 0xFFFF)
ordinary_bits = bf16_bits.filter(lambda b: b & 0x7F80 != 0x7F80)  # finite


def bf16(bits: list[int], *shape: int) -> torch.Tensor:
    return torch.tensor(np.array(bits, dtype=np.uint16).astype(np.int16)).view(torch.bfloat16).view(*shape)


def nearest(table: list[float], y: float) -> int:
    """Brute force: the nearest magnitude's code, ties to the even code, saturating."""
    magnitude = min(abs(y), table[-1])
    return min(range(len(table)), key=lambda c: (abs(table[c] - magnitude), c & 1))


def divided(x: float, scale: float) -> float:
    """The one rounding that is allowed before the code's own: a float32 division."""
    return float(np.float32(x) / np.float32(scale))


def check_e4m3(x: float, code: int, scale: float) -> None:
    if math.isnan(x):
        assert code & 0x7F == 0x7F
    else:
        assert code & 0x7F == nearest(E4M3, divided(x, scale)), (x, scale)
        assert code >> 7 == (math.copysign(1.0, x) < 0)


def amax(values: list[float]) -> float:
    return max((abs(v) for v in values if math.isfinite(v)), default=0.0)


@settings(max_examples=120, deadline=None)
@given(st.lists(bf16_bits, min_size=35, max_size=35))
def test_block_codes_are_nearest_whatever_the_bits_in_ragged_blocks(bits):
    x = bf16(bits, 5, 7)
    codes, scales, counts = fp8_block_encode(x, block=(2, 3))
    assert scales.shape == (3, 3)
    raw, values = codes.view(torch.uint8), x.to(torch.float32)
    for i, j in itertools.product(range(3), range(3)):
        rows, columns = slice(2 * i, 2 * i + 2), slice(3 * j, 3 * j + 3)
        block = values[rows, columns].flatten().tolist()
        peak, scale = amax(block), float(scales[i, j])
        due = max(float(np.float32(peak) / np.float32(448)), 2.0**-126) if peak else 1.0
        assert scale == due
        for value, code in zip(block, raw[rows, columns].flatten().tolist(), strict=True):
            check_e4m3(value, code, scale)
    flat, stored = values.flatten().tolist(), raw.flatten().tolist()
    assert counts == EncodeCounts(
        n=35,
        nan=sum(map(math.isnan, flat)),
        saturated=sum(map(math.isinf, flat)),
        flushed_to_zero=sum(v != 0 and c & 0x7F == 0 for v, c in zip(flat, stored, strict=True)),
    )


@settings(max_examples=80, deadline=None)
@given(st.lists(bf16_bits, min_size=24, max_size=24))
def test_channel_codes_are_nearest_whatever_the_bits(bits):
    x = bf16(bits, 4, 6)
    codes, scales, counts = fp8_channel_encode(x)
    assert scales.shape == (4, 1) and scales.dtype == torch.float32
    for row, (values, stored) in enumerate(zip(x.tolist(), codes.view(torch.uint8).tolist(), strict=True)):
        peak = amax(values)
        due = max(float(np.float32(peak) / np.float32(448)), 2.0**-126) if peak else 1.0
        assert float(scales[row]) == due
        for value, code in zip(values, stored, strict=True):
            check_e4m3(value, code, due)
    assert counts.nan == sum(map(math.isnan, x.flatten().tolist()))


@settings(max_examples=80, deadline=None)
@given(st.lists(bf16_bits, min_size=64, max_size=64))
def test_mxfp8_scales_are_the_least_power_of_two_that_holds_the_group(bits):
    x = bf16(bits, 2, 32)
    codes, scales, counts = mxfp8_encode(x)
    for values, stored, biased in zip(
        x.tolist(), codes.view(torch.uint8).tolist(), scales[:, 0].tolist(), strict=True
    ):
        peak, scale = amax(values), 2.0 ** (biased - 127)
        if peak == 0:
            assert biased == 127
        else:
            assert peak <= 448 * scale and (biased == 0 or peak > 448 * scale / 2)
        for value, code in zip(values, stored, strict=True):
            check_e4m3(value, code, scale)
    assert counts.saturated == sum(map(math.isinf, x.flatten().tolist()))


@settings(max_examples=100, deadline=None)
@given(st.lists(bf16_bits, min_size=64, max_size=64))
def test_int4_codes_are_nearest_in_kimi_s_packing(bits):
    x = bf16(bits, 2, 32)
    packed, scales, counts = int4_encode(x)
    assert packed.shape == (2, 4) and packed.dtype == torch.int32 and scales.dtype == torch.bfloat16
    clipped = 0
    for values, words, scale in zip(x.tolist(), packed.tolist(), scales[:, 0].tolist(), strict=True):
        nibbles = [(word >> (4 * k)) & 0xF for word in words for k in range(8)]  # low nibble first
        if any(map(math.isnan, values)):
            assert math.isnan(scale)
            continue
        peak = amax(values)
        due = torch.tensor(max(np.float32(peak) / np.float32(7.5), np.float32(2.0**-126))).to(torch.bfloat16)
        assert scale == (float(due) if peak else 1.0)
        for value, nibble in zip(values, nibbles, strict=True):
            y = divided(value, scale)
            assert nibble - 8 == (max(-8, min(7, round(y))) if math.isfinite(y) else (7 if y > 0 else -8))
            clipped += math.isinf(value)
    assert counts.nan == sum(map(math.isnan, x.flatten().tolist()))
    if counts.nan == 0:
        assert counts.saturated == clipped


def e2m1_codes(packed: torch.Tensor) -> list[list[int]]:
    return [[n for byte in row for n in (byte & 0xF, byte >> 4)] for row in packed.view(torch.uint8).tolist()]


@settings(max_examples=80, deadline=None)
@given(st.lists(ordinary_bits, min_size=64, max_size=64))
def test_mxfp4_codes_are_nearest_and_clip_at_most_a_seventh(bits):
    x = bf16(bits, 2, 32)
    packed, scales, counts = mxfp4_encode(x)
    for values, codes, biased in zip(x.tolist(), e2m1_codes(packed), scales[:, 0].tolist(), strict=True):
        peak, scale = amax(values), 2.0 ** (biased - 127)
        if biased > 0 and peak:
            assert 3.5 <= peak / scale < 7.0
        for value, code in zip(values, codes, strict=True):
            assert code & 7 == nearest(E2M1, divided(value, scale)), (value, scale)
            assert code >> 3 == (math.copysign(1.0, value) < 0)
    assert counts.saturated == 0


@settings(max_examples=80, deadline=None)
@given(st.lists(ordinary_bits, min_size=64, max_size=64))
def test_nvfp4_codes_are_nearest_under_both_scales(bits):
    x = bf16(bits, 2, 32)
    ours = nvfp4_global_scale(amax(x.flatten().tolist()))
    packed, scales, _ = nvfp4_encode(x, ours)
    assert scales.shape == (2, 2) and scales.dtype == torch.float8_e4m3fn
    for row in range(2):
        codes = e2m1_codes(packed)[row]
        for group in range(2):
            values = x[row, 16 * group : 16 * group + 16].tolist()
            peak = amax(values)
            code = int(scales.view(torch.uint8)[row, group])
            wanted = float(np.float32(np.float32(peak) / np.float32(6)) / np.float32(ours))
            assert E4M3[code] == (E4M3[nearest(E4M3, max(wanted, 2.0**-9))] if peak else 1.0)
            scale = float(np.float32(E4M3[code]) * np.float32(ours))
            for value, stored in zip(values, codes[16 * group : 16 * group + 16], strict=True):
                assert stored & 7 == nearest(E2M1, divided(value, scale)), (value, scale)


def test_ties_go_to_the_even_code_in_every_e2m1_step():
    middles = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    x = torch.tensor([[*middles, *(-m for m in middles), 6.0, 0.0] + [0.0] * 16])
    packed, scales, _ = mxfp4_encode(x)
    assert scales.tolist() == [[127]]
    codes = [c & 7 for c in e2m1_codes(packed)[0]]
    assert codes[:7] == codes[7:14] == [0, 2, 2, 4, 4, 6, 6]


DECODERS = {
    "fp8-block": lambda x: fp8_block_decode(*fp8_block_encode(x)[:2]),
    "fp8-channel": lambda x: fp8_channel_decode(*fp8_channel_encode(x)[:2]),
    "mxfp8": lambda x: mxfp8_decode(*mxfp8_encode(x)[:2]),
    "int4-g32": lambda x: int4_decode(*int4_encode(x)[:2], columns=x.shape[1]),
    "mxfp4": lambda x: mxfp4_decode(*mxfp4_encode(x)[:2]),
    "nvfp4": lambda x: (lambda g: nvfp4_decode(*nvfp4_encode(x, g)[:2], g))(
        nvfp4_global_scale(float(x.abs().max()))
    ),
}
PUBLISHED_SQNR_DB = {
    "fp8-block": 31.6, "fp8-channel": 31.6, "mxfp8": 31.5, "int4-g32": 20.3, "mxfp4": 18.9, "nvfp4": 20.4,
}  # fmt: skip


@pytest.mark.parametrize("name", DECODERS)
def test_sqnr_of_gaussian_weights_is_the_published_figure(name):
    x = (torch.randn(512, 2048, generator=torch.Generator().manual_seed(0)) * 0.02).to(torch.bfloat16)
    decoded = DECODERS[name](x).double()
    noise = (decoded - x.double()).square().sum()
    sqnr_db = float(10 * torch.log10(x.double().square().sum() / noise))
    assert sqnr_db == pytest.approx(PUBLISHED_SQNR_DB[name], abs=0.25)
    assert sqnr_db == pytest.approx(WEIGHT_FORMATS[name].typical_sqnr_db, abs=0.15)


@pytest.mark.parametrize("name", DECODERS)
def test_zeros_stay_zeros_and_a_zero_block_beside_a_full_one_harms_nothing(name):
    x = torch.zeros(256, 256, dtype=torch.bfloat16)
    assert torch.equal(DECODERS[name](x), torch.zeros(256, 256))
    x[:128, :128] = 3.0
    decoded = DECODERS[name](x)
    assert decoded.isfinite().all() and torch.equal(decoded == 0, x == 0)


@pytest.mark.parametrize("name", DECODERS)
def test_a_nan_stays_a_nan_and_infinities_saturate(name):
    x = torch.ones(128, 128, dtype=torch.bfloat16)
    x[5, 40], x[9, 0], x[10, 0] = torch.nan, torch.inf, -torch.inf
    encoded = WEIGHT_FORMATS[name].encode(x, shape=(128, 128), amax=1.0, scratch=Scratch())
    assert (encoded[1].nan, encoded[1].saturated) == (1, 2)
    out = torch.empty(128, 128)
    decoded = WEIGHT_FORMATS[name].decode(encoded[0], columns=128, out=out, scratch=Scratch())
    assert decoded[5, 40].isnan()
    outside = decoded.clone()
    outside[5, 32:64] = 0.0  # a group shares its scale's NaN where codes have none
    assert outside.isfinite().all()
    assert decoded[9, 0] > 0 and decoded[10, 0] < 0


def test_codes_come_from_a_division_not_from_a_reciprocal():
    x = (torch.randn(1024, 1024, generator=torch.Generator().manual_seed(1)) * 0.02).to(torch.bfloat16)
    codes, scales, _ = fp8_channel_encode(x)
    wrong = (x.float() * (1.0 / scales)).to(torch.float8_e4m3fn)
    assert 10 < int((codes.view(torch.uint8) != wrong.view(torch.uint8)).sum()) < 1000
    assert torch.equal(
        (x.float() / scales).to(torch.float8_e4m3fn).view(torch.uint8), codes.view(torch.uint8)
    )


def test_all_e4m3_codes_and_e8m0_scales_decode_to_their_definition():
    codes = torch.arange(256, dtype=torch.uint8)
    decoded = decode_e4m3(codes.view(torch.float8_e4m3fn), torch.empty(256), Scratch())
    assert decoded[127].isnan() and decoded[255].isnan()
    assert decoded[:127].tolist() == E4M3 and decoded[128:255].tolist() == [-v for v in E4M3]
    assert math.copysign(1.0, float(decoded[128])) == -1.0
    powers = e8m0_to_float32(codes)
    assert powers[:255].tolist() == [2.0 ** (b - 127) for b in range(255)] and powers[255].isnan()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", WEIGHT_FORMATS)
def test_slabs_of_rows_encode_as_the_whole_and_into_reused_buffers(name, dtype):
    """What streams through buffers is what one call gives, whatever was in the buffers."""
    fmt = WEIGHT_FORMATS[name]
    columns = 640
    rows = 2 * (TILE_ELEMENTS // columns) + 130
    x = (torch.randn(rows, columns, generator=torch.Generator().manual_seed(2)) * 0.02).to(dtype)
    whole, counts = fmt.encode(x, shape=x.shape, amax=0.11, scratch=Scratch())
    used, pieces, total = Scratch(), {part: [] for part in whole}, EncodeCounts()
    for top in range(0, rows, 256):
        parts, some = fmt.encode(x[top : top + 256], shape=x.shape, amax=0.11, scratch=used)
        total += some
        for part, tensor in parts.items():
            pieces[part].append(tensor.view(torch.uint8).clone() if tensor.ndim else tensor.clone())
    assert total == counts
    for part in fmt.parts(tuple(x.shape)):
        got = torch.cat(pieces[part.name]) if part.rows_each else pieces[part.name][0]
        due = whole[part.name]
        assert tuple(due.shape) == part.shape
        assert torch.equal(got, due.view(torch.uint8) if due.ndim else due), part.name


def test_float64_is_refused_because_it_would_be_rounded_twice():
    with pytest.raises(TypeError, match="float64"):
        fp8_channel_encode(torch.ones(2, 32, dtype=torch.float64))


@pytest.mark.parametrize("name", WEIGHT_FORMATS)
def test_the_error_bound_holds_and_is_tight(name):
    """No element is beyond the bound that ``verify`` checks, and a code moved by one step is."""
    fmt = WEIGHT_FORMATS[name]
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(256, 512, generator=generator) * 10 ** torch.empty(256, 1).uniform_(
        -6, 3, generator=generator
    )
    x = x.to(torch.bfloat16)
    parts, _ = fmt.encode(x, shape=(256, 512), amax=float(x.abs().max()), scratch=Scratch())
    parts = {k: v.clone() for k, v in parts.items()}
    bound = fmt.error_bound(x.float(), parts)
    decoded = fmt.decode(parts, columns=512, out=torch.empty(256, 512), scratch=Scratch())
    share = ((x.float() - decoded).abs() / bound).max()
    assert 0.9 < share <= 1.0
    codes = parts[next(iter(parts))].view(torch.uint8)
    codes[3, 100:164] ^= 2  # two codes away
    moved = fmt.decode(parts, columns=512, out=torch.empty(256, 512), scratch=Scratch())
    assert ((x.float() - moved).abs() / bound).max() > 1.0

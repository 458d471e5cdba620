"""Layouts of the KV cache: bytes, round trips, SQNR, and what goes wrong with another's reader.

SQNR figures are of Gaussian values, seed 0; what is asserted is the figure to .15 dB (of 10^7
values drawn again, none moved by more than .05 dB).
"""

import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from equipoise.kernels.formats import E4M3FN
from equipoise.kernels.reference_formats import nearest_float8, sqnr_db
from equipoise.kernels.scales import read_as_e8m0
from equipoise.quant.geometry import BUILTIN, kv_bytes_per_token
from equipoise.quant.kv_layouts import KV_LAYOUT_KINDS
from equipoise.quant.layouts import (
    LAYOUT_NAMES,
    CacheShape,
    Ds656,
    Flat576,
    GqaPerHead,
    GqaPerTensor,
    make_layout,
)

DB = 0.15
MLA = CacheShape.mla()
GQA = CacheShape.gqa(kv_heads=4, head_dim=32, v_head_dim=24)
TINY_MLA = CacheShape.mla(kv_lora_rank=64, qk_rope_head_dim=32)
HEAD_SCALES = {"first_scales": [0.01, 0.02, 0.5, 1.0], "second_scales": [0.03, 0.01, 0.25, 2.0]}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tokens(shape: CacheShape, n: int = 200, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return normal(n, *shape.first, seed=seed), normal(n, *shape.second, seed=seed + 1)


def cases() -> list:
    found = [("bf16", MLA, {}), ("bf16", GQA, {}), ("fp8_flat", MLA, {}), ("fp8_flat", GQA, {})]
    found += [("fp8_per_head", GQA, HEAD_SCALES), ("fp8_per_token_head", GQA, {})]
    found += [(name, shape, {}) for name in ("ds656", "ds656_pow2") for shape in (MLA, TINY_MLA)]
    return [
        pytest.param(make_layout(name, shape, **kw), id=f"{name}-{shape.first[0]}")
        for name, shape, kw in found
    ]


LAYOUTS = pytest.mark.parametrize("layout", cases())


def tile_reference(latent: torch.Tensor, tile: int, *, pow2: bool) -> torch.Tensor:
    """Ds656 from its definition, in float64, token by token and tile by tile."""
    out = torch.empty(latent.shape, dtype=torch.float64)
    for t, row in enumerate(latent.double()):
        for start in range(0, len(row), tile):
            piece = row[start : start + tile]
            scale = torch.tensor(piece.abs().max().item(), dtype=torch.float32) / 448  # stored in float32
            if pow2:
                scale = torch.tensor(2.0 ** math.ceil(math.log2(max(scale.item(), 1e-4))))
            if scale == 0:
                out[t, start : start + tile] = 0.0
                continue
            quotient = (piece.float() / scale).double()  # the division is float32's
            out[t, start : start + tile] = nearest_float8(quotient, E4M3FN) * scale.double()
    return out


# Bytes


def test_every_layout_that_a_server_can_be_told_exists_and_holds_what_its_kind_says():
    assert set(KV_LAYOUT_KINDS) < set(LAYOUT_NAMES)
    for kind in KV_LAYOUT_KINDS.values():
        own, other = (GQA, MLA) if kind.attention == "gqa" else (MLA, GQA)
        kwargs = HEAD_SCALES if kind.calibrated else {}
        assert make_layout(kind.name, own, **kwargs).name == kind.name
        with pytest.raises(ValueError, match="holds"):
            make_layout(kind.name, other, **kwargs)


@pytest.mark.parametrize(
    ("model", "name", "expected"),
    [
        ("kimi-k2.6", "bf16", 70_272),
        ("kimi-k2.6", "fp8_flat", 35_136),
        ("kimi-k2.6", "ds656", 40_016),
        ("kimi-k2.6", "ds656_pow2", 40_016),
        ("glm-4.6", "bf16", 376_832),
        ("glm-4.6", "fp8_flat", 188_416),
        ("glm-4.6", "fp8_per_head", 188_416),
        ("glm-4.6", "fp8_per_token_head", 188_416 + 92 * 2 * 8 * 4),
        ("glm-4.7-flash", "bf16", 54_144),
        ("glm-4.7-flash", "fp8_flat", 27_072),
        ("glm-5", "ds656", 61_464 - 78 * 132),  # less the indexer's keys
        ("glm-5", "bf16", 100_152 - 78 * 132),
    ],
)
def test_bytes_per_token_are_the_known_ones(model, name, expected):
    geometry = BUILTIN[model]
    shape = CacheShape.of(geometry)
    ones = [1.0] * (geometry.kv_heads or 1)
    layout = make_layout(name, shape, first_scales=ones, second_scales=ones)
    assert layout.bytes_per_token(geometry.num_layers) == expected
    first, second = tokens(shape, n=3)
    written = layout.write_rows(first, second)
    assert sum(rows.shape[1] for rows in written) * geometry.num_layers == expected
    assert all(rows.dtype == torch.uint8 for rows in written)


@pytest.mark.parametrize("model", ["kimi-k2.6", "glm-4.6", "glm-4.7-flash"])
@pytest.mark.parametrize("name", ["bf16", "fp8_flat", "fp8_per_head", "ds656"])
def test_bytes_agree_with_the_geometry_that_plans_capacity(model, name):
    geometry = BUILTIN[model]
    ones = [1.0] * (geometry.kv_heads or 1)
    if name in KV_LAYOUT_KINDS and (KV_LAYOUT_KINDS[name].attention == "mla") != geometry.is_latent:
        pytest.skip("does not fit")
    layout = make_layout(name, CacheShape.of(geometry), first_scales=ones, second_scales=ones)
    assert layout.bytes_per_token(geometry.num_layers) == kv_bytes_per_token(geometry, name)


def test_ds656_lays_codes_then_scales_then_rope():
    layout = Ds656(MLA)
    latent, rope = torch.zeros(2, 512), torch.zeros(2, 64)
    latent[1, 0], latent[1, 300] = -448.0, 3.5  # tiles 0 and 2
    rope[1, 0], rope[1, 63] = 1.0, -2.0
    (rows,) = layout.write_rows(latent, rope)
    assert rows.shape == (2, 656)
    row = rows[1].tolist()
    assert (row[0], row[300]) == (0xFE, 0x7E)  # -448 and 448
    scales = [int.from_bytes(bytes(row[512 + 4 * i : 516 + 4 * i]), "little") for i in range(4)]
    assert scales[0] == 0x3F800000  # 1.0
    assert scales[2] == 0x3C000000  # 3.5 / 448 = 2^-7
    assert row[528:530] == [0x80, 0x3F]
    assert row[654:656] == [0x00, 0xC0]
    assert set(row[1:300]) == {0}


@LAYOUTS
def test_rows_of_any_bytes_survive_unpacking_and_packing(layout):
    generator = torch.Generator().manual_seed(3)
    rows = tuple(
        torch.randint(0, 256, (17, sum(f.nbytes for f in fields)), dtype=torch.uint8, generator=generator)
        for fields in layout.buffers
    )
    for again, before in zip(layout.pack(layout.unpack(rows)), rows, strict=True):
        assert torch.equal(again, before)


@LAYOUTS
def test_bytes_and_fields_read_the_same(layout):
    first, second = tokens(layout.shape)
    encoded = layout.encode(first, second)
    decoded = layout.decode(encoded)
    for a, b in zip(decoded, layout.read_rows(layout.write_rows(first, second)), strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)
    for got, exact in zip(decoded, (first, second), strict=True):
        assert got.shape == exact.shape
        # fp8 keeps 4 significant bits, so half a step is 1/16; head scales of .5 and more flush.
        assert sqnr_db(exact, got) > (20.0 if layout.name == "fp8_per_head" else 30.0)


@LAYOUTS
def test_writing_what_was_read_changes_nothing(layout):
    once = layout.read_rows(layout.write_rows(*tokens(layout.shape)))
    twice = layout.read_rows(layout.write_rows(*once))
    for a, b in zip(once, twice, strict=True):
        if layout.name.startswith(("ds656_pow2", "bf16", "fp8_flat", "fp8_per_head")):
            assert torch.equal(a, b)
        else:  # amax / 448 * 448 may be off by an ulp, and so may every value of the tile
            torch.testing.assert_close(a, b, rtol=2e-7, atol=0.0)


# Values that no cast should be trusted with


@LAYOUTS
def test_zero_tokens_read_zero_in_every_layout(layout):
    first, second = tokens(layout.shape, n=3)
    first[1], second[1] = 0.0, 0.0
    got = layout.read_rows(layout.write_rows(first, second))
    for part in got:
        assert part.isfinite().all()
        assert (part[1] == 0).all()
        assert (part[0] != 0).any()


@LAYOUTS
def test_nan_stays_where_it_is_and_infinity_saturates_alone(layout):
    first, second = tokens(layout.shape, n=4)
    clean = layout.read_rows(layout.write_rows(first, second))
    spoilt_first, spoilt_second = first.clone(), second.clone()
    for spoilt in (spoilt_first, spoilt_second):
        # Not the largest of its tile, so that the others' scale stays.
        flat = spoilt.view(4, -1)
        flat[1, flat[1].abs().argmin()] = math.nan
        flat[2, flat[2].abs().argmin()] = -math.inf
    encoded = layout.encode(spoilt_first, spoilt_second)
    decoded = layout.decode(encoded)
    for part, before, after, given in zip(
        layout.shape.parts, clean, decoded, (spoilt_first, spoilt_second), strict=True
    ):
        assert torch.equal(after.isnan(), given.isnan())
        usual = given.isfinite()
        assert torch.equal(after[usual], before[usual])
        stored_in_bf16 = layout.name == "bf16" or (part == "rope" and layout.name.startswith("ds656"))
        at_infinity = after[given.isinf()]
        if stored_in_bf16:
            assert at_infinity.item() == -math.inf  # the format has it
        else:
            assert at_infinity.isfinite().all()
            assert at_infinity < 0
        counts = encoded.counts[part]
        assert counts.nan == 1
        assert counts.n == given.numel()
        if layout.name != "fp8_per_head":
            assert counts.saturated == (0 if stored_in_bf16 else 1)


def test_counts_are_those_of_a_scan_in_float64():
    first, second = normal(50, 4, 32) * 300, normal(50, 4, 24, seed=1) * 1e-3
    layout = GqaPerTensor(GQA)
    counts = layout.encode(first, second).counts
    assert counts["k"].saturated == int((first.double().abs() > 448).sum()) > 50
    flushed = (nearest_float8(second, E4M3FN) == 0) & (second != 0)
    assert counts["v"].flushed_to_zero == int(flushed.sum()) > 50
    assert (counts["k"].nan, counts["v"].saturated) == (0, 0)


def test_bf16_keeps_finite_values_finite_and_counts_them():
    rope = torch.full((1, 64), 1.0)
    rope[0, 0] = torch.finfo(torch.float32).max
    rope[0, 1] = 1e-45
    encoded = Ds656(MLA).encode(torch.ones(1, 512), rope)
    assert encoded.values["rope"][0, 0] == torch.finfo(torch.bfloat16).max
    assert (encoded.counts["rope"].saturated, encoded.counts["rope"].flushed_to_zero) == (1, 1)


def test_amax_scales_do_not_saturate_or_flush_what_one_scale_would():
    latent = normal(100, 512) * torch.logspace(-6, 6, 100)[:, None]
    flat = Flat576(MLA).encode(latent, normal(100, 64)).counts["latent"]
    tiles = Ds656(MLA).encode(latent, normal(100, 64)).counts["latent"]
    assert flat.saturated > 1000
    assert flat.flushed_to_zero > 1000
    assert tiles.saturated == 0
    assert tiles.flushed_to_zero < 100  # values 4e5 times smaller than their tile's largest


# Against independent writings of the same layout


@pytest.mark.parametrize("pow2", [False, True])
@pytest.mark.parametrize("shape", [MLA, TINY_MLA], ids=["512", "64"])
def test_ds656_reads_what_its_definition_in_float64_reads(shape, pow2):
    latent, rope = tokens(shape, n=20)
    latent = latent * torch.logspace(-8, 4, 20)[:, None]
    latent[7] = 0.0
    layout = Ds656(shape, scales="pow2" if pow2 else "fp32")
    got, got_rope = layout.read_rows(layout.write_rows(latent, rope))
    expected = tile_reference(latent, layout.tile, pow2=pow2)
    torch.testing.assert_close(got.double(), expected, rtol=2**-23, atol=0.0)
    assert torch.equal(got_rope, rope.bfloat16().float())


SGLANG_QUANTIZER = """
import importlib.util, json, sys, warnings
import torch
warnings.simplefilter("ignore")
spec = importlib.util.spec_from_file_location("dsa_quant_k_cache", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
k = torch.load(sys.argv[2], weights_only=True)
torch.save(module.quantize_k_cache(k[:, None, None]).view(torch.uint8)[:, 0, 0], sys.argv[3])
"""


@pytest.fixture(scope="module")
def sglang_rows(tmp_path_factory):
    """Tokens in bfloat16 with zeros among them, and their rows as SGLang's own kernel writes them."""
    folder = tmp_path_factory.mktemp("sglang")
    package = Path(importlib.util.find_spec("sglang").submodule_search_locations[0])
    kernel = package / "kernels" / "ops" / "quantization" / "dsa_quant_k_cache.py"
    k = normal(12, 576).bfloat16()
    k[3, :512] = 0
    k[5, 128:256] = 0
    torch.save(k, folder / "k.pt")
    done = subprocess.run(
        [sys.executable, "-P", "-c", SGLANG_QUANTIZER, kernel, folder / "k.pt", folder / "rows.pt"],
        env={"TRITON_INTERPRET": "1", "PATH": "/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return k, torch.load(folder / "rows.pt", weights_only=True)


def test_sglangs_own_quantizer_writes_the_same_rows(sglang_rows):
    """Offsets, scales and RoPE are the same bytes. Codes differ where SGLang's product with 1 / scale
    rounds otherwise, and where Triton's interpreter rounds wrongly (ties away, carries lost)."""
    k, theirs = sglang_rows
    zero = torch.tensor([3])
    keep = torch.tensor([i for i in range(12) if i not in (3, 5)])
    (ours,) = Ds656(MLA).write_rows(k[:, :512], k[:, 512:])
    assert ours.shape == theirs.shape == (12, 656)
    assert torch.equal(ours[keep, 512:], theirs[keep, 512:])
    assert torch.equal(ours[zero, 528:], theirs[zero, 528:])
    codes = [rows[keep, :512].to(torch.int16) for rows in (ours, theirs)]
    same = codes[0] == codes[1]
    assert same.float().mean() > 0.97
    latent, _ = Ds656(MLA).read_rows((theirs[keep],))
    assert sqnr_db(k[keep, :512].float()[same], latent[same]) > 31.0


def test_sglangs_quantizer_divides_a_zero_tile_by_zero_and_ours_does_not(sglang_rows):
    """amax / 448 has no epsilon there: the scale is 0 and the codes are 0 * inf = NaN, or what the
    clamp makes of it (on sm_90 ``min.xorsign.abs`` drops the NaN: +-448)."""
    k, theirs = sglang_rows
    for token, tile in ((3, 0), (3, 3), (5, 1)):
        scale = theirs[token, 512 + 4 * tile : 516 + 4 * tile].contiguous().view(torch.float32)
        codes = theirs[token, 128 * tile : 128 * (tile + 1)] & 0x7F
        assert scale == 0.0
        assert (codes >= 0x7E).all()  # +-448 or NaN, for values that are 0
    y = torch.zeros(128)
    assert (y * (1.0 / (y.abs().max() / 448))).clamp(-448, 448).isnan().all()  # the same lines in torch
    (ours,) = Ds656(MLA).write_rows(k[:, :512], k[:, 512:])
    assert (ours[3, :512] == 0).all()
    latent, _ = Ds656(MLA).read_rows((ours,))
    assert (latent[3] == 0).all()
    assert (latent[5, 128:256] == 0).all()
    assert (latent[5, :128] != 0).any()


# SQNR


@pytest.mark.parametrize(
    ("rms", "expected"), [(0.1, 31.5), (1.0, 31.5), (10.0, 31.5), (0.01, 25.0), (0.002, 11.0), (150.0, 29.5)]
)
def test_sqnr_of_the_flat_layout_at_scale_1(rms, expected):
    latent, rope = normal(4000, 512) * rms, normal(4000, 64, seed=1) * rms
    layout = Flat576(MLA)
    encoded = layout.encode(latent, rope)
    assert sqnr_db(latent, layout.decode(encoded)[0]) == pytest.approx(expected, abs=DB)
    assert (encoded.counts["latent"].saturated > 0) == (rms == 150.0)


@pytest.mark.parametrize("rms", [0.002, 0.01, 1.0, 150.0])
def test_sqnr_of_ds656_does_not_depend_on_the_magnitude(rms):
    latent, rope = normal(4000, 512) * rms, normal(4000, 64, seed=1) * rms
    for scales, expected in (("fp32", 31.8), ("pow2", 31.5)):
        layout = Ds656(MLA, scales=scales)
        assert sqnr_db(latent, layout.read_rows(layout.write_rows(latent, rope))[0]) == pytest.approx(
            expected, abs=DB
        )


def test_the_floor_of_power_of_two_scales_costs_small_tiles_their_precision():
    latent, rope = normal(4000, 512) * 5e-7, torch.zeros(4000, 64)
    fp32, pow2 = Ds656(MLA), Ds656(MLA, scales="pow2")
    assert sqnr_db(latent, fp32.read_rows(fp32.write_rows(latent, rope))[0]) == pytest.approx(31.8, abs=DB)
    encoded = pow2.encode(latent, rope)
    assert sqnr_db(latent, pow2.decode(encoded)[0]) < 26.0
    assert encoded.counts["latent"].flushed_to_zero > 0


def test_a_large_rotated_key_at_scale_1_loses_its_peaks_and_in_bf16_does_not():
    rope = normal(4000, 64) * 238.0  # amax 924 in some 10,000 values
    flat = Flat576(MLA).encode(torch.zeros(4000, 512), rope)
    assert sqnr_db(rope, Flat576(MLA).decode(flat)[1]) == pytest.approx(17.7, abs=0.3)
    assert flat.counts["rope"].saturated / rope.numel() == pytest.approx(0.06, abs=0.003)
    kept = Ds656(MLA).encode(torch.zeros(4000, 512), rope)
    assert sqnr_db(rope, Ds656(MLA).decode(kept)[1]) > 50.0
    assert kept.counts["rope"].saturated == 0


def test_clipping_at_the_999th_permille_costs_about_seven_tenths_of_a_decibel():
    k = normal(2000, 4, 128)
    shape = CacheShape.gqa(kv_heads=4, head_dim=128)
    at_amax = GqaPerTensor(shape, k_scale=k.abs().max().item() / 448)
    clipped = GqaPerTensor(shape, k_scale=k.abs().flatten().quantile(0.999).item() / 448)
    full, cut = (sqnr_db(k, x.read_rows(x.write_rows(k, k))[0]) for x in (at_amax, clipped))
    assert full == pytest.approx(31.5, abs=DB)
    assert full - cut == pytest.approx(0.75, abs=0.15)


def test_a_scale_for_each_head_or_token_helps_exactly_where_one_for_all_does_not_fit():
    spread = torch.tensor([2e-4, 0.05, 1.0, 400.0])[None, :, None]
    k, v = normal(500, 4, 32) * spread, normal(500, 4, 24, seed=1) * spread
    amax = [(x.abs().amax(dim=(0, 2)) / 448).tolist() for x in (k, v)]
    one = GqaPerTensor(GQA, k_scale=max(amax[0]), v_scale=max(amax[1]))
    head = GqaPerHead(GQA, k_scales=amax[0], v_scales=amax[1])
    token = GqaPerHead(GQA, scales="token")
    read = {layout.name: layout.read_rows(layout.write_rows(k, v))[0] for layout in (one, head, token)}
    assert sqnr_db(k[:, 3], read["fp8_flat"][:, 3]) > 31.0
    assert sqnr_db(k[:, 0], read["fp8_flat"][:, 0]) < 1.0  # the small head is gone
    for name in ("fp8_per_head", "fp8_per_token_head"):
        assert all(sqnr_db(k[:, h], read[name][:, h]) > 31.0 for h in range(4))


# The wrong reader


def test_an_fp32_scale_read_as_e8m0_costs_19_decibels_and_a_power_of_two_costs_nothing():
    latent, rope = normal(4000, 512), normal(4000, 64, seed=1)
    exact = Ds656(MLA)
    encoded = exact.encode(latent, rope)
    assert sqnr_db(latent, exact.decode(encoded)[0]) == pytest.approx(31.8, abs=DB)
    misread = dict(encoded.values) | {"scale": read_as_e8m0(encoded.values["scale"])}
    assert sqnr_db(latent, exact.dequantize(misread)[0]) == pytest.approx(12.8, abs=DB)

    rounded = Ds656(MLA, scales="pow2").encode(latent, rope)
    assert torch.equal(read_as_e8m0(rounded.values["scale"]), rounded.values["scale"])


def test_another_layouts_rows_are_refused_by_their_length():
    latent, rope = tokens(MLA, n=2)
    (flat,) = Flat576(MLA).write_rows(latent, rope)
    with pytest.raises(ValueError, match=r"uint8 \[tokens, 656\], not torch.uint8 \[2, 576\]"):
        Ds656(MLA).read_rows((flat,))
    (tiles,) = Ds656(MLA).write_rows(latent, rope)
    with pytest.raises(ValueError, match="another layout wrote them"):
        Flat576(MLA).read_rows((tiles,))


def test_tokens_encoded_with_fp32_scales_are_not_decoded_as_powers_of_two():
    encoded = Ds656(MLA).encode(*tokens(MLA, n=2))
    with pytest.raises(ValueError, match="encoded as ds656 cannot be read as ds656_pow2"):
        Ds656(MLA, scales="pow2").decode(encoded)


# Refusals


def test_a_smaller_latent_is_one_tile_and_its_layout_says_so():
    layout = make_layout("ds656", TINY_MLA)
    assert (layout.name, layout.bytes_per_layer) == ("ds656_tile64", 64 + 4 + 2 * 32)
    assert make_layout("ds656_pow2", TINY_MLA).name == "ds656_pow2_tile64"


@pytest.mark.parametrize("rank", [192, 130])
def test_a_latent_that_tiles_do_not_divide_is_refused(rank):
    with pytest.raises(ValueError, match=f"the latent has {rank}: choose fp8_flat or bf16"):
        make_layout("ds656", CacheShape.mla(kv_lora_rank=rank))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"first_scales": [1.0] * 3, "second_scales": [1.0] * 4}, "k_scales has 3 scales for 4 KV heads"),
        ({"first_scales": [1.0] * 4, "second_scales": [1.0, 0.0, 1.0, 1.0]}, "v_scales must be positive"),
        ({"first_scales": [math.nan] * 4, "second_scales": [1.0] * 4}, "k_scales must be positive"),
    ],
)
def test_wrong_head_scales_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        make_layout("fp8_per_head", GQA, **kwargs)


def test_static_scales_must_be_given_and_token_scales_must_not():
    with pytest.raises(ValueError, match="static scales are given"):
        GqaPerHead(GQA)
    with pytest.raises(ValueError, match="those of tokens are not"):
        GqaPerHead(GQA, scales="token", k_scales=[1.0] * 4)


@LAYOUTS
def test_other_shapes_and_float64_are_refused(layout):
    first, second = tokens(layout.shape, n=2)
    with pytest.raises(ValueError, match=layout.shape.parts[0]):
        layout.write_rows(first[..., :-1], second)
    with pytest.raises(TypeError, match="float64"):
        layout.write_rows(first, second.double())


def test_an_unknown_layout_lists_the_known_ones():
    with pytest.raises(ValueError, match="'ds576': choose one of bf16, fp8_flat"):
        make_layout("ds576", MLA)

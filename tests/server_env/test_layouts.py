"""Layouts of the KV cache: bytes, round trips, and values that no cast should be trusted with."""

import math

import pytest
import torch
from layout_cases import GQA, HEAD_SCALES, LAYOUTS, MLA, TINY_MLA, normal, tokens

from equipoise.kernels.formats import E4M3FN
from equipoise.kernels.reference_formats import nearest_float8, sqnr_db
from equipoise.quant.geometry import BUILTIN, kv_bytes_per_token, kv_layouts_of
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
def test_bytes_agree_with_the_geometry_that_plans_capacity(model):
    geometry = BUILTIN[model]
    ones = [1.0] * (geometry.kv_heads or 1)
    for name in kv_layouts_of(geometry):
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

"""Paged reference attention against dense float64 attention written out here."""

import pytest
import torch

from equipoise.kernels.formats import FLOAT8_FORMATS, cast_float8
from equipoise.quant.sglang.attention import (
    MAX_ROWS_PER_GROUP,
    QUERY_BLOCK,
    attend_decode,
    attend_extend,
    plan_decode,
    read_rows,
)

# float32 products summed over at most 576 + 400 terms, probabilities that sum to 1, |v| about 1:
# sqrt(1000) * 2^-24 is 2e-6; ten times that for the exponential of scores of about 10.
TOLERANCE = 2e-5

GQA = {"heads": 6, "kv_heads": 2, "qk_head_dim": 32, "v_head_dim": 32}
MLA = {"heads": 4, "kv_heads": 1, "qk_head_dim": 576, "v_head_dim": 512}
POOL_DTYPES = ["bfloat16", *FLOAT8_FORMATS]


class Cache:
    """A pool with shuffled slots and NaN wherever no token lives."""

    def __init__(self, geometry, lengths, dtype, *, k_scale=1.0, v_scale=1.0, seed=0):
        self.g, self.lengths, self.k_scale, self.v_scale = geometry, lengths, k_scale, v_scale
        generator = torch.Generator().manual_seed(seed)
        mla = geometry["kv_heads"] == 1
        used, slots = sum(lengths), 2 * sum(lengths) + 1
        order = (torch.randperm(slots - 1, generator=generator) + 1)[:used]  # slot 0 is never used
        self.req_to_token = torch.full((len(lengths) + 3, max(lengths) + 7), 2**30, dtype=torch.int32)
        self.rows = torch.randperm(len(lengths) + 3, generator=generator)[: len(lengths)]
        self.slots = list(order.split(lengths))
        for row, mine in zip(self.rows, self.slots, strict=True):
            self.req_to_token[row, : len(mine)] = mine.int()
        k = torch.randn(used, geometry["kv_heads"], geometry["qk_head_dim"], generator=generator)
        v = torch.randn(used, geometry["kv_heads"], geometry["v_head_dim"], generator=generator)
        self.k_pool = self._pool(k, order, slots, dtype, k_scale)
        self.v_pool = None if mla else self._pool(v, order, slots, dtype, v_scale)

    @staticmethod
    def _pool(values, order, slots, dtype, scale):
        if dtype == "bfloat16":
            pool = torch.full((slots, *values.shape[1:]), float("nan"), dtype=torch.bfloat16)
            pool[order] = values.bfloat16()
            return pool
        codes = torch.full((slots, *values.shape[1:]), 0x7F, dtype=torch.uint8)  # NaN in both formats
        fmt = FLOAT8_FORMATS[dtype]
        codes[order] = cast_float8(values, fmt, scale=scale).view(torch.uint8)
        return codes.view(fmt.dtype)

    def dense(self, request):
        """This request's keys and values as stored, in float64, through torch's own conversion."""
        rows = self.slots[request]
        k = self.k_pool.float()[rows].double()
        fp8 = self.k_pool.dtype != torch.bfloat16
        k = k * self.k_scale if fp8 else k
        if self.v_pool is None:
            return k, k[..., : self.g["v_head_dim"]]
        v = self.v_pool.float()[rows].double()
        return k, v * self.v_scale if fp8 else v

    def read(self, slots):
        return read_rows(
            self.k_pool,
            self.v_pool,
            slots,
            v_head_dim=self.g["v_head_dim"],
            k_scale=self.k_scale,
            v_scale=self.v_scale,
        )


def dense_attention(q, k, v, scaling, first_position=None):
    """q [n, heads, d], k [length, kv_heads, d]; causal from ``first_position`` if given; float64."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("nhd,lhd->hnl", q.double(), k) * scaling
    if first_position is not None:
        position = torch.arange(first_position, first_position + len(q))
        scores = scores.masked_fill(torch.arange(len(k)) > position.unsqueeze(1), float("-inf"))
    return torch.einsum("hnl,lhd->nhd", scores.softmax(-1), v)


@pytest.mark.parametrize("dtype", POOL_DTYPES)
@pytest.mark.parametrize("geometry", [GQA, MLA], ids=["gqa", "mla"])
def test_decode_equals_dense_float64_for_mixed_lengths_in_shuffled_poisoned_slots(geometry, dtype):
    lengths = [1, 37, 200, 5, 199, 64, 63, 180, 2, 150, 90, 88]
    # Scales that are no powers of two, so that a forgotten or doubled one shows.
    cache = Cache(geometry, lengths, dtype, k_scale=0.37, v_scale=1.9)
    q = torch.randn(len(lengths), geometry["heads"], geometry["qk_head_dim"])
    scaling = geometry["qk_head_dim"] ** -0.5
    groups = plan_decode(cache.req_to_token, cache.rows, lengths)
    assert len(groups) > 1
    assert sorted(i for g in groups for i in g.requests.tolist()) == list(range(len(lengths)))
    for g in groups:
        out = attend_decode(q[g.requests], cache.read(g.slots), scaling=scaling, mask=g.mask)
        for i, got in zip(g.requests.tolist(), out, strict=True):
            expected = dense_attention(q[i : i + 1], *cache.dense(i), scaling)[0]
            assert (got.double() - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize("dtype", POOL_DTYPES)
@pytest.mark.parametrize("geometry", [GQA, MLA], ids=["gqa", "mla"])
@pytest.mark.parametrize("prefix", [0, 1, 70])
def test_extend_equals_dense_float64_with_and_without_a_cached_prefix(geometry, dtype, prefix):
    n = 2 * QUERY_BLOCK + 3  # two full blocks of queries and a rest
    cache = Cache(geometry, [prefix + n, 9], dtype, k_scale=0.37, v_scale=1.9)
    q = torch.randn(n, geometry["heads"], geometry["qk_head_dim"])
    scaling = geometry["qk_head_dim"] ** -0.5
    out = attend_extend(q, cache.read(cache.slots[0]), scaling=scaling)
    expected = dense_attention(q, *cache.dense(0), scaling, first_position=prefix)
    assert (out.double() - expected).abs().max() < TOLERANCE


def test_extend_of_one_token_equals_decode():
    cache = Cache(GQA, [33], "fp8_e4m3", k_scale=0.5, v_scale=2.0)
    q = torch.randn(1, GQA["heads"], GQA["qk_head_dim"])
    rows = cache.read(cache.slots[0])
    extend = attend_extend(q, rows, scaling=0.2)
    decode = attend_decode(q, cache.read(cache.slots[0].unsqueeze(0)), scaling=0.2)
    torch.testing.assert_close(extend, decode, atol=TOLERANCE, rtol=0)


def test_without_causality_every_query_sees_every_key():
    cache = Cache(GQA, [QUERY_BLOCK + 9], "bfloat16")
    q = torch.randn(QUERY_BLOCK + 9, GQA["heads"], GQA["qk_head_dim"])
    out = attend_extend(q, cache.read(cache.slots[0]), scaling=0.2, causal=False)
    assert (out.double() - dense_attention(q, *cache.dense(0), 0.2)).abs().max() < TOLERANCE


@pytest.mark.parametrize("forgotten", ["k_scale", "v_scale"])
def test_a_forgotten_scale_would_be_seen(forgotten):
    cache = Cache(GQA, [50], "fp8_e4m3", k_scale=0.37, v_scale=1.9)
    q = torch.randn(1, GQA["heads"], GQA["qk_head_dim"])
    expected = dense_attention(q, *cache.dense(0), 0.2)
    setattr(cache, forgotten, 1.0)
    out = attend_extend(q, cache.read(cache.slots[0]), scaling=0.2)
    assert (out.double() - expected).abs().max() > 100 * TOLERANCE


def test_a_nan_in_a_slot_that_is_used_is_not_hidden():
    cache = Cache(GQA, [20], "fp8_e4m3")
    cache.v_pool.view(torch.uint8)[cache.slots[0][3]] = 0x7F
    q = torch.randn(1, GQA["heads"], GQA["qk_head_dim"])
    assert attend_extend(q, cache.read(cache.slots[0]), scaling=0.2).isnan().all()


def test_groups_bound_the_rows_gathered_at_once():
    lengths = [3000] * 12
    table = torch.arange(3000, dtype=torch.int32).repeat(12, 1)
    groups = plan_decode(table, torch.arange(12), lengths)
    assert max(g.slots.numel() for g in groups) <= MAX_ROWS_PER_GROUP
    assert sum(g.requests.numel() for g in groups) == 12

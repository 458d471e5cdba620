"""A layout in SGLang's pool: slots keep their tokens, the rest stays unread, and misfits are refused."""

import json
from types import SimpleNamespace

import pytest
import torch

from equipoise.kernels.formats import E4M3FN, cast_float8
from equipoise.quant.kv_layouts import HEAD_AMAX_FILE
from equipoise.quant.layouts import CacheShape, Flat576, make_layout
from equipoise.quant.sglang.attention import read_rows
from equipoise.quant.sglang.layout_pool import LayoutPool, load_head_scales

SLOTS, LAYERS = 40, 2
MLA = CacheShape.mla()
GQA = CacheShape.gqa(kv_heads=2, head_dim=16, v_head_dim=8)
AMAX = {"layers": [{"k": [4.48, 8.96], "v": [44.8, 448.0]}, {"k": [1.0, 2.0], "v": [3.0, 4.0]}]}


def mla_pool() -> SimpleNamespace:
    return SimpleNamespace(
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        start_layer=3,
        layer_num=LAYERS,
        kv_buffer=[torch.zeros(SLOTS, 1, 576, dtype=torch.uint8) for _ in range(LAYERS)],
    )


def gqa_pool() -> SimpleNamespace:
    return SimpleNamespace(
        head_num=2,
        head_dim=16,
        v_head_dim=8,
        start_layer=0,
        layer_num=LAYERS,
        k_buffer=[torch.zeros(SLOTS, 2, 16, dtype=torch.uint8) for _ in range(LAYERS)],
        v_buffer=[torch.zeros(SLOTS, 2, 8, dtype=torch.uint8) for _ in range(LAYERS)],
    )


def open_pool(name: str, folder) -> LayoutPool:
    mla = name.startswith("ds")
    return LayoutPool(
        name, mla_pool() if mla else gqa_pool(), mla=mla, model_path=str(folder), num_layers=LAYERS
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / HEAD_AMAX_FILE).write_text(json.dumps(AMAX))
    return tmp_path


@pytest.mark.parametrize("name", ["ds656", "ds656_pow2", "fp8_per_head", "fp8_per_token_head"])
def test_tokens_written_to_shuffled_slots_are_read_back_and_nothing_else_is(name, folder):
    opened = open_pool(name, folder)
    shape = opened.shape
    for layer in opened.buffers:
        for rows in layer:
            rows.fill_(0x7F)  # NaN wherever it is read
    generator = torch.Generator().manual_seed(0)
    slots = torch.randperm(SLOTS, generator=generator)[:12]
    first = torch.randn(12, *shape.first, generator=generator).bfloat16()
    second = torch.randn(12, *shape.second, generator=generator).bfloat16()
    # As SGLang hands them over: MLA's row in one piece, GQA's heads apart.
    k, v = (torch.cat([first, second], dim=1)[:, None], None) if opened.mla else (first, second)
    layer_id = opened.pool.start_layer + 1
    opened.write(layer_id, slots, k, first if v is None else v)

    scales = [x for x in load_head_scales(str(folder), num_layers=2, kv_heads=2)[1]]
    layout = make_layout(name, shape, first_scales=scales[0], second_scales=scales[1])
    expected = layout.read_rows(layout.write_rows(first, second))
    asked = torch.tensor([[3, 0, 7], [11, 11, 5]])
    got = opened.read(layer_id, slots[asked])
    if opened.mla:
        assert torch.equal(got.k[..., 0, :512], expected[0][asked])
        assert torch.equal(got.k[..., 0, 512:], expected[1][asked])
        assert torch.equal(got.v, got.k[..., :512])
    else:
        assert torch.equal(got.k, expected[0][asked])
        assert torch.equal(got.v, expected[1][asked])
    unused = [i for i in range(SLOTS) if i not in slots.tolist()]
    for rows in opened.buffers[1]:
        assert (rows[unused] == 0x7F).all()
    assert all((rows == 0x7F).all() for rows in opened.buffers[0])  # the other layer


def test_the_pools_own_buffers_become_the_layouts_bytes(folder):
    latent, heads = open_pool("ds656", folder), open_pool("fp8_per_token_head", folder)
    assert [b.shape for b in latent.pool.kv_buffer] == [(SLOTS, 656)] * LAYERS
    assert [b.shape for b in heads.pool.k_buffer] == [(SLOTS, 2 * 16 + 2 * 4)] * LAYERS
    assert [b.shape for b in heads.pool.v_buffer] == [(SLOTS, 2 * 8 + 2 * 4)] * LAYERS
    assert latent.describe() == "KV LAYOUT ds656: 656 bytes a token and layer, 40 slots, 2 layers"


def test_flat_rows_read_what_the_servers_plain_fp8_pool_reads():
    row = (torch.randn(9, 576, generator=torch.Generator().manual_seed(1)) * 200).bfloat16()
    plain = read_rows(
        cast_float8(row, E4M3FN)[:, None], None, torch.arange(9), v_head_dim=512, k_scale=1.0, v_scale=1.0
    )
    layout = Flat576(MLA)
    latent, rope = layout.read_rows(layout.write_rows(row[:, :512], row[:, 512:]))
    assert torch.equal(plain.k[:, 0], torch.cat([latent, rope], dim=1))


def test_each_layer_gets_its_own_head_scales(folder):
    scales = load_head_scales(str(folder), num_layers=2, kv_heads=2)
    assert scales[0][0] == pytest.approx([0.01, 0.02])
    assert scales[0][1] == pytest.approx([0.1, 1.0])
    opened = open_pool("fp8_per_head", folder)
    k = torch.full((1, 2, 16), 100.0)  # beyond every amax of K: what is read is the amax
    for layer, amax in enumerate(AMAX["layers"]):
        opened.write(layer, torch.tensor([5]), k, torch.ones(1, 2, 8))
        got = opened.read(layer, torch.tensor([5])).k
        assert got[0, :, 0].tolist() == pytest.approx(amax["k"], rel=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"kv_head_amax\.json is missing.*fp8_per_token_head needs no calibration"),
        ("{", "malformed"),
        ('{"layers": [{"k": 1.0, "v": 2.0}]}', "malformed"),
        ('{"layers": [{"k": [1.0, 1.0], "v": [1.0, 1.0]}]}', "not of this model .2 layers of 2 KV heads"),
        (json.dumps({"layers": [{"k": [1.0], "v": [1.0]}] * 2}), "not of this model"),
        (json.dumps({"layers": [{"k": [1.0, 0.0], "v": [1.0, 1.0]}] * 2}), "positive and finite"),
    ],
)
def test_a_missing_or_wrong_head_calibration_is_refused(text, message, tmp_path):
    if text is not None:
        (tmp_path / HEAD_AMAX_FILE).write_text(text)
    with pytest.raises(ValueError, match=message):
        open_pool("fp8_per_head", tmp_path)


def test_a_layout_of_the_other_attention_is_refused_with_those_that_fit(tmp_path):
    with pytest.raises(ValueError, match=r"--kv-layout ds656: .*choose fp8_e4m3, fp8_per_head"):
        LayoutPool("ds656", gqa_pool(), mla=False, model_path=str(tmp_path), num_layers=2)
    with pytest.raises(ValueError, match=r"--kv-layout fp8_per_head: .*choose fp8_e4m3, fp8_ds656"):
        LayoutPool("fp8_per_head", mla_pool(), mla=True, model_path=str(tmp_path), num_layers=2)

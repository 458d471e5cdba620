"""What is seen and replaced is what a server caches, for every architecture."""

import gc
import random
from pathlib import Path

import pytest
import torch
from calibration_cases import MODELS, sequences
from tiny_models import VOCAB, Reference, make_checkpoint, store_fp8

from equipoise.evals.errors import CheckpointError, EquipoiseError, UsageError
from equipoise.quant.calibration.attention import attention_errors, attention_scales
from equipoise.quant.calibration.cache import bf16_stores, last_hidden_states, store_of
from equipoise.quant.calibration.divergence import divergences, first_sequences
from equipoise.quant.calibration.model import CalibrationModel, load_model
from equipoise.quant.calibration.observe import observe
from equipoise.quant.calibration.prompts import TokenSequences
from equipoise.quant.layouts import make_layout
from equipoise.tasks.embedded.checkpoint import load_model as load_fast


def random_tokens(n: int) -> list[int]:
    return random.Random(n).choices(range(3, VOCAB - 1), k=n)


def one(*ids: int) -> TokenSequences:
    return TokenSequences(sequences=(ids,), where=("here",), truncated=0, too_short=0)


@pytest.fixture(scope="module", params=["glm_tiny", "kimi_tiny"])
def embedded(request: pytest.FixtureRequest) -> CalibrationModel:
    return load_model(MODELS / request.param)


@pytest.mark.parametrize("name", ["glm_tiny", "kimi_tiny"])
@torch.no_grad()
def test_observed_values_are_those_that_another_implementation_caches(name: str) -> None:
    """K after RoPE, the latent after its norm, the RoPE key apart: as our own training code has them."""
    model, data = load_model(MODELS / name), sequences(1)
    seen = observe(model, data, sink_tokens=3, per_head=True)
    fast = load_fast(MODELS / name)
    cached: dict[tuple[int, str], list[torch.Tensor]] = {}

    def keep(layer: int, part: str, x: torch.Tensor) -> torch.Tensor:
        rounded = x.bfloat16().float()
        cached.setdefault((layer, part), []).append(rounded[0].transpose(0, 1))  # [time, heads, dim]
        return rounded

    fast.set_on_cache(keep)
    for ids in data.sequences:
        fast(torch.tensor([ids]))
    assert set(cached) == {(i, part) for i in range(3) for part in model.shape.parts}
    for (layer, part), batches in cached.items():
        found = seen[layer].parts[part]
        for got, rows in (
            (found.sinks, torch.cat([x[:3] for x in batches])),
            (found.rest, torch.cat([x[3:] for x in batches])),
        ):
            assert got.rows == rows.shape[0] * rows.shape[1]
            assert got.zero_rows == 0
            for group, expected in enumerate(rows.abs().transpose(0, 1).flatten(1)):  # [heads, values]
                values, counts = got.support(group)
                every = values.repeat_interleave(counts.long())
                # Float32 noise of 1e-5 moves a value over an edge of BF16's grid now and then.
                torch.testing.assert_close(every, expected.sort().values, rtol=2**-7, atol=1e-4)
                assert got.amax()[group] == every[-1]


def test_k_before_rope_would_have_another_amax() -> None:
    """So the oracle above can tell; sinks, whose first token is not turned, stay nearer."""
    model, data = load_model(MODELS / "glm_tiny"), sequences(1)
    before: list[torch.Tensor] = []
    hook = model.attention[0].k_norm.register_forward_hook(
        lambda m, args, out: before.append(out.abs().amax())
    )
    found = observe(model, data, sink_tokens=0, per_head=False)[0].parts["k"]
    hook.remove()
    unrotated = float(torch.stack(before).amax())
    assert abs(found.rest.amax()[0] / unrotated - 1) > 0.01


@pytest.mark.parametrize("architecture", ["llama", "glm", "kimi"])
@torch.no_grad()
def test_the_model_reads_what_the_cache_returns(architecture: str, tmp_path: Path) -> None:
    """Against a reference that was written for the server's tests; its kimi has model_type kimi_k2."""
    folder = make_checkpoint(architecture, tmp_path / "m")
    model, reference = load_model(folder), Reference(folder, architecture)
    assert model.causal_lm.dtype == torch.float32
    ids = random_tokens(60)
    scales = [(0.01 * (i + 1), 0.02) for i in range(3)]
    mla = architecture == "kimi"
    stores = [
        store_of(make_layout("fp8_flat", model.shape, first_scales=[1.0 if mla else k], second_scales=[v]))
        for k, v in scales
    ]
    logits = model.causal_lm.lm_head(last_hidden_states(model, ids, stores))
    got = logits[:-1].log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[:, 0]
    expected = reference.logprobs(ids, store_fp8(torch.float8_e4m3fn, None if mla else scales))
    other = reference.logprobs(ids, lambda layer, which, x: x.bfloat16().float())
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-4)
    assert (got - other).abs().mean() > 20 * (got - expected).abs().mean()


def test_an_unquantized_cache_loses_nothing(embedded: CalibrationModel) -> None:
    data, exact = sequences(1), bf16_stores(embedded)
    (kl,) = divergences(embedded, data, [exact])
    assert (kl.mean_nats, kl.max_nats, kl.top1_changed) == (0.0, 0.0, 0)
    errors = attention_errors(embedded, data, [[store] for store in exact])
    assert [layer[0][0].noise for layer in errors] == [0.0] * 3


@torch.no_grad()
def test_attention_error_is_that_of_a_layer_computed_alone(embedded: CalibrationModel) -> None:
    """Recomputed here from the attention module's own inputs, in a pass of its own."""
    data = one(*sequences(1).sequences[0])
    store = store_of(make_layout("fp8_flat", embedded.shape))
    outputs: list[list[torch.Tensor]] = []
    for stores in (bf16_stores(embedded), [store, *bf16_stores(embedded)[1:]]):
        kept: list[torch.Tensor] = []
        hook = embedded.attention[0].o_proj.register_forward_pre_hook(
            lambda module, args, kept=kept: kept.append(args[0])
        )
        last_hidden_states(embedded, data.sequences[0], stores)
        hook.remove()
        outputs.append(kept)
    (exact,), (stored,) = outputs
    expected = ((exact - stored).norm() / exact.norm()).item()
    errors = attention_errors(embedded, data, [[store], [], []])
    assert errors[0][0][0].relative_error == pytest.approx(expected, rel=1e-5)
    heads = attention_errors(embedded, data, [[store], [], []], groups=2)[0][0]
    for got, a, b in zip(heads, exact.chunk(2, -1), stored.chunk(2, -1), strict=True):
        assert got.relative_error == pytest.approx(((a - b).norm() / a.norm()).item(), rel=1e-5)


def test_hooks_are_gone_after_a_pass(embedded: CalibrationModel) -> None:
    store = store_of(make_layout("fp8_flat", embedded.shape))
    attention_errors(embedded, one(1, 20, 21), [[store]] * 3)
    for module in embedded.attention:
        assert not module._forward_hooks and not module.o_proj._forward_pre_hooks


def test_the_attention_method_finds_the_scale_with_the_least_error() -> None:
    model, data = load_model(MODELS / "glm_tiny"), sequences(1)
    seen = observe(model, data, sink_tokens=0, per_head=False)
    amax = [[layer.parts[p].everything.amax() for p in ("k", "v")] for layer in seen]
    chosen = attention_scales(model, data, amax)

    def errors(layer: int, k: float, v: float) -> float:
        store = store_of(make_layout("fp8_flat", model.shape, first_scales=[k], second_scales=[v]))
        candidates = [[store] if i == layer else [] for i in range(3)]
        return attention_errors(model, data, candidates)[layer][0][0].noise

    for layer, (k, v) in enumerate(chosen):
        at_one = errors(layer, 1.0, 1.0)
        far_too_small = errors(layer, k[0] / 64, v[0] / 64)
        assert errors(layer, k[0], v[0]) <= at_one * 1.02  # chosen apart: they add up nearly
        assert errors(layer, k[0], v[0]) < 0.2 * far_too_small


def test_values_that_overflow_are_an_error_that_names_layer_and_prompt(tmp_path: Path) -> None:
    model = load_model(MODELS / "glm_tiny")
    model.attention[1].k_norm.weight.data.fill_(float("inf"))
    with pytest.raises(EquipoiseError, match=r"layer 1: .* values of k are infinite or NaN at here"):
        observe(model, one(1, 20, 21), sink_tokens=1, per_head=False)


def test_pickles_and_quantized_weights_are_refused(tmp_path: Path) -> None:
    from tiny_models import edit_config

    folder = make_checkpoint("llama", tmp_path / "m")
    edit_config(folder, {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})
    with pytest.raises(UsageError, match=r"quantized weights \(fp8\).*dequantize"):
        load_model(folder)
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text((folder / "config.json").read_text())
    (pickled / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(CheckpointError, match="pickles"):
        load_model(pickled)


@torch.no_grad()
def test_a_dsa_model_is_seen_with_its_indexer_left_as_it_is(tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.GlmMoeDsaConfig(
        vocab_size=128, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, q_lora_rank=96, kv_lora_rank=128, qk_nope_head_dim=32, qk_rope_head_dim=32,
        v_head_dim=32, moe_intermediate_size=64, n_routed_experts=4, n_shared_experts=1,
        num_experts_per_tok=2, first_k_dense_replace=1, n_group=1, topk_group=1, index_topk=16,
        index_n_heads=2, index_head_dim=128, max_position_embeddings=512,
        mlp_layer_types=["dense", "sparse", "sparse"], indexer_types=["full", "full", "full"],
    )  # fmt: skip
    folder = tmp_path / "dsa"
    transformers.GlmMoeDsaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    model = load_model(folder)
    assert (model.geometry.attention, model.shape.attention) == ("dsa", "mla")
    data = one(*random_tokens(60))
    exact = bf16_stores(model)
    assert divergences(model, data, [exact])[0].mean_nats == 0.0
    store = store_of(make_layout("ds656", model.shape))
    errors = attention_errors(model, data, [[store, exact[0]]] * 3)
    assert all(layer[1][0].noise == 0.0 < layer[0][0].noise for layer in errors)


def test_more_prompts_keep_no_more_memory() -> None:
    """What is alive after the passes is the model and the histograms, however much was run."""
    model, data = load_model(MODELS / "glm_tiny"), sequences(2)

    def alive_bytes(prompts: int) -> int:
        some = first_sequences(data, prompts)
        seen = observe(model, some, sink_tokens=4, per_head=True)
        store = store_of(make_layout("fp8_flat", model.shape))
        attention_errors(model, some, [[store]] * 3)
        divergences(model, some, [[store] * 3])
        gc.collect()
        assert sum(found.rest.rows for layer in seen for found in layer.parts.values()) > 0
        return sum(x.nbytes for x in gc.get_objects() if type(x) is torch.Tensor)

    alive_bytes(1)
    assert alive_bytes(12) == alive_bytes(1)

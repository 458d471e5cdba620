"""What is converted and what stays, on the real tensor names of the production models; no torch needed."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from published_configs import GLM_46, GLM_47_FLASH, GLM_52, KIMI_K26, LLAMA_31_8B, QWEN3_30B_A3B

from equipoise.evals.cli import app
from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.checkpoint import Checkpoint, TensorInfo
from equipoise.quant.weights.configs import hf_quant_config, quantization_config
from equipoise.quant.weights.names import FORMAT_NAMES, QUANTIZED_FORMATS
from equipoise.quant.weights.selection import Selection, check_against_config, matches, merged_with, select

MLA = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
GQA = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def tensor_names(
    config: dict[str, Any], *, prefix: str = "model", head: str = "lm_head"
) -> Iterable[tuple[str, int]]:
    """(name, rank) of every tensor, two experts a layer, as the released checkpoints name them."""
    text = config.get("text_config", config)
    layers, mtp = text["num_hidden_layers"], text.get("num_nextn_predict_layers", 0)
    moe = "n_routed_experts" in text or "num_experts" in text
    mla = "kv_lora_rank" in text
    yield f"{prefix}.embed_tokens.weight", 2
    yield f"{prefix}.norm.weight", 1
    if not text.get("tie_word_embeddings"):
        yield f"{head}.weight", 2
    for layer in range(layers + mtp):
        base = f"{prefix}.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{base}.{norm}.weight", 1
        for name in MLA if mla else GQA:
            yield f"{base}.self_attn.{name}.weight", 2
            if not mla and name != "o_proj":
                yield f"{base}.self_attn.{name}.bias", 1
        if text["model_type"] == "glm_moe_dsa":
            for name, rank in (("wq_b", 2), ("wk", 2), ("weights_proj", 2), ("k_norm", 1)):
                yield f"{base}.self_attn.indexer.{name}.weight", rank
        if moe and layer >= text.get("first_k_dense_replace", 0):
            yield f"{base}.mlp.gate.weight", 2
            yield f"{base}.mlp.gate.e_score_correction_bias", 1
            for name in MLP:
                if text.get("n_shared_experts"):
                    yield f"{base}.mlp.shared_experts.{name}.weight", 2
                for expert in range(text.get("n_routed_experts") or text["num_experts"]):
                    yield f"{base}.mlp.experts.{expert}.{name}.weight", 2
        else:
            for name in MLP:
                yield f"{base}.mlp.{name}.weight", 2
        if layer >= layers:
            for name, rank in (
                ("eh_proj", 2),
                ("shared_head.head", 2),
                ("embed_tokens", 2),
                ("enorm", 1),
                ("hnorm", 1),
            ):
                yield f"{base}.{name}.weight", rank
            yield f"{base}.shared_head.norm.weight", 1
    if "vision_config" in config:
        for layer in range(2):
            yield f"vision_tower.encoder.blocks.{layer}.wqkv.weight", 2
            yield f"vision_tower.encoder.blocks.{layer}.mlp.fc0.weight", 2
        yield "vision_tower.patch_embed.pos_emb.weight", 3
        yield "mm_projector.proj.0.weight", 2


def checkpoint_of(config: dict[str, Any], **names: str) -> Checkpoint:
    text = config.get("text_config", config)
    few = {**text, **({"n_routed_experts": 2} if "n_routed_experts" in text else {})}
    few |= {"num_experts": 2} if "num_experts" in text else {}
    few.pop("quantization_config", None)
    config = {**config, "text_config": few} if "text_config" in config else few
    shapes = {1: (64,), 2: (128, 128), 3: (4, 4, 4)}
    table = (few.get("vocab_size"), few.get("hidden_size"))
    tensors = {}
    for name, rank in tensor_names(config, **names):
        is_table = name.endswith(("embed_tokens.weight", "lm_head.weight"))
        shape = table if is_table else shapes[rank]
        tensors[name] = TensorInfo(dtype="BF16", shape=shape, shard="s", begin=0, end=0)
    return Checkpoint(path=Path("checkpoint"), config=config, shards={}, tensors=tensors, has_index=True)


MODELS: dict[str, Checkpoint] = {
    "kimi-k2.6": checkpoint_of(KIMI_K26, prefix="language_model.model", head="language_model.lm_head"),
    "glm-4.6": checkpoint_of(GLM_46),
    "glm-4.7-flash": checkpoint_of(GLM_47_FLASH),
    "glm-5.2": checkpoint_of(GLM_52),
    "llama-3.1-8b": checkpoint_of(LLAMA_31_8B),
    "qwen3-30b-a3b": checkpoint_of(QWEN3_30B_A3B),
}


def has(selection: Selection, *fragments: str) -> bool:
    return any(all(f in name for f in fragments) for name in selection.converted)


@pytest.mark.parametrize("format_name", QUANTIZED_FORMATS)
@pytest.mark.parametrize("model", MODELS)
def test_every_family_has_rules_that_match_its_names_and_heads_stay(model: str, format_name: str) -> None:
    checkpoint = MODELS[model]
    check_against_config(checkpoint)
    selection = select(checkpoint, format_name)
    assert not has(selection, "lm_head") and not has(selection, "embed_tokens") and not has(selection, "norm")
    assert (
        not has(selection, "mlp.gate.weight")
        and not has(selection, "vision")
        and not has(selection, "mm_projector")
    )
    assert (
        not has(selection, "weights_proj")
        and not has(selection, "eh_proj")
        and not has(selection, "shared_head")
    )
    matrices = {n for n, i in checkpoint.tensors.items() if len(i.shape) == 2 and "embed_tokens" not in n}
    assert {*selection.converted, *(m + ".weight" for m in selection.kept)} == matrices


@pytest.mark.parametrize("format_name", ["fp8-block", "fp8-channel", "mxfp8"])
def test_eight_bit_formats_convert_attention_experts_and_the_indexer_s_projections(format_name: str) -> None:
    glm5 = select(MODELS["glm-5.2"], format_name)
    for fragments in (
        ("kv_b_proj",),
        ("shared_experts",),
        ("experts.1.",),
        ("indexer.wk",),
        ("indexer.wq_b",),
    ):
        assert has(glm5, *fragments), fragments
    assert has(select(MODELS["kimi-k2.6"], format_name), "kv_a_proj_with_mqa")
    assert has(select(MODELS["llama-3.1-8b"], format_name), "k_proj")


@pytest.mark.parametrize("format_name", ["int4-g32", "mxfp4"])
def test_four_bit_formats_convert_routed_experts_alone_as_kimi_does(format_name: str) -> None:
    for model in ("kimi-k2.6", "glm-4.6", "glm-4.7-flash", "glm-5.2"):
        assert all(".mlp.experts." in name for name in select(MODELS[model], format_name).converted), model
    assert has(select(MODELS["llama-3.1-8b"], format_name), "self_attn.q_proj")  # no experts: every layer


def test_the_mtp_layer_is_converted_but_for_nvfp4_where_sglang_runs_it_unquantized() -> None:
    for format_name in QUANTIZED_FORMATS:
        converted = has(select(MODELS["glm-4.6"], format_name), "layers.92.mlp.experts.0.")
        assert converted is (format_name != "nvfp4"), format_name


def test_int4_configs_say_it_as_kimi_s_own_does() -> None:
    config = quantization_config("int4-g32", select(MODELS["kimi-k2.6"], "int4-g32"))
    assert config["quant_method"] == "compressed-tensors" and config["format"] == "pack-quantized"
    weights = config["config_groups"]["group_0"]["weights"]
    assert (weights["num_bits"], weights["group_size"], weights["symmetric"]) == (4, 32, True)
    for module in (
        "language_model.model.layers.3.self_attn.q_a_proj",
        "language_model.model.layers.3.mlp.shared_experts.up_proj",
        "language_model.model.layers.0.mlp.gate_proj",
        "language_model.lm_head",
        "vision_tower.encoder.blocks.1.mlp.fc0",
        "mm_projector.proj.0",
    ):
        assert any(matches(entry, module) for entry in config["ignore"]), module
    expert = "language_model.model.layers.3.mlp.experts.17.up_proj"
    assert not any(matches(entry, expert) for entry in config["ignore"])
    assert "re:.*self_attn.*" in config["ignore"]


def test_modelopt_configs_exclude_fused_attention_and_the_whole_mtp_layer() -> None:
    selection = select(MODELS["glm-4.6"], "nvfp4")
    config, own_file = quantization_config("nvfp4", selection), hf_quant_config("nvfp4", selection)
    assert own_file is not None
    excluded = own_file["quantization"]["exclude_modules"]
    assert config["ignore"] == excluded
    assert {"lm_head", "model.layers.5.self_attn*", "model.layers.5.mlp.gate", "model.layers.92*"} <= set(
        excluded
    )
    assert own_file["quantization"]["group_size"] == 16
    assert all(hf_quant_config(f, selection) is None for f in QUANTIZED_FORMATS if f != "nvfp4")


def test_block_configs_list_names_and_no_name_is_a_prefix_of_a_converted_one() -> None:
    """transformers matches the start of a name, SGLang a path: neither may swallow its neighbours."""
    for model, checkpoint in MODELS.items():
        selection = select(checkpoint, "fp8-block")
        config = quantization_config("fp8-block", selection)
        assert config["weight_block_size"] == [128, 128] and config["activation_scheme"] == "dynamic"
        kept = config["modules_to_not_convert"]
        assert not any(name.startswith(k) for name in selection.converted for k in kept), model


def test_a_pattern_of_the_user_keeps_more_and_must_match() -> None:
    checkpoint = MODELS["glm-4.7-flash"]
    selection = select(checkpoint, "fp8-block", ["kv_b_proj", r"re:.*layers\.3\.mlp.*"])
    assert (
        not has(selection, "kv_b_proj")
        and not has(selection, "layers.3.mlp")
        and has(selection, "layers.30.mlp")
    )
    assert selection.kept["model.layers.0.self_attn.kv_b_proj"] == "asked for"
    with pytest.raises(UsageError, match=r"kv_c_proj.*matches no linear layer"):
        select(checkpoint, "fp8-block", ["kv_c_proj"])
    with pytest.raises(UsageError, match="no regular expression"):
        select(checkpoint, "fp8-block", ["re:("])
    with pytest.raises(UsageError, match="nothing to convert"):
        select(checkpoint, "fp8-block", ["re:.*"])


def without(checkpoint: Checkpoint, fragment: str) -> Checkpoint:
    tensors = {n: i for n, i in checkpoint.tensors.items() if fragment not in n}
    return Checkpoint(
        path=checkpoint.path, config=checkpoint.config, shards={}, tensors=tensors, has_index=True
    )


def with_tensor(checkpoint: Checkpoint, name: str, dtype: str, shape: tuple[int, ...]) -> Checkpoint:
    info = TensorInfo(dtype=dtype, shape=shape, shard="s", begin=0, end=0)
    tensors = {**checkpoint.tensors, name: info}
    return Checkpoint(
        path=checkpoint.path, config=checkpoint.config, shards={}, tensors=tensors, has_index=True
    )


def test_a_rule_that_matches_nothing_is_an_error() -> None:
    glm5 = MODELS["glm-5.2"]
    for fragment, why in (
        ("weights_proj", "indexer"),
        ("lm_head", "output head"),
        ("eh_proj", "MTP"),
        ("mlp.gate.", "router"),
    ):
        with pytest.raises(CheckpointError, match=why):
            select(without(glm5, fragment), "fp8-block")
    with pytest.raises(CheckpointError, match="shared experts"):
        select(without(glm5, "shared_experts"), "int4-g32")


def test_what_is_unknown_quantized_already_or_fused_is_an_error() -> None:
    llama = MODELS["llama-3.1-8b"]
    with pytest.raises(CheckpointError, match=r"layers\.0\.adapter\.weight.*--ignore"):
        select(with_tensor(llama, "model.layers.0.adapter.weight", "BF16", (8, 8)), "fp8-block")
    select(with_tensor(llama, "model.layers.0.adapter.weight", "BF16", (8, 8)), "fp8-block", ["adapter"])
    with pytest.raises(CheckpointError, match="quantized already"):
        select(with_tensor(llama, "model.layers.0.mlp.up_proj.weight", "F8_E4M3", (8, 8)), "fp8-block")
    with pytest.raises(CheckpointError, match="quantized already"):
        select(with_tensor(llama, "model.layers.0.mlp.up_proj.weight_packed", "I32", (8, 8)), "int4-g32")
    with pytest.raises(CheckpointError, match="all experts in one tensor"):
        select(with_tensor(llama, "model.layers.0.mlp.experts.gate_up_proj", "BF16", (8, 8, 8)), "fp8-block")
    stranger = Checkpoint(
        path=Path("x"), config={"model_type": "mamba"}, shards={}, tensors=llama.tensors, has_index=True
    )
    with pytest.raises(CheckpointError, match="'mamba' has no rules"):
        select(stranger, "fp8-block")


def test_a_config_that_contradicts_its_tensors_is_an_error() -> None:
    glm = MODELS["glm-4.6"]
    for change, key in (
        ({"num_hidden_layers": 91}, "num_hidden_layers"),
        ({"num_nextn_predict_layers": 0}, "num_hidden_layers"),
        ({"num_nextn_predict_layers": 2}, "num_nextn_predict_layers"),
        ({"n_routed_experts": 3}, "number of experts"),
        ({"vocab_size": 5}, "vocab_size"),
        ({"num_hidden_layers": "many"}, "not a count"),
    ):
        config = {**glm.config, **change}
        bad = Checkpoint(path=glm.path, config=config, shards={}, tensors=glm.tensors, has_index=True)
        with pytest.raises(CheckpointError, match=key):
            check_against_config(bad)
    with pytest.raises(CheckpointError, match="layer 7 has no tensors"):
        check_against_config(without(glm, "layers.7."))
    with pytest.raises(CheckpointError, match="layer 9 has 1"):
        check_against_config(without(glm, "layers.9.mlp.experts.1."))


def test_patterns_match_as_compressed_tensors_and_sglang_match() -> None:
    assert matches("lm_head", "language_model.lm_head") and not matches("lm_head", "my_lm_head")
    assert matches(r"re:.*gate$", "a.mlp.gate") and not matches(r"re:gate$", "a.mlp.gate")  # from the start
    assert not matches("model.layers.1", "model.layers.1.mlp.up_proj")  # a parent keeps nothing


def test_merged_projections_are_named_with_their_siblings() -> None:
    assert merged_with("a.k_proj") == ("a.q_proj", "a.k_proj", "a.v_proj")
    assert merged_with("e.3.up_proj") == ("e.3.gate_proj", "e.3.up_proj")
    assert merged_with("a.down_proj") == ("a.down_proj",)


def test_without_torch_the_commands_say_what_to_install(tmp_path: Path) -> None:
    pytest.importorskip("click")
    try:
        import torch  # noqa: F401
    except ImportError:
        result = CliRunner().invoke(
            app.main, ["quant", "convert", "a", str(tmp_path / "b"), "--format", FORMAT_NAMES[0]]
        )
        assert result.exit_code == 2 and "equipoise[quant]" in result.output
    else:
        pytest.skip("torch is installed here")

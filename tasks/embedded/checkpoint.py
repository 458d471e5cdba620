"""Read and write the embedded models as Hugging Face checkpoints that transformers and SGLang load.

Written without transformers: weights by safetensors, tokenizer by tokenizers, the rest is JSON.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from equipoise.tasks.embedded.architecture import FastModel, Shape
from equipoise.tasks.embedded.tokenizer import (
    BOS_ID,
    CHAT_TEMPLATE,
    EOS_ID,
    PAD_ID,
    SPECIAL_TOKENS,
    UNK_ID,
    VOCABULARY,
)

__all__ = ["build_tokenizer", "config_of", "load_model", "write_checkpoint"]

MAX_POSITIONS = 4096


def config_of(shape: Shape) -> dict[str, Any]:
    """``config.json`` of a shape, with the keys SGLang reads and transformers 5 no longer writes."""
    config: dict[str, Any] = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "hidden_act": "silu",
        "intermediate_size": shape.intermediate_size,
        "moe_intermediate_size": shape.moe_intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "n_shared_experts": shape.num_shared_experts,
        "n_routed_experts": shape.num_experts,
        "num_experts_per_tok": shape.experts_per_token,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "first_k_dense_replace": 1,
        "rms_norm_eps": shape.rms_norm_eps,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
        "num_nextn_predict_layers": 0,
        "torch_dtype": "bfloat16",
    }
    if shape.family == "kimi":
        return config | {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "num_key_value_heads": shape.num_heads,
            "kv_lora_rank": shape.kv_lora_rank,
            "q_lora_rank": None,
            "qk_nope_head_dim": shape.qk_nope_head_dim,
            "qk_rope_head_dim": shape.qk_rope_head_dim,
            "v_head_dim": shape.v_head_dim,
            "head_dim": shape.qk_rope_head_dim,
            "rope_interleave": True,
            "attention_bias": False,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "moe_layer_freq": 1,
            "ep_size": 1,
            "aux_loss_alpha": 0.0,
            "seq_aux": True,
        }
    partial = shape.rotary_dim / shape.head_dim
    config["rope_parameters"]["partial_rotary_factor"] = partial
    return config | {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "partial_rotary_factor": partial,
        "use_qk_norm": True,
        "attention_bias": True,
    }


def build_tokenizer() -> Tokenizer:
    """The tokenizer of ``tokenizer.VOCABULARY``: one token a character; adds no ``<bos>`` by itself."""
    ids = {token: i for i, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=SPECIAL_TOKENS[UNK_ID]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS])
    return tokenizer


def _split_experts(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stacked expert tensors -> one tensor an expert and projection, as checkpoints hold them."""
    out: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.endswith("experts.gate_up_proj"):
            prefix = name.removesuffix(".gate_up_proj")
            for expert, gate_up in enumerate(tensor):
                gate, up = gate_up.chunk(2)
                out[f"{prefix}.{expert}.gate_proj.weight"] = gate
                out[f"{prefix}.{expert}.up_proj.weight"] = up
        elif name.endswith("experts.down_proj"):
            prefix = name.removesuffix(".down_proj")
            for expert, down in enumerate(tensor):
                out[f"{prefix}.{expert}.down_proj.weight"] = down
        else:
            out[name] = tensor
    return out


def _stack_experts(tensors: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """Inverse of ``_split_experts``."""
    out = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in range(1, shape.num_layers):
        prefix = f"model.layers.{layer}.mlp.experts"
        experts = range(shape.num_experts)
        out[f"{prefix}.gate_up_proj"] = torch.stack(
            [
                torch.cat([tensors[f"{prefix}.{e}.{part}_proj.weight"] for part in ("gate", "up")])
                for e in experts
            ]
        )
        out[f"{prefix}.down_proj"] = torch.stack([tensors[f"{prefix}.{e}.down_proj.weight"] for e in experts])
    return out


def _shape_of(config: Mapping[str, Any]) -> Shape:
    common = {
        "vocab_size": config["vocab_size"],
        "hidden_size": config["hidden_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"],
        "intermediate_size": config["intermediate_size"],
        "moe_intermediate_size": config["moe_intermediate_size"],
        "num_experts": config["n_routed_experts"],
        "num_shared_experts": config["n_shared_experts"],
        "experts_per_token": config["num_experts_per_tok"],
        "rope_theta": config["rope_theta"],
        "rms_norm_eps": config["rms_norm_eps"],
    }
    if config["model_type"] == "deepseek_v3":
        mla = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        return Shape(family="kimi", **common, **{key: config[key] for key in mla})
    head_dim = config["head_dim"]
    return Shape(
        family="glm",
        **common,
        num_kv_heads=config["num_key_value_heads"],
        head_dim=head_dim,
        rotary_dim=round(head_dim * config["partial_rotary_factor"]),
    )


def load_model(directory: Path) -> FastModel:
    """A shipped checkpoint as a float32 ``FastModel`` in evaluation mode (weights as stored, BF16)."""
    shape = _shape_of(json.loads((directory / "config.json").read_text()))
    tensors = load_file(directory / "model.safetensors")
    model = FastModel(shape)
    model.load_state_dict({name: t.float() for name, t in _stack_experts(tensors, shape).items()})
    model.eval()
    return model


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_checkpoint(state: Mapping[str, Tensor], shape: Shape, out: Path) -> None:
    """Write BF16 safetensors, config, generation config, tokenizer and chat template to ``out``.

    The router's selection bias stays float32, as in the released checkpoints of both families.
    """
    out.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.to(torch.float32 if "correction_bias" in name else torch.bfloat16).contiguous()
        for name, tensor in _split_experts(state).items()
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    _write_json(out / "config.json", config_of(shape))
    ids = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
    _write_json(out / "generation_config.json", ids)
    build_tokenizer().save(str(out / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "unk_token": "<unk>",
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
    }
    _write_json(out / "tokenizer_config.json", tokenizer_config)
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")

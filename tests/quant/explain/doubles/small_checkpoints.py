"""Small checkpoints written by the test: a config, one weight, and the KV scales that are asked for."""

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

Write = Callable[..., Path]

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "vocab_size": 512, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}  # fmt: skip
GLM_4 = LLAMA | {
    "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "n_routed_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1,
}  # fmt: skip
KIMI = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
    "q_lora_rank": 64, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "vocab_size": 512, "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}  # fmt: skip
SCHEME = {"type": "float", "num_bits": 8, "strategy": "tensor", "symmetric": True, "dynamic": False}


def compressed_tensors(**scheme: Any) -> dict[str, Any]:
    """A quantization config that declares an FP8 KV cache; ``scheme`` changes what it declares."""
    return {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "kv_cache_scheme": SCHEME | scheme or None,
        }
    }


def scales(
    *, layers: int = 3, k: float | None = 0.5, v: float | None = 0.5, form: str = "proj"
) -> dict[str, Any]:
    """Scale tensors of the first ``layers`` layers; ``form``: proj, bare, attn or mqa."""
    names = {
        "proj": "{p}_proj.{p}_scale",
        "bare": "{p}_scale",
        "attn": "attn.{p}_scale",
        "mqa": "attn_mqa.{p}_scale",
    }
    found = {}
    for layer in range(layers):
        for part, value in (("k", k), ("v", v)):
            if value is not None:
                found[f"model.layers.{layer}.self_attn.{names[form].format(p=part)}"] = value
    return found


def scale_file(
    path: Path, *, model_type: str = "llama", layers: int = 3, ranks: int = 1, **change: Any
) -> str:
    """A file for --quantization-param-path."""
    factors = {str(r): {str(i): change.pop("value", 0.03) for i in range(layers)} for r in range(ranks)}
    cache = {"dtype": "float8_e4m3fn", "scaling_factor": factors} | change
    path.write_text(json.dumps({"model_type": model_type, "kv_cache": cache}))
    return f"--quantization-param-path={path}"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a checkpoint folder: config, scales (numbers, or lists for wrong shapes), further files."""

    def written(
        config: Mapping[str, Any],
        kv_scales: Mapping[str, Any] | None = None,
        *,
        name: str = "model",
        files: Mapping[str, Any] | None = None,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        for file, content in (files or {}).items():
            (folder / file).write_text(json.dumps(content))
        tensors: dict[str, list[float]] = {"model.norm.weight": [1.0] * 4}
        shapes: dict[str, list[int]] = {"model.norm.weight": [4]}
        for tensor, value in (kv_scales or {}).items():
            tensors[tensor] = value if isinstance(value, list) else [value]
            shapes[tensor] = [len(value)] if isinstance(value, list) else []
        header: dict[str, Any] = {}
        data = b""
        for tensor, values in tensors.items():
            raw = struct.pack(f"<{len(values)}f", *values)
            header[tensor] = {
                "dtype": "F32", "shape": shapes[tensor], "data_offsets": [len(data), len(data) + len(raw)]
            }  # fmt: skip
            data += raw
        text = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
        return folder

    return written

"""Tiny random checkpoints of three architectures, and a float32 reference for what a server says.

The reference is transformers in float32, on the bfloat16 weights, with a cache that stores each
key and value as the server's KV cache would: written here with torch alone, so that it shares no
code with the plugin.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DynamicCache,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

VOCAB = 128
LAYERS = 3
SHARED = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    # Larger than a real model's, or random attention would be flat and its errors invisible.
    "initializer_range": 0.1,
}
MOE = {
    "moe_intermediate_size": 64,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
}

CONFIGS = {
    "llama": lambda: LlamaConfig(**SHARED, num_attention_heads=4, num_key_value_heads=2, head_dim=32),
    "kimi": lambda: DeepseekV3Config(
        **SHARED,
        **MOE,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=96,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=32,
        v_head_dim=32,
    ),
    "glm": lambda: Glm4MoeConfig(
        **SHARED,
        **MOE,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        use_qk_norm=True,
        attention_bias=True,
        partial_rotary_factor=0.5,
    ),
}
CLASSES = {"llama": LlamaForCausalLM, "kimi": DeepseekV3ForCausalLM, "glm": Glm4MoeForCausalLM}
# SGLang reads these of a DeepSeek-type config; transformers 5 does not write them.
KIMI_EXTRAS = {
    "model_type": "kimi_k2",
    "moe_layer_freq": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "rope_theta": 10000.0,
    "rope_scaling": None,
}


def make_checkpoint(architecture: str, folder: Path) -> Path:
    """A random bfloat16 checkpoint, the same on every machine."""
    torch.manual_seed(sum(map(ord, architecture)))
    model = CLASSES[architecture](CONFIGS[architecture]())
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1 and not name.endswith("bias"):
                p.uniform_(0.5, 1.5)  # norms other than 1
        for name, b in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                b.uniform_(-0.2, 0.2)
    model.to(torch.bfloat16).save_pretrained(folder)
    if architecture == "kimi":
        edit_config(folder, KIMI_EXTRAS)
    return folder


def edit_config(folder: Path, changes: dict) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def add_kv_scales(folder: Path, scales: list[tuple[float, float]]) -> None:
    """Put k_scale and v_scale tensors, and the scheme that declares them, into a checkpoint."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for i, (k, v) in enumerate(scales):
        tensors[f"model.layers.{i}.self_attn.k_proj.k_scale"] = torch.tensor(k)
        tensors[f"model.layers.{i}.self_attn.v_proj.v_scale"] = torch.tensor(v)
    save_file(tensors, path, metadata={"format": "pt"})
    static_fp8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
    scheme = {
        "quant_method": "compressed-tensors",
        "format": "dense",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "kv_cache_scheme": static_fp8,
        "config_groups": {},
    }
    edit_config(folder, {"quantization_config": scheme})


# What the cache makes of a written tensor: (layer, 0 for keys or latent and 1 for values or rope, x).
Store = Callable[[int, int, torch.Tensor], torch.Tensor]


def store_bf16(_layer: int, _which: int, x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def store_fp8(dtype: torch.dtype, scales: list[tuple[float, float]] | None = None) -> Store:
    limit = torch.finfo(dtype).max

    def store(layer: int, which: int, x: torch.Tensor) -> torch.Tensor:
        scale = scales[layer][which] if scales else 1.0
        return (x.bfloat16().float() / scale).clamp(-limit, limit).to(dtype).float() * scale

    return store


def store_int4(amax: list[tuple[float, float]]) -> Store:
    def store(layer: int, which: int, x: torch.Tensor) -> torch.Tensor:
        step = amax[layer][which] / 7
        return ((x.bfloat16().float() / step).round().clamp(-7, 7) * step).bfloat16().float()

    return store


class StoringCache(DynamicCache):
    """Hands attention what a cache would have stored. For MLA these are latent and rope."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self.amax: dict[tuple[int, int], float] = {}

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        for which, x in enumerate((key_states, value_states)):
            self.amax[layer_idx, which] = x.abs().max().item()
        k, v = (self.store(layer_idx, w, x) for w, x in enumerate((key_states, value_states)))
        return super().update(k, v, layer_idx, *args, **kwargs)


class Reference:
    """Float32 log-probabilities of a checkpoint, for a way of storing the cache."""

    def __init__(self, folder: Path, architecture: str) -> None:
        # Our own config: the folder's may declare what transformers would act on.
        self.model = (
            CLASSES[architecture]
            .from_pretrained(folder, config=CONFIGS[architecture](), dtype=torch.float32)
            .eval()
        )

    @torch.no_grad()
    def logprobs(self, ids: list[int], store: Store) -> torch.Tensor:
        """[len(ids) - 1]: log P(ids[i + 1] | ids[: i + 1]) in nats."""
        logits = self.model(
            input_ids=torch.tensor([ids]), past_key_values=StoringCache(store), use_cache=True
        ).logits.float()
        return logits[0, :-1].log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[:, 0]

    def bf16_noise(self, ids: list[int]) -> float:
        """Mean change of a logprob when this model computes in bfloat16 as the server does."""
        exact = self.logprobs(ids, store_bf16)
        model = self.model
        self.model = deepcopy(model).bfloat16()
        rounded = self.logprobs(ids, lambda _layer, _which, x: x)
        self.model = model
        return (rounded - exact).abs().mean().item()

    @torch.no_grad()
    def amax(self, ids: list[int]) -> list[tuple[float, float]]:
        """Per layer, the largest magnitude of keys (or latent) and values (or rope)."""
        cache = StoringCache(store_bf16)
        self.model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True)
        return [(cache.amax[i, 0], cache.amax[i, 1]) for i in range(LAYERS)]

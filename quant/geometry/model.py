"""The dimensions of a model that decide what its KV cache and its weights cost."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Attention", "Geometry"]

Attention = Literal["mla", "gqa", "dsa"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """A model's dimensions, without its weights.

    ``attention``: "gqa" caches K and V for each KV head (MHA where ``kv_heads`` == ``heads``); "mla" caches
    one latent of ``kv_lora_rank`` plus one RoPE key of ``qk_rope_head_dim`` for all heads; "dsa" is MLA plus
    an indexer, whose keys are cached in ``index_layers``. Dimensions that a kind does not have are 0;
    ``q_lora_rank`` is 0 where the query is projected directly.

    MTP (multi-token prediction) layers are not among ``num_layers``; a server loads them for speculative
    decoding only.
    """

    name: str
    family: str  # model_type of the language model, e.g. "kimi_k2"
    architecture: str  # architectures[0] of the checkpoint, which decides SGLang's model class
    attention: Attention
    num_layers: int
    dense_layers: int  # layers with a dense MLP; the others have experts
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int  # of K and V in GQA; of the query (nope + rope) in MLA
    v_head_dim: int
    vocab_size: int
    max_position: int
    intermediate_size: int  # of a dense MLP
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    index_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0
    index_layers: tuple[int, ...] = ()  # layers that run the indexer; the others reuse its choice
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0  # of one routed expert
    shared_intermediate_size: int = 0  # of all shared experts of a layer together
    num_mtp_layers: int = 0
    vision_parameters: int = 0  # tower and projector; 0 for text models
    tie_word_embeddings: bool = False
    weights: str = "bf16"  # how the checkpoint stores its linear layers; "other" if not known here
    source: str

    @property
    def is_latent(self) -> bool:
        """Whether the cache holds one latent for all heads (MLA and DSA)."""
        return self.attention != "gqa"

    @property
    def moe_layers(self) -> int:
        return self.num_layers - self.dense_layers

    @property
    def cached_values_per_layer(self) -> int:
        """Cached numbers of one token in one layer: 2 x kv_heads x head_dim, or latent + RoPE key."""
        if self.is_latent:
            return self.kv_lora_rank + self.qk_rope_head_dim
        return self.kv_heads * (self.head_dim + self.v_head_dim)

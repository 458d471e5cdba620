"""The two shapes: configurations, and a fast training module with the same weights and function.

``FastModel`` computes what Hugging Face's ``DeepseekV3ForCausalLM`` (MLA, MoE) or
``Glm4MoeForCausalLM`` (GQA, qk-norm, partial rotary, MoE) computes, under the same parameter
names, so its state dict loads into them as it is. It is fast on a CPU because all experts run as
one dense matrix product, masked by the router (tiny experts: cheaper than gathering tokens).
"""

# mypy: allow-subclassing-any, allow-untyped-decorators

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["GLM", "KIMI", "CachePart", "FastModel", "OnCache", "Shape"]

# What a server caches: the normed latent and the rotated key (MLA), or rotated K and V (GQA).
CachePart = Literal["latent", "rope", "k", "v"]
# (layer, part, tensor [batch, heads, time, dim]) -> what is read back from the cache instead.
OnCache = Callable[[int, CachePart, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a tiny model. MLA uses the ``mla`` sizes, GQA ``head_dim`` and ``num_kv_heads``."""

    family: Literal["kimi", "glm"]
    vocab_size: int = 64
    hidden_size: int = 128
    num_layers: int = 3
    num_heads: int = 4
    intermediate_size: int = 256  # of the first, dense layer
    moe_intermediate_size: int = 32
    num_experts: int = 8
    num_shared_experts: int = 2
    experts_per_token: int = 2
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    # MLA (trained small, widened before shipping)
    kv_lora_rank: int = 128
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 32
    v_head_dim: int = 64
    # GQA
    num_kv_heads: int = 2
    head_dim: int = 64
    rotary_dim: int = 32

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim


KIMI = Shape(family="kimi")
GLM = Shape(family="glm")


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def _angles(length: int, dim: int, theta: float) -> tuple[Tensor, Tensor]:
    frequencies = theta ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies  # [length, dim / 2]
    return angles.cos(), angles.sin()


def _store_exactly(layer: int, part: CachePart, x: Tensor) -> Tensor:
    return x


class MlaAttention(nn.Module):
    def __init__(self, s: Shape, layer: int) -> None:
        super().__init__()
        self.s, self.layer = s, layer
        self.on_cache: OnCache = _store_exactly
        self.q_proj = nn.Linear(s.hidden_size, s.num_heads * s.qk_head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(s.hidden_size, s.kv_lora_rank + s.qk_rope_head_dim, bias=False)
        self.kv_a_layernorm = RMSNorm(s.kv_lora_rank, s.rms_norm_eps)
        self.kv_b_proj = nn.Linear(
            s.kv_lora_rank, s.num_heads * (s.qk_nope_head_dim + s.v_head_dim), bias=False
        )
        self.o_proj = nn.Linear(s.num_heads * s.v_head_dim, s.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        s, (b, t, _) = self.s, x.shape
        q = self.q_proj(x).view(b, t, s.num_heads, s.qk_head_dim).transpose(1, 2)
        q_nope, q_rope = q.split([s.qk_nope_head_dim, s.qk_rope_head_dim], dim=-1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split([s.kv_lora_rank, s.qk_rope_head_dim], dim=-1)
        latent = self.on_cache(self.layer, "latent", self.kv_a_layernorm(latent)[:, None])[:, 0]
        kv = self.kv_b_proj(latent).view(b, t, s.num_heads, -1).transpose(1, 2)
        k_nope, v = kv.split([s.qk_nope_head_dim, s.v_head_dim], dim=-1)

        def rotate(z: Tensor) -> Tensor:  # interleaved pairs in, halves out
            even, odd = z[..., 0::2], z[..., 1::2]
            return torch.cat([even * cos - odd * sin, odd * cos + even * sin], dim=-1).to(k_nope.dtype)

        k_rope = self.on_cache(self.layer, "rope", rotate(k_rope[:, None])).expand(-1, s.num_heads, -1, -1)
        out = F.scaled_dot_product_attention(
            torch.cat([q_nope, rotate(q_rope)], -1), torch.cat([k_nope, k_rope], -1), v, is_causal=True
        )
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1))


class GqaAttention(nn.Module):
    def __init__(self, s: Shape, layer: int) -> None:
        super().__init__()
        self.s, self.layer = s, layer
        self.on_cache: OnCache = _store_exactly
        self.q_proj = nn.Linear(s.hidden_size, s.num_heads * s.head_dim, bias=True)
        self.k_proj = nn.Linear(s.hidden_size, s.num_kv_heads * s.head_dim, bias=True)
        self.v_proj = nn.Linear(s.hidden_size, s.num_kv_heads * s.head_dim, bias=True)
        self.o_proj = nn.Linear(s.num_heads * s.head_dim, s.hidden_size, bias=False)
        self.q_norm = RMSNorm(s.head_dim, s.rms_norm_eps)
        self.k_norm = RMSNorm(s.head_dim, s.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        s, (b, t, _) = self.s, x.shape
        v = self.v_proj(x).view(b, t, s.num_kv_heads, s.head_dim).transpose(1, 2)

        def rotate(z: Tensor) -> Tensor:
            first, second, rest = z.split(
                [s.rotary_dim // 2, s.rotary_dim // 2, s.head_dim - s.rotary_dim], dim=-1
            )
            return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1).to(v.dtype)

        q = rotate(self.q_norm(self.q_proj(x).view(b, t, s.num_heads, s.head_dim)).transpose(1, 2))
        k = rotate(self.k_norm(self.k_proj(x).view(b, t, s.num_kv_heads, s.head_dim)).transpose(1, 2))
        k, v = self.on_cache(self.layer, "k", k), self.on_cache(self.layer, "v", v)
        group = s.num_heads // s.num_kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1))


class Mlp(nn.Module):
    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Router(nn.Module):
    """Sigmoid scores; the bias only chooses experts (auxiliary-loss-free balancing, ``noaux_tc``)."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.k = s.experts_per_token
        self.weight = nn.Parameter(torch.zeros(s.num_experts, s.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(s.num_experts))
        self.register_buffer("load", torch.zeros(s.num_experts), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            scores = F.linear(x.float(), self.weight).sigmoid()
        chosen = torch.topk(scores.detach() + self.e_score_correction_bias, self.k, dim=-1)[1]
        mask = torch.zeros_like(scores).scatter_(-1, chosen, 1.0)
        if self.training:
            self.load.copy_(mask.mean(tuple(range(mask.ndim - 1))).detach())
        kept = scores * mask
        return kept / (kept.sum(-1, keepdim=True) + 1e-20)  # [batch, time, experts]


class Experts(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(
            torch.empty(s.num_experts, 2 * s.moe_intermediate_size, s.hidden_size)
        )
        self.down_proj = nn.Parameter(torch.empty(s.num_experts, s.hidden_size, s.moe_intermediate_size))

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        e, h, i = self.down_proj.shape
        gate_up = F.linear(x, self.gate_up_proj.reshape(e * 2 * i, h)).view(*x.shape[:-1], e, 2, i)
        hidden = F.silu(gate_up[..., 0, :]) * gate_up[..., 1, :] * weights[..., None].to(gate_up.dtype)
        return F.linear(hidden.flatten(-2), self.down_proj.transpose(0, 1).reshape(h, e * i))


class Moe(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.gate = Router(s)
        self.experts = Experts(s)
        self.shared_experts = Mlp(s.hidden_size, s.moe_intermediate_size * s.num_shared_experts)

    def forward(self, x: Tensor) -> Tensor:
        return self.experts(x, self.gate(x)) + self.shared_experts(x)


class Layer(nn.Module):
    def __init__(self, s: Shape, index: int) -> None:
        super().__init__()
        self.self_attn = MlaAttention(s, index) if s.family == "kimi" else GqaAttention(s, index)
        self.mlp = Mlp(s.hidden_size, s.intermediate_size) if index == 0 else Moe(s)
        self.input_layernorm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(s.hidden_size, s.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class FastModel(nn.Module):
    """Token ids [batch, time] -> logits [batch, time, vocab], full causal context."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.model.layers = nn.ModuleList(Layer(shape, i) for i in range(shape.num_layers))
        self.model.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        _initialise(self)

    def set_on_cache(self, on_cache: OnCache) -> None:
        """Pass everything that a server would cache through ``on_cache``, in every layer."""
        for layer in self.model.layers:
            layer.self_attn.on_cache = on_cache

    def routers(self) -> list[Router]:
        return [module for module in self.modules() if isinstance(module, Router)]

    def forward(self, ids: Tensor) -> Tensor:
        dim = self.shape.qk_rope_head_dim if self.shape.family == "kimi" else self.shape.rotary_dim
        cos, sin = _angles(ids.shape[1], dim, self.shape.rope_theta)
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return self.lm_head(self.model.norm(x))


_INIT_STD = 0.06
_EMBEDDING_STD = 0.25
_COMMON = 1.2  # component 0 of every embedding: what a bias would be, where the shape has none


@torch.no_grad()
def _initialise(model: FastModel) -> None:
    """Random weights, but the heads of layer 0 start out attending to the tokens 1, 2, 3, 4 back.

    All tasks need such heads (retrieval by induction, copying, brackets). A model this small needs
    thousands of steps to grow them from noise, and none when it starts with them. Head h attends
    h + 1 back because its constant query is the constant key turned by h + 1 positions.
    """
    s = model.shape
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            nn.init.normal_(parameter, std=_EMBEDDING_STD if "embed_tokens" in name else _INIT_STD)
        elif name.endswith(".bias"):
            nn.init.zeros_(parameter)
    model.model.embed_tokens.weight[:, 0] = _COMMON
    common = _COMMON / (_EMBEDDING_STD**2 + _COMMON**2 / s.hidden_size) ** 0.5  # after the first RMSNorm
    attention = model.model.layers[0].self_attn
    rotary_dim = s.qk_rope_head_dim if s.family == "kimi" else s.rotary_dim
    pairs = 6  # the fastest; slower ones cannot tell neighbours apart
    frequencies = s.rope_theta ** (-2.0 * torch.arange(pairs) / rotary_dim)
    for head in range(s.num_heads):
        angles = -frequencies * (head + 1)
        cos, sin = angles.cos(), angles.sin()
        if s.family == "kimi":
            rows = head * s.qk_head_dim + s.qk_nope_head_dim + 2 * torch.arange(pairs)
            attention.q_proj.weight[rows, 0] = 11.0 * cos / common
            attention.q_proj.weight[rows + 1, 0] = 11.0 * sin / common
        else:
            rows = head * s.head_dim + torch.arange(pairs)
            attention.q_proj.bias[rows] = 3.0 * cos
            attention.q_proj.bias[rows + s.rotary_dim // 2] = 3.0 * sin
    if s.family == "kimi":
        rows = s.kv_lora_rank + 2 * torch.arange(pairs)
        attention.kv_a_proj_with_mqa.weight[rows, 0] = 5.0 / common
        attention.kv_a_proj_with_mqa.weight[rows + 1, 0] = 0.0
    else:
        for head in range(s.num_kv_heads):
            attention.k_proj.bias[head * s.head_dim + torch.arange(pairs)] = 3.0
        attention.q_norm.weight.fill_(2.3)
        attention.k_norm.weight.fill_(2.3)

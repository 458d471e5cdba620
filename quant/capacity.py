"""How many tokens of KV cache fit beside the weights, and so how many requests.

The rule is SGLang's: of each GPU's memory a static fraction holds weights and KV pool
(``mem_fraction_static``, ``sglang/srt/arg_groups/memory_hook.py`` 0.5.23); what the weights leave, divided by
the bytes of one token, is the pool. Checked against published figures: Kimi K2.6, TP8 on H200, about 686,000
tokens in bf16 and 1.37 million in fp8; Kimi K2-Thinking, 46.80 GiB of KV memory, 715,072 tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from equipoise.evals.errors import UsageError
from equipoise.quant.geometry import Geometry, kv_bytes_per_token, kv_bytes_per_token_per_gpu
from equipoise.quant.gpus import Gpu
from equipoise.quant.weights_size import Component

__all__ = ["DEFAULT_STATIC_FRACTION", "NOT_MODELLED", "Capacity", "Deployment", "capacity_of", "tokens_in"]

DEFAULT_STATIC_FRACTION = 0.83
"""The one fitted number: it reproduces the published capacity of Kimi K2.6 on eight H200."""

NOT_MODELLED = (
    "CUDA graphs, activations and the CUDA context: the static fraction must leave room for them",
    "speculative decoding: weights and KV cache of a draft model or of MTP layers",
    "the absorbed copy of kv_b_proj (MLA), LoRA adapters, and memory reserved for images",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One server: ``tp`` GPUs, of which ``dp`` groups each attend to their own requests.

    ``dp`` > 1 is SGLang's data-parallel attention (``--enable-dp-attention --dp-size``): attention weights
    are repeated in each group, and each group has a KV pool of its own.
    """

    gpu: Gpu
    tp: int
    dp: int = 1
    static_fraction: float = DEFAULT_STATIC_FRACTION
    page_size: int = 1  # tokens; the pool is a whole number of pages

    def __post_init__(self) -> None:
        if self.tp < 1 or self.dp < 1 or self.tp % self.dp:
            raise UsageError(f"--tp {self.tp} GPUs cannot form {self.dp} equal groups; choose a divisor")
        if not 0.0 < self.static_fraction < 1.0:
            raise UsageError(f"--static-fraction {self.static_fraction:g} is not between 0 and 1")
        if self.page_size < 1:
            raise UsageError(f"--page-size {self.page_size} is not positive")

    @property
    def attention_tp(self) -> int:
        """GPUs that share the attention of one request."""
        return self.tp // self.dp


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What fits. ``tokens`` are of the whole server: ``dp`` pools of ``tokens_per_group``.

    ``pool_bytes_per_gpu`` is negative where the weights exceed the static fraction; then nothing fits and
    the server does not start.
    """

    geometry: Geometry
    deployment: Deployment
    layout: str
    weight_bytes: int  # loaded weights, stored once
    weight_bytes_per_gpu: int
    bytes_per_token: int  # stored once; GQA: over all GPUs
    bytes_per_token_per_gpu: int
    pool_bytes_per_gpu: int
    tokens_per_group: int

    @property
    def tokens(self) -> int:
        return self.tokens_per_group * self.deployment.dp

    @property
    def weights_fit(self) -> bool:
        return self.pool_bytes_per_gpu > 0

    def requests_at(self, context: int) -> int:
        """Concurrent requests of ``context`` tokens each (prompt and answer), nothing shared."""
        page = self.deployment.page_size
        return self.deployment.dp * (self.tokens_per_group // (-(-context // page) * page))

    def longest_context(self, concurrency: int) -> int:
        """Tokens that each of ``concurrency`` requests may have, at most the model's positions."""
        page, dp = self.deployment.page_size, self.deployment.dp
        share = self.tokens_per_group // -(-concurrency // dp)
        return min(share // page * page, self.geometry.max_position)


def tokens_in(pool_bytes: int, bytes_per_token: int, *, page_size: int = 1) -> int:
    """Tokens of a KV pool of this many bytes on one GPU, in whole pages; 0 if there is no room."""
    return max(0, pool_bytes // bytes_per_token // page_size * page_size)


def capacity_of(
    geometry: Geometry, components: Iterable[Component], deployment: Deployment, layout: str
) -> Capacity:
    """The capacity of one server.

    Parameters
    ----------
    components
        From `weight_components` or `checkpoint_components`.
    layout
        One of `equipoise.quant.geometry.KV_LAYOUTS`.

    Raises
    ------
    UsageError
        The GPUs cannot divide the model's heads or experts, or the layout does not fit its attention.
    """
    d = deployment
    if geometry.heads % d.attention_tp:
        raise UsageError(
            f"{geometry.name} has {geometry.heads} attention heads, which {d.attention_tp} GPUs cannot share "
            "evenly; choose --tp so that it divides them, or --dp-attention"
        )
    if geometry.moe_intermediate_size % d.tp:
        raise UsageError(
            f"{geometry.name} has experts of width {geometry.moe_intermediate_size}, which --tp {d.tp} does "
            "not divide; choose another"
        )
    components = tuple(components)
    per_gpu = sum(
        c.bytes_per_gpu(tp=d.tp, attention_tp=d.attention_tp, kv_heads=geometry.kv_heads) for c in components
    )
    per_token = kv_bytes_per_token_per_gpu(geometry, layout, d.attention_tp)
    pool = int(d.gpu.memory_bytes * d.static_fraction) - per_gpu
    return Capacity(
        geometry=geometry,
        deployment=d,
        layout=layout,
        weight_bytes=sum(c.num_bytes for c in components if c.loaded),
        weight_bytes_per_gpu=per_gpu,
        bytes_per_token=kv_bytes_per_token(geometry, layout),
        bytes_per_token_per_gpu=per_token,
        pool_bytes_per_gpu=pool,
        tokens_per_group=tokens_in(pool, per_token, page_size=d.page_size),
    )

"""The production models' variants by name: which weights with which KV cache, and what each is good for.

An arm is named ``MODEL@w=WEIGHTS,kv=KV_CACHE_DTYPE``, e.g. ``kimi-k2.6@w=int4-g32,kv=fp8_e4m3``; servers that
share a request between roles, ``MODEL@w=WEIGHTS,prefill-kv=bf16,decode-kv=fp8_e4m3``. Pure data; commands and
capacities are made from it in ``production_launch.py``.

Checkpoints and parsers are those of SGLang's cookbook (docs.sglang.io/cookbook), flags those of the SGLang
version in `equipoise.quant.variants`.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

from equipoise.evals.errors import UsageError

__all__ = [
    "PRODUCTION_ARMS",
    "PRODUCTION_GPUS",
    "ProductionArm",
    "ProductionModel",
    "Release",
    "find_arm",
    "is_production",
]

PRODUCTION_GPUS = ("H200", "B200")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A published checkpoint. ``tp`` by GPU; a GPU that is not in it cannot run this release."""

    weights: str  # as `equipoise.quant.weights_size` names it
    hub: str
    tp: Mapping[str, int]
    args: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductionModel:
    """What all arms of one model share; ``backend`` is ``--attention-backend`` by GPU, "" for its default."""

    name: str  # of its built-in geometry
    releases: tuple[Release, ...]
    backend: Mapping[str, str]
    args: tuple[str, ...]
    notes: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)  # KV dtype -> why


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductionArm:
    """One named arm. ``refused`` says why SGLang will not serve it; such an arm has no command."""

    model: ProductionModel
    release: Release
    kv_cache_dtype: str
    decode_kv_cache_dtype: str | None = None  # of a decode server of its own; None: one server for both
    refused: str = ""
    notes: tuple[str, ...] = ()

    @property
    def arm(self) -> str:
        """``w=int4-g32,kv=fp8_e4m3``."""
        weights, kv, decode = self.release.weights, self.kv_cache_dtype, self.decode_kv_cache_dtype
        return f"w={weights},kv={kv}" if decode is None else f"w={weights},prefill-kv={kv},decode-kv={decode}"

    @property
    def name(self) -> str:
        return f"{self.model.name}@{self.arm}"

    @property
    def gpus(self) -> tuple[str, ...]:
        """Where it runs; none where it is refused."""
        return () if self.refused else tuple(self.release.tp)


_8 = {"H200": 8, "B200": 8}
_KIMI_ARGS = ("--trust-remote-code", "--reasoning-parser=kimi_k2", "--tool-call-parser=kimi_k2")
_GLM45_ARGS = ("--reasoning-parser=glm45", "--tool-call-parser=glm45")
_GLM47_ARGS = ("--reasoning-parser=glm45", "--tool-call-parser=glm47")
_NVFP4_ARGS = ("--quantization=modelopt_fp4",)

_MLA_SCALE = (
    "SGLang writes the MLA cache at scale 1 and some kernels multiply by k_scale on reading: only scale 1.0 "
    "is right, and no release brings another"
)
_KIMI_NOTES = (
    "the release itself is INT4 (routed experts; attention, shared experts and lm_head in BF16): there is no "
    "BF16 original to serve, so w=int4-g32,kv=bf16 is this model's baseline",
    _MLA_SCALE,
)
_GLM4_NOTES = (
    "glm4_moe builds its attention without the quantization config: k_scale and v_scale of a checkpoint are "
    "never loaded, the FP8 cache runs at scale 1.0, and --quantization-param-path is not supported",
)
_DSA_NOTES = (
    "the FP8 cache is another layout by GPU: 656 bytes a token and layer on Hopper (latent in FP8 with a "
    "scale for each 128 values, RoPE key in BF16), flat FP8 on Blackwell, so a verdict does not carry over",
    "--kv-cache-dtype auto means FP8 on Blackwell: the BF16 arm must say bf16",
    "the DSA kernels follow the KV dtype (BF16: flashmla_sparse, then fa3 on Hopper or trtllm on Blackwell; "
    "FP8: flashmla_kv, or trtllm): allow dsa_prefill_backend and dsa_decode_backend to differ",
)
_DSA_REFUSED = {"fp8_e5m2": "SGLang refuses fp8_e5m2 for DSA models; use fp8_e4m3"}
_NVFP4_NOTES = (
    "Blackwell only (NVFP4 tensor cores); the cookbook lists it for B300, GLM-5 and 5.2 for B200 too",
)
_TWO_NODES = "BF16 weights do not fit one node of eight GPUs: the command is for two"
_PD_REFUSED = (
    "SGLang refuses to pair a prefill and a decode server whose KV cache dtypes differ "
    "(disaggregation/common/conn.py: KV cache dtype mismatch); it needs a conversion at the transfer, which "
    "0.5.23 does not have"
)


def _kimi(name: str, hub: str, nvfp4: str) -> ProductionModel:
    return ProductionModel(
        name=name,
        releases=(
            Release(weights="int4-g32", hub=hub, tp=_8),
            Release(weights="nvfp4", hub=nvfp4, tp={"B200": 8}, args=_NVFP4_ARGS, notes=_NVFP4_NOTES),
        ),
        backend={"H200": "fa3", "B200": "trtllm_mla"},
        args=_KIMI_ARGS,
        notes=_KIMI_NOTES,
    )


def _glm4(name: str, hub: str, tp: Mapping[str, int], args: tuple[str, ...]) -> ProductionModel:
    return ProductionModel(
        name=name,
        releases=(
            Release(weights="bf16", hub=hub, tp=tp),
            Release(
                weights="fp8-channel",
                hub=f"{hub}-FP8",
                tp=tp,
                notes=("activations are quantized too (FP8, dynamic, a scale for each token)",),
            ),
        ),
        backend={"H200": "fa3", "B200": "trtllm_mha"},
        args=args,
        notes=_GLM4_NOTES,
    )


def _glm5(name: str, hub: str) -> ProductionModel:
    return ProductionModel(
        name=name,
        releases=(
            Release(weights="bf16", hub=hub, tp={"H200": 16, "B200": 16}, notes=(_TWO_NODES,)),
            Release(
                weights="fp8-block",
                hub=f"{hub}-FP8",
                tp=_8,
                notes=("activations are quantized too (FP8, dynamic, a scale for each 128 values)",),
            ),
            Release(
                weights="nvfp4",
                hub=hub.replace("zai-org/", "nvidia/") + "-NVFP4",
                tp={"B200": 8},
                args=_NVFP4_ARGS,
                notes=_NVFP4_NOTES,
            ),
        ),
        backend={"H200": "", "B200": ""},  # SGLang's own choice, "dsa", is the only one that fits
        args=_GLM47_ARGS,
        notes=_DSA_NOTES,
        refused=_DSA_REFUSED,
    )


_MODELS: tuple[ProductionModel, ...] = (
    _kimi("kimi-k2-thinking", "moonshotai/Kimi-K2-Thinking", "nvidia/Kimi-K2-Thinking-NVFP4"),
    _kimi("kimi-k2.5", "moonshotai/Kimi-K2.5", "nvidia/Kimi-K2.5-NVFP4"),
    _kimi("kimi-k2.6", "moonshotai/Kimi-K2.6", "nvidia/Kimi-K2.6-NVFP4"),
    _glm4("glm-4.5-air", "zai-org/GLM-4.5-Air", {"H200": 4, "B200": 4}, _GLM45_ARGS),
    _glm4("glm-4.6", "zai-org/GLM-4.6", _8, _GLM45_ARGS),
    _glm4("glm-4.7", "zai-org/GLM-4.7", _8, _GLM47_ARGS),
    ProductionModel(
        name="glm-4.7-flash",
        releases=(Release(weights="bf16", hub="zai-org/GLM-4.7-Flash", tp={"H200": 1, "B200": 1}),),
        backend={"H200": "fa3", "B200": "triton"},
        args=_GLM47_ARGS,
        notes=(
            _MLA_SCALE,
            "on Blackwell the cookbook serves it with triton, whose decode kernel also casts queries and "
            "softmax weights to FP8 when the cache is FP8: more than the cache's rounding is measured there",
        ),
    ),
    _glm5("glm-5", "zai-org/GLM-5"),
    _glm5("glm-5.1", "zai-org/GLM-5.1"),
    _glm5("glm-5.2", "zai-org/GLM-5.2"),
)


def _arms_of(model: ProductionModel) -> list[ProductionArm]:
    arms = []
    for release in model.releases:
        for kv in ("bf16", "fp8_e4m3", *model.refused):
            arms.append(
                ProductionArm(
                    model=model, release=release, kv_cache_dtype=kv, refused=model.refused.get(kv, "")
                )
            )
        arms.append(
            ProductionArm(
                model=model,
                release=release,
                kv_cache_dtype="bf16",
                decode_kv_cache_dtype="fp8_e4m3",
                refused=_PD_REFUSED,
            )
        )
    return arms


PRODUCTION_ARMS: dict[str, ProductionArm] = {arm.name: arm for model in _MODELS for arm in _arms_of(model)}


def is_production(name: str) -> bool:
    """Whether ``MODEL@VARIANT`` asks for one of these arms, if only by a name that is not quite right."""
    model, _, variant = name.partition("@")
    return any(model == m.name for m in _MODELS) or "kv=" in variant


def find_arm(name: str) -> ProductionArm:
    """A production arm by its full name.

    Raises
    ------
    UsageError
        Unknown; names the nearest, or the models.
    """
    if found := PRODUCTION_ARMS.get(name):
        return found
    model, _, wanted = name.partition("@")
    arms = [n for n in PRODUCTION_ARMS if n.partition("@")[0] == model]
    if arms:
        # "fp8_e4m3" alone stands for that KV dtype with the weights listed first.
        near = [n for n in arms if n.endswith(f"kv={wanted}")] or difflib.get_close_matches(name, arms, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"{model} has {', '.join(arms)}"
    else:
        near = difflib.get_close_matches(name, PRODUCTION_ARMS, n=1, cutoff=0.5)
        models = ", ".join(m.name for m in _MODELS)
        hint = f"did you mean {near[0]!r}?" if near else f"the models are {models}"
    raise UsageError(f"no production variant {name!r}; {hint}  (all: equipoise quant variants)")

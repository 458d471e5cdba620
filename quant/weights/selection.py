"""Which tensors of a checkpoint a format converts, decided by real names; pure, no torch.

Nothing is guessed: a rule or a user's pattern that matches no module is an error, and so is a matrix
that no rule keeps and that is no known linear layer.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.checkpoint import Checkpoint, TensorInfo
from equipoise.quant.weights.families import Rule, Traits, rules_for, text_config_of, traits_of

__all__ = ["Selection", "check_against_config", "matches", "merged_with", "module_of", "select"]

FLOATING = ("BF16", "F16", "F32")
_LINEAR = re.compile(
    r".*\.(q_proj|k_proj|v_proj|o_proj|q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj|gate_proj|up_proj|down_proj"
    r"|indexer\.wq_b|indexer\.wk)$"
)
_EMBEDDING = re.compile(r".*(embed_tokens|word_embeddings|\bwte|pos_emb\w*|position_embeddings?)$")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_EXPERT = re.compile(r"(?:^|\.)layers\.(\d+)\.mlp\.experts\.(\d+)\.")
_MERGED = re.compile(r"^(?P<parent>.*)\.(?P<leaf>q_proj|k_proj|v_proj|gate_proj|up_proj)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """``converted`` are tensor names; ``kept`` maps a linear module that stays to why it does."""

    traits: Traits
    converted: tuple[str, ...]
    kept: Mapping[str, str]
    rules: tuple[Rule, ...]  # those that matched
    matched: Mapping[str, tuple[str, ...]]  # pattern -> modules it keeps


def matches(pattern: str, module: str) -> bool:
    """compressed-tensors' and SGLang's rule: ``re:`` from the start, else the name or a dotted suffix."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    return module == pattern or module.endswith("." + pattern)


def module_of(tensor: str) -> str:
    """``model.norm`` of ``model.norm.weight``."""
    return tensor.removesuffix(".weight")


def merged_with(module: str) -> tuple[str, ...]:
    """The modules that a server loads into one matrix with this one, itself included."""
    if (found := _MERGED.match(module)) is None:
        return (module,)
    leaves = (
        ("gate_proj", "up_proj")
        if found["leaf"] in ("gate_proj", "up_proj")
        else ("q_proj", "k_proj", "v_proj")
    )
    return tuple(f"{found['parent']}.{leaf}" for leaf in leaves)


def select(checkpoint: Checkpoint, format_name: str, ignore: Sequence[str] = ()) -> Selection:
    """Decide for every tensor.

    Parameters
    ----------
    ignore : sequence of str
        The user's further patterns; each must match a linear layer.

    Raises
    ------
    UsageError
        A pattern of the user that is no regular expression or matches nothing.
    CheckpointError
        The source is quantized already, a rule of its family matches nothing, an unknown matrix, or experts
        fused into one tensor.
    """
    traits = traits_of(checkpoint.config)
    linears = [
        module_of(name) for name, info in checkpoint.tensors.items() if _is_matrix(name, info, checkpoint)
    ]
    rules = rules_for(traits, format_name)
    kept: dict[str, str] = {}
    matched: dict[str, tuple[str, ...]] = {}
    for rule in (*rules, *(Rule(pattern=p, why="asked for") for p in ignore)):
        try:
            found = tuple(m for m in linears if matches(rule.pattern, m))
        except re.error as e:
            raise UsageError(f"--ignore {rule.pattern!r} is no regular expression: {e}") from e
        if not found and rule.required:
            if rule.pattern in ignore:
                raise UsageError(
                    f"--ignore {rule.pattern!r} matches no linear layer of {checkpoint.path}; layers are "
                    f"named like {linears[0] if linears else '(none)'}"
                )
            raise CheckpointError(
                f"{checkpoint.path}: the config promises a module to keep ({rule.why}, {rule.pattern}), "
                "but no tensor has such a name; config and tensors are not of one model"
            )
        if found:
            matched[rule.pattern] = found
            for module in found:
                kept.setdefault(module, rule.why)
    converted = tuple(m + ".weight" for m in linears if m not in kept)
    unknown = [name for name in converted if not _LINEAR.match(module_of(name))]
    if unknown:
        raise CheckpointError(
            f"{checkpoint.path}: {len(unknown)} matrices are no linear layers known of {traits.family}, e.g. "
            f"{unknown[0]}; keep them as they are with --ignore"
        )
    if not converted:
        raise UsageError(f"{checkpoint.path}: the patterns leave nothing to convert")
    used = tuple(r for r in rules if r.pattern in matched)
    return Selection(traits=traits, converted=converted, kept=kept, rules=used, matched=matched)


def _is_matrix(name: str, info: TensorInfo, checkpoint: Checkpoint) -> bool:
    if info.dtype.startswith(("F8_", "F4", "F6_")) or name.endswith((".weight_packed", ".qweight")):
        raise CheckpointError(
            f"{checkpoint.path}: {name} is {info.dtype}, so this checkpoint is quantized already; run "
            "`equipoise quant dequantize` first"
        )
    if len(info.shape) == 3 and ".experts." in name:
        raise CheckpointError(
            f"{checkpoint.path}: {name} holds all experts in one tensor, which SGLang does not load for Kimi "
            "and GLM; take the original release, or split it into experts.N.gate_proj.weight (the first half "
            "of gate_up_proj's rows), experts.N.up_proj.weight and experts.N.down_proj.weight"
        )
    if not name.endswith(".weight") or len(info.shape) != 2:
        return False
    if info.dtype not in FLOATING:
        raise CheckpointError(
            f"{checkpoint.path}: {name} is {info.dtype}, where one of {', '.join(FLOATING)} is due; the "
            "file is damaged or of another kind: download it again"
        )
    if info.numel == 0:
        raise CheckpointError(
            f"{checkpoint.path}: {name} has the shape {list(info.shape)}, which holds no value; the "
            "checkpoint is damaged: download it again"
        )
    return _EMBEDDING.match(module_of(name)) is None


def check_against_config(checkpoint: Checkpoint) -> None:
    """Do layers, experts and vocabulary agree with the config?

    Raises
    ------
    CheckpointError
        Names the first key of config.json that the tensors contradict.
    """
    traits = traits_of(checkpoint.config)
    text = text_config_of(checkpoint.config)
    layers: set[int] = set()
    experts: dict[int, set[int]] = {}
    for name in checkpoint.tensors:
        if traits.vision and re.search(r"vision|visual", name):
            continue
        if found := _LAYER.search(name):
            layers.add(int(found[1]))
        if found := _EXPERT.search(name):
            experts.setdefault(int(found[1]), set()).add(int(found[2]))
    expected = set(range(traits.num_layers + traits.mtp_layers))

    def refuse(key: str, value: object, found: str) -> None:
        raise CheckpointError(
            f"{checkpoint.path}: config.json says {key} is {value}, but {found}; config and tensors are "
            "not of one model, or a shard is missing"
        )

    if layers - expected:
        refuse("num_hidden_layers", traits.num_layers, f"there are tensors of layer {max(layers)}")
    if expected - layers:
        first = min(expected - layers)
        key = "num_hidden_layers" if first < traits.num_layers else "num_nextn_predict_layers"
        value = traits.num_layers if first < traits.num_layers else traits.mtp_layers
        refuse(key, value, f"layer {first} has no tensors")
    for layer, found_experts in sorted(experts.items()):
        if found_experts != set(range(traits.experts)):
            refuse("the number of experts", traits.experts, f"layer {layer} has {len(found_experts)}")
    shape = (text.get("vocab_size"), text.get("hidden_size"))
    for name, info in checkpoint.tensors.items():
        if re.fullmatch(r"(.*\.)?(embed_tokens|lm_head)\.weight", name) and info.shape != shape:
            refuse("[vocab_size, hidden_size]", list(shape), f"{name} has the shape {list(info.shape)}")

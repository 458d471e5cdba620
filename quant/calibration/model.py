"""A checkpoint as a transformers model, loaded without running any code of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.checkpoint import Checkpoint
from equipoise.quant.geometry import Geometry, load_geometry
from equipoise.quant.layouts import CacheShape
from equipoise.quant.sglang.torchvision_ops import declare_torchvision_ops

__all__ = ["CalibrationModel", "load_model", "load_tokenizer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationModel:
    """A causal language model and what it caches. ``attention[i]`` is layer i's attention module."""

    causal_lm: Any
    geometry: Geometry
    shape: CacheShape
    attention: tuple[nn.Module, ...]
    device: str

    @property
    def groups(self) -> int:
        """KV heads whose cached values can be told apart: 1 for MLA's latent."""
        return self.shape.first[0] if self.shape.attention == "gqa" else 1


def load_model(folder: Path, *, dtype: str = "float32", device: str = "cpu") -> CalibrationModel:
    """Load a checkpoint folder of a Kimi, GLM, DeepSeek, Llama or Qwen type.

    Parameters
    ----------
    dtype : str
        "float32" or "bfloat16": of weights and computation. What is cached is BF16 either way.

    Raises
    ------
    CheckpointError
        The files are damaged, of an unknown type, or refused (pickles).
    UsageError
        Weights that are quantized, or a class that transformers lacks.
    """
    checkpoint = Checkpoint.open(folder)
    geometry = load_geometry(folder)
    _refuse_quantized(checkpoint.config, folder)
    declare_torchvision_ops()  # before transformers, which imports torchvision
    import transformers

    transformers.utils.logging.disable_progress_bar()
    options: dict[str, Any] = {
        "dtype": getattr(torch, dtype),
        "attn_implementation": "sdpa",
        "local_files_only": True,
        "trust_remote_code": False,
        "use_safetensors": True,
    }
    try:
        if checkpoint.config.get("model_type") == "kimi_k2":
            # transformers has no such type; the class is DeepSeek-V3's, as in the checkpoint's own code.
            config: Any = transformers.DeepseekV3Config(
                **{k: v for k, v in checkpoint.config.items() if k not in ("model_type", "auto_map")}
            )
            options.pop("trust_remote_code")
            model: Any = transformers.DeepseekV3ForCausalLM
        else:
            config = transformers.AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
            model = transformers.AutoModelForCausalLM
        if getattr(config, "quantization_config", None) is not None:
            del config.quantization_config  # of the KV cache alone: see _refuse_quantized
        causal_lm = model.from_pretrained(folder, config=config, **options)
    except (ValueError, KeyError, OSError, ImportError) as e:
        raise UsageError(
            f"transformers {transformers.__version__} cannot load {folder} without running the checkpoint's "
            f"own code, which is never done ({e})"
        ) from e
    causal_lm = causal_lm.to(device).eval()
    return CalibrationModel(
        causal_lm=causal_lm,
        geometry=geometry,
        shape=CacheShape.of(geometry),
        attention=_attention_modules(causal_lm, geometry, folder),
        device=device,
    )


def load_tokenizer(folder: Path) -> Any:
    """The checkpoint's tokenizer.

    Raises
    ------
    UsageError
        It needs code of the checkpoint, or is missing.
    """
    declare_torchvision_ops()
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (ValueError, KeyError, OSError, ImportError) as e:
        raise UsageError(
            f"the tokenizer of {folder} cannot be loaded without running the checkpoint's own code ({e}); "
            'give prompts as token ids: {"token_ids": [...]} lines in a .jsonl file'
        ) from e


def _refuse_quantized(config: Mapping[str, Any], folder: Path) -> None:
    nested = config.get("text_config")
    for section in (config, nested if isinstance(nested, Mapping) else {}):
        declared = section.get("quantization_config")
        if not isinstance(declared, Mapping):
            continue
        if declared.get("quant_method") == "compressed-tensors" and not declared.get("config_groups"):
            continue  # it quantizes the KV cache alone
        raise UsageError(
            f"{folder} holds quantized weights ({declared.get('quant_method', 'unknown')}); make a BF16 copy "
            "with `equipoise quant dequantize`, calibrate that, and give this one as --overlay-of"
        )


def _attention_modules(causal_lm: Any, geometry: Geometry, folder: Path) -> tuple[nn.Module, ...]:
    found: dict[int, nn.Module] = {}
    for name, module in causal_lm.named_modules():
        if name.endswith(".self_attn") and hasattr(module, "layer_idx") and hasattr(module, "o_proj"):
            found[int(module.layer_idx)] = module
    if sorted(found) != list(range(geometry.num_layers)):
        raise CheckpointError(
            f"{folder}: config.json says {geometry.num_layers} layers, but transformers built attention in "
            f"layers {sorted(found)}; this type of model cannot be calibrated here"
        )
    return tuple(found[i] for i in range(geometry.num_layers))

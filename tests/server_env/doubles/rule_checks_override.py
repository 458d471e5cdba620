"""The rule about --json-model-override-args, run against the installed sglang."""

import json
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from installed_sglang import source

from equipoise.evals.errors import UsageError
from equipoise.quant.explain.override import ALIASES, overridden, parse_override
from equipoise.quant.geometry.config import FAMILIES

EMBEDDED = Path(str(files("equipoise.tasks.embedded")))
KIMI, GLM = (
    json.loads((EMBEDDED / f"{name}_tiny" / "config.json").read_text(encoding="utf-8"))
    for name in ("kimi", "glm")
)
QUANTIZED = {"quant_method": "fp8", "activation_scheme": "dynamic"}
K25 = {
    "model_type": "kimi_k25",
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": KIMI | {"model_type": "kimi_k2", "quantization_config": QUANTIZED},
    "vision_config": {},
}
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (GLM, {}),
    (GLM, {"num_hidden_layers": 2, "no_such_key": 1}),
    (GLM, {"num_mtp_layers": 1, "num_local_experts": 4, "torch_dtype": "float16"}),
    (GLM, {"architectures": ["Qwen3ForCausalLM"], "quantization_config": QUANTIZED}),
    (GLM | {"quantization_config": QUANTIZED | {"fmt": "e4m3"}}, {"quantization_config": QUANTIZED}),
    (KIMI, {"rope_parameters": {"factor": 2.0}, "kv_lora_rank": 256}),
    (K25, {"text_config": {"num_hidden_layers": 2, "quantization_config": {"quant_method": "mxfp8"}}}),
    (K25, {"text_config": {"num_mtp_layers": 1}, "quantization_config": None}),
]  # fmt: skip
_READ = (
    "num_hidden_layers", "num_nextn_predict_layers", "n_routed_experts", "kv_lora_rank", "architectures",
    "quantization_config", "no_such_key",
)  # fmt: skip


def _theirs(config: Mapping[str, Any], override: Mapping[str, Any]) -> Any:
    from sglang.srt.utils.hf_transformers.config import get_config

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return get_config(folder, trust_remote_code=False, model_override_args=dict(override))


def config_override() -> None:
    for config, override in CASES:
        theirs, ours = _theirs(config, override), overridden(config, override)
        for key in (k for k in _READ if k in ours):
            assert getattr(theirs, key) == ours[key], (override, key)
        for key in (k for k in _READ if k in ours.get("text_config", {})):
            assert getattr(theirs.text_config, key) == ours["text_config"][key], (override, key)
        if rope := override.get("rope_parameters"):  # the class fills in keys of its own
            assert ours["rope_parameters"].keys() > rope.keys()
            assert ours["rope_parameters"].items() <= theirs.rope_parameters.items()
        if "torch_dtype" in override:
            assert theirs.dtype == ours["torch_dtype"] == "float16"
    _aliases_are_those_of_the_config_classes()
    _what_is_no_object_ends_the_launch()
    for symbol in ("ModelConfig.from_server_args", "ModelConfig.__init__"):
        assert "model_override_args" in source("configs/model_config.py", symbol)


def _aliases_are_those_of_the_config_classes() -> None:
    for family in FAMILIES:
        theirs = dict(_theirs({"model_type": family}, {}).attribute_map)
        if family == "qwen3_moe":
            theirs = {real: alias for alias, real in theirs.items()}
        assert theirs == ALIASES.get(family, {}), family


def _what_is_no_object_ends_the_launch() -> None:
    from sglang.srt.configs.model_config import ModelConfig

    for text in ("{", "[1]", '"num_hidden_layers"', "3"):
        with pytest.raises((ValueError, AttributeError)):
            ModelConfig(str(EMBEDDED / "glm_tiny"), model_override_args=text)
        with pytest.raises(UsageError):
            parse_override(text)


CHECKS = {"config-override": config_override}

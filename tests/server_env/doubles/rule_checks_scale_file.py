"""Rules about the file of --quantization-param-path, run against the installed sglang."""

import json
import math
import tempfile
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from rule_checks_backends import flash_query
from rule_checks_scales import hpc_scales

from equipoise.quant.explain.families import FAMILIES
from equipoise.quant.explain.scale_json import read_scale_file

NAN, INF = math.nan, math.inf


def _load_scales(model: Any, dtype: str, path: str | None = "scales.json") -> None:
    from sglang.srt.model_executor.model_runner_components import load_model_utils as module

    with patch.object(module, "get_model", lambda: SimpleNamespace(quantization_param_path=path)):
        module.load_kv_cache_scales(model=model, kv_cache_dtype=dtype)


def json_models() -> None:
    with pytest.raises(RuntimeError):
        _load_scales(object(), "fp8_e4m3")
    asked: list[str] = []
    _load_scales(SimpleNamespace(load_kv_cache_scales=asked.append), "fp8_e4m3")
    assert asked == ["scales.json"]
    for family in FAMILIES.values():
        module = import_module(
            "sglang.srt.models.mistral"
            if family.architecture == "MistralForCausalLM"
            else "sglang.srt." + family.file[:-3].replace("/", ".")
        )
        cls = getattr(module, family.architecture)
        assert callable(getattr(cls, "load_kv_cache_scales", None)) == family.reads_json, family.architecture


def json_only_e4m3() -> None:
    for dtype in ("fp8_e5m2", "auto", "bf16"):
        _load_scales(object(), dtype)  # would raise if the file were looked at


def _file(model_type: str = "llama", layers: int = 2, ranks: int = 1, value: Any = 0.5, **change: Any) -> Any:
    factors = {str(r): {str(i): value for i in range(layers)} for r in range(ranks)}
    cache = {"dtype": "float8_e4m3fn", "scaling_factor": factors} | change
    return {"model_type": model_type, "kv_cache": cache}


def json_schema() -> None:
    from sglang.srt.model_loader.weight_utils import kv_cache_scales_loader

    files = [
        _file(), _file(layers=1), _file(layers=3), _file(ranks=2), _file(model_type="qwen2"),
        _file(dtype="float8_e4m3fnuz"), _file(dtype="float8_e5m2"), {"kv_cache": _file()["kv_cache"]},
        {"model_type": "llama"}, _file(scaling_factor={"1": {"0": 0.5, "1": 0.5}}), [],
        _file(scaling_factor={"0": [0.5, 0.5]}), _file(value="a lot"),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for content in [*map(json.dumps, files), "{", ""]:
            path = Path(folder) / "scales.json"
            path.write_text(content)
            theirs = dict(kv_cache_scales_loader(str(path), 0, 1, 2, "llama"))
            ours = read_scale_file(str(path), model_type="llama", num_layers=2, tp_size=1)
            assert theirs == ours.scales, content
            assert bool(ours.error) == (not theirs), content
        missing = str(Path(folder) / "none.json")
        assert list(kv_cache_scales_loader(missing, 0, 1, 2, "llama")) == []
        assert read_scale_file(missing, model_type="llama", num_layers=2, tp_size=1).error


def json_unchecked() -> None:
    from sglang.srt.model_loader.weight_utils import kv_cache_scales_loader

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scales.json"
        for value in (0.0, -1.0, NAN, INF):
            path.write_text(json.dumps(_file(value=value)))
            theirs = dict(kv_cache_scales_loader(str(path), 0, 1, 2, "llama"))
            assert len(theirs) == 2, value
            assert str(theirs[0]) == str(value)
            assert read_scale_file(str(path), model_type="llama", num_layers=2, tp_size=1).bad == (0, 1)


class _Config:
    model_type = "llama"
    num_hidden_layers = 1


def _with_scales(attention: Any) -> None:
    from sglang.srt.models.llama import LlamaModel

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scales.json"
        path.write_text(json.dumps(_file(layers=1)))
        config = _Config()
        layers = [SimpleNamespace(self_attn=SimpleNamespace(attn=attention))]
        model = SimpleNamespace(_kv_cache_parallel_layout=(0, 1), config=config, layers=layers)
        LlamaModel.load_kv_cache_scales(model, str(path))


def json_float() -> None:
    attention = SimpleNamespace(k_scale=None, v_scale=None, k_scale_float=None)
    _with_scales(attention)
    assert (attention.k_scale, attention.v_scale, attention.k_scale_float) == (0.5, 0.5, None)
    assert isinstance(attention.k_scale, float)


def json_parameter() -> None:
    attention = torch.nn.Module()
    for name in ("k_scale", "v_scale"):
        attention.register_parameter(name, torch.nn.Parameter(torch.tensor(-1.0), requires_grad=False))
    with pytest.raises(TypeError, match="as parameter 'k_scale'"):
        _with_scales(attention)


def json_fa3() -> None:
    with pytest.raises(AttributeError, match="expand"):
        flash_query(3, prefill=False, scale=0.5)


def json_hpc_ops() -> None:
    with pytest.raises(AttributeError, match="reshape"):
        hpc_scales(0.5)


CHECKS = {
    f.__name__.replace("_", "-"): f
    for f in (
        json_models, json_only_e4m3, json_schema, json_unchecked, json_float, json_parameter, json_fa3,
        json_hpc_ops,
    )
}  # fmt: skip

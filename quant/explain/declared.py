"""What a checkpoint's quantization config says about its KV cache, and what of that counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["DeclaredKV", "declared_kv"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredKV:
    """``algorithm`` is SGLang's kv_cache_quant_algo, which turns "auto" into FP8 where it is "FP8".

    ``gives_scales``: attention layers that get this config have scales. ``scheme``: the words that declare
    a quantized cache, "" if none do. ``dropped``: why they do not count, "" if they do.
    """

    method: str
    algorithm: str = ""
    gives_scales: bool = False
    known: bool = True
    scheme: str = ""
    dropped: str = ""
    rule: str = "scale-method"

    @property
    def is_fp8(self) -> bool:
        return self.algorithm.upper() == "FP8"


_WITHOUT_SCALES = (
    "awq",
    "awq_marlin",
    "gptq",
    "gptq_marlin",
    "bitsandbytes",
    "gguf",
    "w8a8_int8",
    "w8a8_fp8",
)


def declared_kv(  # noqa: PLR0911  one return for each quantization method
    config: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None, quantization: str | None
) -> DeclaredKV:
    """What SGLang makes of config.json, hf_quant_config.json and ``--quantization``."""
    section = _section(config)
    if section is None:
        if hf_quant_config is not None:
            nested = hf_quant_config.get("quantization")
            found = nested if isinstance(nested, Mapping) else hf_quant_config
            return _modelopt(found, "hf_quant_config.json")
        if quantization in ("fp8", "mxfp8"):
            return DeclaredKV(method=quantization, gives_scales=True)
        return DeclaredKV(method=quantization or "none", known=not quantization)
    method = str(section.get("quant_method") or "").lower()
    if not method or method.startswith("modelopt"):
        return _shadowed(_modelopt(section, "quantization_config"), section, hf_quant_config)
    if method in ("compressed-tensors", "compressed_tensors"):
        return _shadowed(_compressed_tensors(section), section, hf_quant_config)
    if method in ("fp8", "mxfp8"):
        return _shadowed(_fp8(section, method), section, hf_quant_config)
    return DeclaredKV(method=method, known=method in _WITHOUT_SCALES)


def _section(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """In SGLang's order: the config's own, that of its text model, compression_config."""
    text = config.get("text_config")
    for owner, key in (
        (config, "quantization_config"),
        (text, "quantization_config"),
        (config, "compression_config"),
    ):
        if isinstance(owner, Mapping) and isinstance(found := owner.get(key), Mapping):
            return found
    return None


def _compressed_tensors(section: Mapping[str, Any]) -> DeclaredKV:
    scheme = section.get("kv_cache_scheme")
    if not isinstance(scheme, Mapping):
        return DeclaredKV(method="compressed-tensors")
    wanted = {"type": "float", "num_bits": 8, "strategy": "tensor"}
    wrong = [f"{k} {scheme.get(k)!r} (not {v!r})" for k, v in wanted.items() if scheme.get(k) != v]
    if not scheme.get("symmetric", True):
        wrong.append("symmetric false")
    if scheme.get("dynamic", False):
        wrong.append("dynamic true")
    return DeclaredKV(
        method="compressed-tensors",
        algorithm="" if wrong else "FP8",
        gives_scales=not wrong,
        scheme="kv_cache_scheme",
        dropped="; ".join(wrong),
        rule="scheme-compressed-tensors",
    )


def _fp8(section: Mapping[str, Any], method: str) -> DeclaredKV:
    algorithm = section.get("kv_cache_quant_algo")
    beside = section.get("kv_cache_scheme") is not None and not algorithm
    return DeclaredKV(
        method=method,
        algorithm=algorithm if isinstance(algorithm, str) else "",
        gives_scales=True,
        scheme="kv_cache_scheme" if beside else "kv_cache_quant_algo" if algorithm else "",
        dropped="quant_method fp8 reads kv_cache_quant_algo, not kv_cache_scheme" if beside else "",
        rule="scheme-fp8",
    )


def _modelopt(section: Mapping[str, Any], where: str) -> DeclaredKV:
    quantized = str(section.get("quant_algo") or "").upper()
    scheme, algorithm = section.get("kv_cache_scheme"), section.get("kv_cache_quant_algo")
    name, dropped = ("kv_cache_quant_algo" if algorithm else ""), ""
    if isinstance(scheme, Mapping):
        name, algorithm = "kv_cache_scheme", "FP8"
        if scheme.get("type") != "float" or scheme.get("num_bits") != 8:
            algorithm = None if quantized == "FP8" else "auto"
            dropped = "type is not float or num_bits not 8"
    if quantized not in ("FP8", "MXFP8") and not algorithm:
        algorithm = "auto"  # modelopt_fp4 gives its attention layers scales anyhow
    method = {"FP8": "modelopt_fp8", "MXFP8": "mxfp8", "MIXED_PRECISION": "modelopt_mixed"}.get(quantized)
    method = method or ("modelopt_fp4" if "FP4" in quantized else "")
    return DeclaredKV(
        method=method or f"modelopt ({quantized or 'no quant_algo'})",
        algorithm=algorithm if isinstance(algorithm, str) else "",
        gives_scales=bool(algorithm) or method == "mxfp8",
        known=bool(method),
        scheme=f"{where}: {name}" if name else "",
        dropped=dropped,
        rule="scheme-modelopt",
    )


def _shadowed(
    found: DeclaredKV, section: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None
) -> DeclaredKV:
    """hf_quant_config.json beside a quantization config: what only the file declares does not count."""
    if hf_quant_config is None or found.scheme:
        return found
    nested = hf_quant_config.get("quantization")
    file = nested if isinstance(nested, Mapping) else hf_quant_config
    if not file.get("kv_cache_quant_algo"):
        return found
    if found.method == "modelopt_mixed":
        return _modelopt({**section, **file, "quant_algo": "MIXED_PRECISION"}, "hf_quant_config.json")
    return DeclaredKV(
        method=found.method,
        algorithm=found.algorithm,
        gives_scales=found.gives_scales,
        known=found.known,
        scheme="hf_quant_config.json: kv_cache_quant_algo",
        dropped="config.json has a quantization config of its own, and only that is read",
        rule="scheme-no-config",
    )

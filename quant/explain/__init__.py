"""What an SGLang server will really do with its KV cache: dtype, layout, backends, scales, faults."""

from equipoise.quant.explain.explainer import explain, with_peer
from equipoise.quant.explain.hardware import HARDWARE, Hardware, find_hardware, hardware_of_gpu
from equipoise.quant.explain.model import Explanation, Finding, Row, Rule, ScaleRow
from equipoise.quant.explain.pairs import pair_findings
from equipoise.quant.explain.rules import RULES

__all__ = [
    "HARDWARE",
    "RULES",
    "Explanation",
    "Finding",
    "Hardware",
    "Row",
    "Rule",
    "ScaleRow",
    "explain",
    "find_hardware",
    "hardware_of_gpu",
    "pair_findings",
    "with_peer",
]

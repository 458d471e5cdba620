"""Every rule an explanation rests on, by id."""

from equipoise.quant.explain.model import Rule
from equipoise.quant.explain.rules.launch import LAUNCH_RULES
from equipoise.quant.explain.rules.scale_file import SCALE_FILE_RULES
from equipoise.quant.explain.rules.scales import SCALE_RULES

__all__ = ["RULES"]

RULES: dict[str, Rule] = {r.id: r for r in (*LAUNCH_RULES, *SCALE_RULES, *SCALE_FILE_RULES)}

"""How Kimi's and GLM's vendors say their models should be asked, where they say it of a kind of task.

``k`` in the vendors' tables is 1,024 tokens.
"""

from collections.abc import Mapping

from equipoise.tasks.card import Advice

__all__ = ["AIME", "OTHER", "REASONING"]

_KIMI = "https://platform.kimi.ai/docs/guide/benchmark-best-practice"
_GLM = "https://huggingface.co/zai-org/GLM-5, footnote on HLE and other reasoning tasks"

#: Knowledge, mathematics and reasoning that the vendors do not list by name.
REASONING: Mapping[str, Advice] = {
    "kimi": Advice(
        temperature=1.0,
        top_p=0.95,
        max_new_tokens=131_072,
        thinking="on",
        source=f"{_KIMI}: reasoning benchmarks",
    ),
    "glm": Advice(temperature=1.0, top_p=0.95, max_new_tokens=131_072, source=_GLM),
}
AIME: Mapping[str, Advice] = {
    "kimi": Advice(
        temperature=1.0,
        top_p=0.95,
        max_new_tokens=98_304,
        thinking="on",
        repeats=32,
        source=f"{_KIMI}, AIME 2025 without tools; the same in https://github.com/MoonshotAI/Kimi-Vendor-Verifier",
    ),
    "glm": REASONING["glm"],
}
#: Benchmarks of no kind that the vendors list.
OTHER: Mapping[str, Advice] = {
    "kimi": Advice(temperature=1.0, top_p=0.95, source=f"{_KIMI}: unlisted benchmarks"),
    "glm": Advice(
        temperature=1.0, source="https://huggingface.co/zai-org/GLM-4.6, recommended for general evaluations"
    ),
}

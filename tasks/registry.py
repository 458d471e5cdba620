"""All tasks by name. To add one: write its file, add its line."""

from collections.abc import Mapping
from types import MappingProxyType

from equipoise.evals.types import Task
from equipoise.tasks.addition import Addition
from equipoise.tasks.aime import Aime
from equipoise.tasks.arc_challenge import ArcChallenge
from equipoise.tasks.arc_easy import ArcEasy
from equipoise.tasks.bbh import Bbh
from equipoise.tasks.bfcl import Bfcl
from equipoise.tasks.boolq import BoolQ
from equipoise.tasks.brackets import Brackets
from equipoise.tasks.copa import Copa
from equipoise.tasks.copy import Copy
from equipoise.tasks.dialog_recall import DialogRecall
from equipoise.tasks.gpqa_diamond import GpqaDiamond
from equipoise.tasks.gsm8k import Gsm8k
from equipoise.tasks.hellaswag import HellaSwag
from equipoise.tasks.humaneval import HumanEval
from equipoise.tasks.ifeval import IFEval
from equipoise.tasks.kimi_tools import ToolSchema, ToolTrigger
from equipoise.tasks.kv_retrieval import KvRetrieval
from equipoise.tasks.lambada import Lambada
from equipoise.tasks.livecodebench import LiveCodeBench
from equipoise.tasks.logprob import Logprob
from equipoise.tasks.logprob_text import LogprobText
from equipoise.tasks.long.coreference import Coreference
from equipoise.tasks.long.niah import Niah
from equipoise.tasks.long.niah_multi import NiahMulti
from equipoise.tasks.long.var_tracking import VarTracking
from equipoise.tasks.long.word_count import WordCount
from equipoise.tasks.math_500 import Math500
from equipoise.tasks.mbpp import MBPP
from equipoise.tasks.mgsm import Mgsm
from equipoise.tasks.mmlu_pro import MmluPro
from equipoise.tasks.mmlu_redux import MmluRedux
from equipoise.tasks.multi_turn_recall import MultiTurnRecall
from equipoise.tasks.openbookqa import OpenBookQA
from equipoise.tasks.piqa import Piqa
from equipoise.tasks.sort import Sort
from equipoise.tasks.winogrande import Winogrande

__all__ = ["TASKS"]

TASKS: Mapping[str, Task] = MappingProxyType(
    {
        "kv_retrieval": KvRetrieval(),
        "dialog_recall": DialogRecall(),
        "copy": Copy(),
        "sort": Sort(),
        "brackets": Brackets(),
        "addition": Addition(),
        "logprob": Logprob(),
        "arc_easy": ArcEasy(),
        "lambada": Lambada(),
        "ifeval": IFEval(),
        "bfcl": Bfcl(),
        "mmlu_pro": MmluPro(),
        "mmlu_redux": MmluRedux(),
        "gpqa_diamond": GpqaDiamond(),
        "gsm8k": Gsm8k(),
        "math_500": Math500(),
        "aime": Aime(),
        "mgsm": Mgsm(),
        "bbh": Bbh(),
        "niah": Niah(),
        "niah_multi": NiahMulti(),
        "var_tracking": VarTracking(),
        "word_count": WordCount(),
        "coreference": Coreference(),
        "multi_turn_recall": MultiTurnRecall(),
        "logprob_text": LogprobText(),
        "tool_trigger": ToolTrigger(),
        "tool_schema": ToolSchema(),
        "arc_challenge": ArcChallenge(),
        "piqa": Piqa(),
        "copa": Copa(),
        "winogrande": Winogrande(),
        "hellaswag": HellaSwag(),
        "boolq": BoolQ(),
        "openbookqa": OpenBookQA(),
        "humaneval": HumanEval(),
        "livecodebench": LiveCodeBench(),
        "mbpp": MBPP(),
    }
)

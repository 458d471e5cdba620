"""Rows of multiple-choice data in the hub's form, and lm-eval's definition of each task."""

from typing import Any

from equipoise.tasks.arc_challenge import ArcChallenge
from equipoise.tasks.boolq import BoolQ
from equipoise.tasks.copa import Copa
from equipoise.tasks.hellaswag import HellaSwag
from equipoise.tasks.multiple_choice import MultipleChoiceTask
from equipoise.tasks.openbookqa import OpenBookQA
from equipoise.tasks.piqa import Piqa
from equipoise.tasks.winogrande import Winogrande

__all__ = ["HUB", "LISTED"]

LISTED = {"text": ["one", "two ", "three"], "label": ["A", "B", "C"]}
#: task, its file among lm-eval's, rows as on the hub
HUB: dict[str, tuple[MultipleChoiceTask, str, list[dict[str, Any]]]] = {
    "arc_challenge": (
        ArcChallenge(),
        "arc/arc_challenge.yaml",
        [
            {"id": "1", "question": "What is it?", "choices": LISTED, "answerKey": "B"},
            {
                "id": "2",
                "question": "Which?",
                "choices": {"text": ["é", "bb"], "label": ["1", "2"]},
                "answerKey": "1",
            },
        ],
    ),
    "piqa": (
        Piqa(),
        "piqa/piqa.yaml",
        [
            {"goal": "dresser", "sol1": "replace drawer", "sol2": "finish,  wood grain", "label": 1},
            {"goal": "Peel it ", "sol1": "übung", "sol2": "knife", "label": 0},
        ],
    ),
    "copa": (
        Copa(),
        "super_glue/copa/default.yaml",
        [
            {
                "premise": "The man turned on the faucet.",
                "question": "effect",
                "choice1": "The toilet filled with water.",
                "choice2": "Water flowed from the spout.",
                "label": 1,
                "idx": 0,
            },
            {
                "premise": "The meat browned. ",
                "question": "cause",
                "choice1": "I froze it.",
                "choice2": "The cook grilled it.",
                "label": 1,
                "idx": 1,
            },
        ],
    ),
    "winogrande": (
        Winogrande(),
        "winogrande/default.yaml",
        [
            {
                "sentence": "Sarah beat Maria so _ got the easy cases.",
                "option1": "Sarah",
                "option2": "Maria",
                "answer": "2",
            },
            {"sentence": "The _ did not fit, it is big.", "option1": "cup", "option2": "box", "answer": "1"},
        ],
    ),
    "hellaswag": (
        HellaSwag(),
        "hellaswag/hellaswag.yaml",
        [
            {
                "ind": 1,
                "activity_label": "Roof",
                "ctx_a": "A man sits. [step] He",
                "ctx_b": "he then",
                "ctx": "A man sits. he",
                "endings": ["is up [title] Now", "  goes [substeps] away.", "né", "x  y"],
                "label": "3",
                "source_id": "activitynet~v_1",
            },
            {
                "ind": 2,
                "activity_label": "Cook",
                "ctx_a": "[header] How to cook [title] Buy.",
                "ctx_b": "",
                "ctx": "",
                "endings": ["one", "two", "three", "four"],
                "label": "0",
                "source_id": "wikihow~1",
            },
        ],
    ),
    "boolq": (
        BoolQ(),
        "super_glue/boolq/default.yaml",
        [
            {"passage": "Ethanol -- It is.\nQuestion: none", "question": "is it", "label": 1, "idx": 0},
            {"passage": "House tax -- It is.", "question": "is it one", "label": 0, "idx": 1},
        ],
    ),
    "openbookqa": (
        OpenBookQA(),
        "openbookqa/openbookqa.yaml",
        [
            {"id": "1", "question_stem": "Predators eat", "choices": LISTED, "answerKey": "C"},
            {"id": "2", "question_stem": "There is fog around:  ", "choices": LISTED, "answerKey": " A"},
        ],
    ),
}

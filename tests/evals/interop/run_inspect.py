"""Run inspect with its mock model; ``run_inspect.py DIRECTORY`` writes all its logs there.

Two epochs of 20 sums. In every log the samples 14 to 19 end in their own ways: an error of the solver, the
token limit, ``max_tokens``, a content filter, an empty answer, a scorer without a value. Of the candidate,
three sums more are wrong, one of them in its first epoch only.
"""

import sys
from pathlib import Path

from inspect_ai import Epochs, Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, accuracy, match, mean, scorer
from inspect_ai.solver import generate, solver

N = 20
MODEL = "mockllm/model"


@solver
def fails():
    async def solve(state, generate):
        if state.sample_id == "sum-14":
            raise ValueError("the connection was lost")
        return state

    return solve


@scorer(metrics={"exact": [accuracy()], "close": [mean()]})
def graded():
    async def score(state, target):
        right = state.output.completion == target.text
        return Score(value={"exact": float(right), "close": 1.0 if right else 0.25})

    return score


@scorer(metrics=[accuracy()])
def sometimes():
    async def score(state, target):
        if state.sample_id == "sum-19":
            return Score.unscored(explanation="the grader did not answer")
        return Score(value="C" if state.output.completion == target.text else "I")

    return score


def dataset(text="What is {} + 1?"):
    return [
        Sample(
            id=f"sum-{i}",
            # a list of messages for the first: message ids are new in every run
            input=[ChatMessageSystem(content="Add."), ChatMessageUser(content=text.format(i))]
            if i == 0
            else text.format(i),
            target=str(i + 1),
            metadata={"page": f"p{i // 4}"},
        )
        for i in range(N)
    ]


def outputs(wrong, wrong_once, skip):
    for epoch in range(2):
        for i in range(N):
            if i in skip:
                continue
            text, stop, tokens = str(i + 1), "stop", 2
            if i in wrong or (i in wrong_once and epoch == 0):
                text = "7000"
            if i == 15:
                text, tokens = "I think", 500  # beyond the token limit
            elif i == 16:
                text, stop, tokens = "Let me see", "max_tokens", 16
            elif i == 17:
                text, stop = "", "content_filter"
            elif i == 18:
                text = ""
            output = ModelOutput.from_content(MODEL, text, stop_reason=stop)
            output.usage = ModelUsage(input_tokens=5, output_tokens=tokens, total_tokens=5 + tokens)
            yield output


def run(directory, name, log_format, wrong, wrong_once=(), **changes):
    arguments = {
        "name": "sums",
        "dataset": dataset(),
        "solver": [fails(), generate()],
        "scorer": [match(), graded(), sometimes()],
        "epochs": Epochs(2, "mean"),
        "token_limit": 100,
        "fail_on_error": False,
    } | changes
    (log,) = eval(
        Task(**arguments),
        model=get_model(MODEL, custom_outputs=list(outputs(wrong, wrong_once, {14}))),
        log_dir=str(directory / name),
        log_format=log_format,
        display="none",
        max_samples=1,
    )
    print(name, log.status)


def main(directory: Path) -> None:
    run(directory, "baseline", "eval", {1})
    run(directory, "baseline_json", "json", {1})
    run(directory, "candidate", "eval", {1, 2, 3}, {4})
    run(directory, "other_words", "eval", {1}, dataset=dataset("Add {} and 1.")[:2])
    run(directory, "stopped", "eval", {1}, fail_on_error=True)  # ends at the first error


if __name__ == "__main__":
    main(Path(sys.argv[1]))

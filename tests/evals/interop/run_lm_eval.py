"""Run lm-eval against a stub server and a stub model; ``run_lm_eval.py DIRECTORY`` writes all its logs there.

``sums`` is generated and has two filters; ``signs`` is multiple choice (two metrics). Of the candidate,
four sums are wrong, one is written in words (the strict filter alone misses it) and one answer is null.
``prompt`` is the baseline asked in other words.
"""

import json
import re
import sys
from pathlib import Path

from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))

from stub_model import Answer, serve

N = 40
SUMS = """
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}, cache_dir: {cache}}}
test_split: test
output_type: generate_until
doc_to_text: "{prompt}: {{{{question}}}}\\nA:"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 16}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
filter_list:
  - {{name: strict, filter: [{{function: take_first}}]}}
  - {{name: flexible, filter: [{{function: regex, regex_pattern: "(\\\\d+)"}}, {{function: take_first}}]}}
metadata: {{version: 1.0}}
"""
SIGNS = """
task: signs
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}, cache_dir: {cache}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["even", "odd"]
doc_to_target: "{{{{parity}}}}"
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
metadata: {{version: 1.0}}
"""


def sums(wrong: set[int], words: set[int] = frozenset(), null: set[int] = frozenset()):
    def answer(prompt: str) -> Answer:
        i = int(re.findall(r"(\d+) \+ 1", prompt)[-1])
        if i in null:
            return Answer(None)
        return Answer("no idea" if i in wrong else f"it is {i + 1}" if i in words else str(i + 1))

    return answer


class Signs(LM):
    """Finds even and odd, but for ``wrong``."""

    def __init__(self, wrong: set[int]) -> None:
        super().__init__()
        self.wrong = wrong

    def loglikelihood(self, requests):
        found = []
        for request in requests:
            question, choice = request.args
            i = int(re.findall(r"\d+", question)[0])
            likes = "odd" if (i % 2 == 1) != (i in self.wrong) else "even"
            found.append((-0.5 if choice.strip() == likes else -2.5, choice.strip() == likes))
        return found

    def loglikelihood_rolling(self, requests):
        raise NotImplementedError

    def generate_until(self, requests):
        raise NotImplementedError


def evaluate(out: Path, tasks: Path, task: str, model, name: str) -> None:
    tracker = EvaluationTracker(output_path=str(out))
    arguments = {"model_args": model} if isinstance(model, dict) else {}
    results = simple_evaluate(
        model="local-completions" if isinstance(model, dict) else model,
        tasks=[task],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
        evaluation_tracker=tracker,
        **arguments,
    )
    tracker.general_config_tracker.model_name = name
    tracker.general_config_tracker.model_name_sanitized = name.replace("/", "__")
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    tracker.save_results_samples(task_name=task, samples=samples[task])


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    data = directory / "items.jsonl"
    rows = (
        {"question": f"{i} + 1", "answer": str(i + 1), "parity": i % 2, "page": f"p{i // 4}"}
        for i in range(N)
    )
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for prompt, tasks in (("Q", directory / "tasks"), ("Please", directory / "other_tasks")):
        tasks.mkdir()
        values = {"data": data, "cache": directory / "cache", "prompt": prompt}
        (tasks / "sums.yaml").write_text(SUMS.format(**values))
        (tasks / "signs.yaml").write_text(SIGNS.format(**values))
    for name, tasks, answer in (
        ("baseline", "tasks", sums({3, 4})),
        ("candidate", "tasks", sums({3, 5, 6, 7}, words={8}, null={9})),
        ("prompt", "other_tasks", sums({3, 4})),
    ):
        with serve(answer) as url:
            model = {
                "model": f"org/{name}",
                "base_url": f"{url}/v1/completions",
                "tokenizer_backend": None,
                "num_concurrent": 4,
                "max_retries": 1,
            }
            evaluate(directory / name, directory / tasks, "sums", model, f"org/{name}")
    for name, wrong in (("baseline", {1}), ("candidate", {1, 2})):
        evaluate(directory / name, directory / "tasks", "signs", Signs(wrong), f"org/{name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""A run of tasks of every kind, with every outcome an answer can have: what exports must carry over."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from cli_runs import plan_file
from run_doubles import output

from equipoise.evals.experiment.questions import Question, questions_of
from equipoise.evals.journal import Journal
from equipoise.evals.plan import load_plan
from equipoise.evals.types import Output, Request, Sample, SampleKey, TaskItem

__all__ = ["outcome_run"]

ARMS = [
    {"name": "A1", "role": "baseline", "url": "http://a"},
    {"name": "A2", "role": "baseline_repeat", "url": "http://a"},
    {"name": "B", "role": "candidate", "url": "http://b"},
]
YAML = """
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}, cache_dir: {cache}}}
test_split: test
output_type: generate_until
doc_to_text: "Q: {{{{question}}}}\\nA:"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 16}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
filter_list:
  - {{name: digits, filter: [{{function: regex, regex_pattern: "(\\\\d+)"}}, {{function: take_first}}]}}
metadata: {{version: 1.0}}
"""


def outcome_run(root: Path) -> Path:
    """Make the run in ``root``, which must be EQUIPOISE_DATA while it is read; its directory.

    Items 0 to 5 of each task differ between the arms, see `_sample`. Needs lm-eval.
    """
    (root / "multiple_choice").mkdir()
    arc = [
        {"query": f"Question: {i}?", "choices": ["yes", "no", "so"][: 2 + i % 2], "gold": 0}
        for i in range(20)
    ]
    _rows(root / "multiple_choice" / "arc_easy.jsonl", arc)
    sums = [{"question": f"{i} + 1", "answer": str(i + 1)} for i in range(16)]
    _rows(root / "sums.jsonl", sums)
    (root / "sums.yaml").write_text(YAML.format(data=root / "sums.jsonl", cache=root / "cache"))
    tasks = [
        {"name": "copy", "critical": True, "items": 12, "repeats": 2, "margin": 0.05},
        {"name": "dialog_recall", "items": 8, "margin": 0.05},
        {"name": "arc_easy", "items": 20, "margin": 0.05},
        {"name": "sums", "file": "sums.yaml", "items": 16, "margin": 0.05},
        {"name": "logprob", "items": 2, "margin_nats": 0.01},
    ]
    plan = load_plan(plan_file(root / "p.toml", ARMS, tasks))
    directory = root / "out"
    directory.mkdir()
    with Journal.create(
        directory / "journal.sqlite",
        plan_hash=plan.content_hash,
        plan_text=json.dumps(plan.model_dump(mode="json")),
        provenance={},
    ) as journal:
        for question in questions_of(plan):
            for i, item in enumerate(question.items):
                for arm in ("A1", "A2", "B"):
                    for repeat in range(question.spec.repeats):
                        journal.put(_sample(question, item, arm, i, repeat))
    return directory


def _rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _sample(question: Question, item: TaskItem, arm: str, i: int, repeat: int) -> Sample:
    """B loses items 0 and 1, is cut off at 2, says nothing at 3, fails at 4; item 5 fails in both."""
    key = SampleKey(model="m", arm=arm, task=question.spec.name, item_id=item.id, repeat=repeat)
    outputs: list[Output] = []
    error = "timeout" if (arm == "B" and i == 4) or i == 5 else None
    while not error and (request := question.generation.next_request(question.task, item, outputs)):
        outputs.append(_reply(request, item, wrong=i in (7, 8) or (arm == "B" and i in (0, 1))))
    if outputs and arm == "B" and i in (2, 3) and outputs[-1].prompt_logprobs is None:
        change = {"finish_reason": "length"} if i == 2 else {"text": None}
        outputs[-1] = replace(outputs[-1], **change)
    return Sample(
        key=key,
        content_hash=item.content_hash,
        outputs=tuple(outputs),
        attempts=max(1, len(outputs)),
        started_unix_s=1.0,
        latency_s=0.1,
        error=error,
    )


def _reply(request: Request, item: TaskItem, *, wrong: bool) -> Output:
    if request.prompt_logprobs is None:
        return output(
            "7" if wrong else item.target.split(" | ")[-1], prompt_tokens=len(request.text or "") or 9
        )
    length = len(request.input_ids or request.text or "")
    start = request.prompt_logprobs.start
    right = (request.text or "").endswith(f" {item.target}")
    ids = tuple(range(length - start))
    return output(
        "",
        prompt_tokens=length,
        prompt_logprobs_start=start,
        prompt_logprobs=(None, *[-1.0 if right != wrong else -3.0] * (len(ids) - 1)),
        prompt_token_ids=ids,
        prompt_top1_ids=ids,
    )

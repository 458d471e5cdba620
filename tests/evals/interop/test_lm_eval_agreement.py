"""The same questions to the same real server by lm-eval itself and by us: answers and scores are the same.

By lm-eval: its own definitions of ARC-Easy, LAMBADA and GSM8K (a task of copying too, which the embedded
model can do). By us: our own ``arc_easy`` and ``lambada``, and all four through the adapter.
"""

import asyncio
import json
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from equipoise.evals.backends.sglang_http import SglangHttp
from equipoise.evals.backends.sglang_server import SglangServer, choose_port
from equipoise.evals.experiment.serving import launch_for
from equipoise.evals.types import Output, Sample, SampleKey, Score, ScoreStatus, Task, TaskItem
from equipoise.tasks.arc_easy import ArcEasy
from equipoise.tasks.copy import Copy
from equipoise.tasks.lambada import Lambada
from equipoise.tasks.lm_eval_task import load_lm_eval_task
from equipoise.tasks.options import with_options
from equipoise.tasks.rows import read_rows

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install -e '.[dev]'")
pytestmark = [pytest.mark.server]

HERE = Path(__file__).parent
WORDS = re.findall(r"\w+", "a boat can drift on the river when no one holds the rope and may stop at a stone")
COPY = """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 40, do_sample: false}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    model: str
    items: dict[str, int]
    gsm8k_tokens: int
    gsm8k_shots: int


EMBEDDED = Case(
    model="embedded:kimi_tiny",
    items={"copy": 30, "arc_easy": 30, "lambada": 30, "gsm8k": 10},
    gsm8k_tokens=16,
    gsm8k_shots=1,
)
SMOLLM2 = Case(
    model="models/smollm2",
    items={"arc_easy": 250, "lambada": 250, "gsm8k": 40},
    gsm8k_tokens=96,
    gsm8k_shots=2,
)


def rows_of(name: str, n: int) -> list[dict[str, Any]]:
    """Public rows where they are at hand, else made-up ones of the same form."""
    if name == "copy":
        return [
            {"question": f"<bos><user>{i.inputs['question']}<assistant>", "answer": i.target}
            for i in Copy().items(n, seed=5)
        ]
    file = {
        "arc_easy": "multiple_choice/arc_easy.jsonl",
        "lambada": "multiple_choice/lambada_openai.jsonl",
        "gsm8k": "gsm8k/test.jsonl",
    }[name]
    public = Path(os.environ.get("EQUIPOISE_DATA", "/nowhere")) / file
    if public.is_file():
        return list(map(dict, read_rows(public)))[:n]
    text = [" ".join(WORDS[(i * 7 + k * (i + 1)) % len(WORDS)] for k in range(9)) for i in range(n)]
    if name == "arc_easy":
        return [
            {"query": f"Question: {t}?", "choices": WORDS[i % 9 : i % 9 + 4], "gold": i % 4}
            for i, t in enumerate(text)
        ]
    if name == "lambada":
        return [{"context": t, "continuation": WORDS[i % 9]} for i, t in enumerate(text)]
    return [{"question": f"{i} and {i}: {t}?", "answer": f"{t}\n#### {2 * i}"} for i, t in enumerate(text)]


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prepare(directory: Path, case: Case) -> None:
    """lm-eval's definitions over our rows in ``tasks``; the same rows in our tasks' form in ``data``."""
    from equipoise.tasks.lm_eval.finding import installed_root

    def define(name: str, body: str, rows: Sequence[dict[str, Any]], shots: Sequence[dict[str, Any]]) -> None:
        data = {"test": str(write(directory / f"{name}.jsonl", rows))}
        data |= {s: str(write(directory / f"{name}-{s}.jsonl", shots)) for s in ("train", "validation")}
        (directory / "tasks" / f"{name}.yaml").write_text(
            f"{body}\ntask: {name}\ndataset_path: json\ndataset_name: null\ntest_split: test\n"
            f"dataset_kwargs: {json.dumps({'data_files': data, 'cache_dir': str(directory / 'cache')})}\n"
        )

    (directory / "tasks").mkdir()
    own = installed_root()
    for name, n in case.items.items():
        rows = rows_of(name, n + 20)
        asked, shots = rows[:n], rows[n:]
        if name == "copy":
            define(name, COPY, asked, shots)
        elif name == "gsm8k":
            body = (
                f"include: {own / 'gsm8k' / 'gsm8k.yaml'}\nnum_fewshot: {case.gsm8k_shots}\n"
                f"generation_kwargs: {{until: ['Question:', '</s>', '<|im_end|>'], do_sample: false, "
                f"temperature: 0.0, max_gen_toks: {case.gsm8k_tokens}}}"
            )
            define(name, body, asked, shots)
        elif name == "arc_easy":
            write(directory / "data" / ArcEasy.source.local, asked)
            hub = [
                {
                    "question": row["query"].removeprefix("Question: "),
                    "choices": {"text": row["choices"], "label": [*"ABCDE"[: len(row["choices"])]]},
                    "answerKey": "ABCDE"[row["gold"]],
                }
                for row in rows
            ]
            define(name, f"include: {own / 'arc' / 'arc_easy.yaml'}", hub[:n], hub[n:])
        else:
            write(directory / "data" / Lambada.source.local, asked)
            text = [{"text": f"{row['context']} {row['continuation']}"} for row in rows]
            define(name, f"include: {own / 'lambada' / 'lambada_openai.yaml'}", text[:n], text[n:])


async def lm_eval(url: str, checkpoint: Path, directory: Path, names: Sequence[str]) -> dict[str, list[Any]]:
    """lm-eval's samples by task, in its own process."""
    log = (directory / "lm_eval.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        str(HERE / "run_lm_eval_server.py"),
        *(url, str(checkpoint), str(directory / "tasks"), str(directory / "theirs"), ",".join(names)),
        stdout=log,
        stderr=log,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HOME": str(directory)},
    )
    code = await process.wait()
    assert code == 0, (directory / "lm_eval.log").read_text()[-4000:]
    found = {}
    for name in names:
        (path,) = (directory / "theirs").rglob(f"samples_{name}_*.jsonl")
        found[name] = [json.loads(line) for line in path.read_text().splitlines()]
    return found


@dataclass(frozen=True, kw_only=True)
class Answered:
    index: int
    item: TaskItem
    outputs: tuple[Output, ...]
    score: Score


async def ours(url: str, task: Task, n: int) -> list[Answered]:
    """The same questions through our backend, one after another, each in a cache namespace of its own."""
    backend = SglangHttp(url, timeout_s=300)
    found = []
    for item in sorted(task.items(n, seed=1), key=lambda i: i.id):
        key = SampleKey(model="m", arm="A1", task=task.name, item_id=item.id)
        backend.cache_salt = f"{type(task).__name__}/{item.id}"
        outputs: list[Output] = []
        while (request := task.next_request(item, outputs)) is not None:
            outputs.append(await backend.complete(key, request))
        sample = Sample(
            key=key,
            content_hash=item.content_hash,
            outputs=tuple(outputs),
            attempts=len(outputs),
            started_unix_s=0.0,
            latency_s=0.0,
        )
        index = int(item.id.rsplit("-", 1)[1])
        found.append(Answered(index=index, item=item, outputs=tuple(outputs), score=task.score(item, sample)))
    await backend.close()
    return found


def compare_likelihoods(name: str, theirs: list[Any], mine: list[Answered], metric: str) -> str:
    """Scores item by item; the few that differ are near ties: two choices as likely, within errors."""
    by_id = {row["doc_id"]: row for row in theirs}
    equal, ties, errors = 0, 0, []
    for answered in mine:
        row = by_id[answered.index]
        told = [(float(ll), greedy == "True") for ((ll, greedy),) in row["resps"]]
        scored = [o for o in answered.outputs if o.prompt_logprobs is not None]
        sums = [sum(x for x in o.prompt_logprobs[1:] if x is not None) for o in scored]  # type: ignore[index]
        errors += [abs(a - b) for a, (b, _) in zip(sums, told, strict=True)]
        assert answered.score.status is ScoreStatus.SCORED
        if answered.score.value == row[metric]:
            equal += 1
            continue
        ties += 1
        best = sorted(sums)[-2:]
        assert len(sums) == 1 or best[-1] - best[0] <= 2 * max(errors[-len(sums) :]), (name, answered.index)
    assert ties <= len(mine) // 50
    return (
        f"{name}: {len(mine)} items, {equal} scores equal, {ties} near ties; accuracy "
        f"{sum(a.score.value or 0 for a in mine) / len(mine):.3f}; likelihoods differ by at most "
        f"{max(errors):.2g} nats, mean {math.fsum(errors) / len(errors):.2g}"
    )


def compare_texts(name: str, theirs: list[Any], mine: list[Answered], filter_: str) -> str:
    by_id = {row["doc_id"]: row for row in theirs if row["filter"] == filter_}
    equal_texts = equal_scores = truncated = 0
    for answered in mine:
        row = by_id[answered.index]
        (output,) = answered.outputs
        truncated += output.finish_reason == "length"
        same = output.text == row["resps"][0][0]
        equal_texts += same
        equal_scores += answered.score.value == row["exact_match"]
    assert equal_texts == equal_scores == len(mine)
    return (
        f"{name}: {len(mine)} items, {equal_texts} texts equal, {equal_scores} scores equal; accuracy "
        f"{sum(a.score.value or 0 for a in mine) / len(mine):.3f}; {truncated} cut off at the budget"
    )


async def agreement(case: Case, directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What agreed, by task and way of asking; asserts the rest."""
    prepare(directory, case)
    monkeypatch.setenv("EQUIPOISE_DATA", str(directory / "data"))
    launch = launch_for(f"{case.model}@bf16", port=choose_port(), device="cpu")
    name = case.model.removeprefix("embedded:")
    checkpoint = (
        Path(str(files("equipoise.tasks.embedded"))) / name
        if case.model.startswith("embedded:")
        else Path(case.model)
    )
    said: dict[str, str] = {}
    server = SglangServer(label=case.model, command=launch, log_path=directory / "server.log")
    async with server:
        theirs = await lm_eval(launch.url, checkpoint, directory, list(case.items))
        for task, n in case.items.items():
            path = str(directory / "tasks" / f"{task}.yaml")
            adapted = load_lm_eval_task(path, name=task)
            if task in ("copy", "gsm8k"):
                adapted = with_options(adapted, {"score_truncated": True})
                filter_ = "none" if task == "copy" else "strict-match"
                mine = await ours(launch.url, adapted, n)
                said[task] = compare_texts(task, theirs[task], mine, filter_)
                continue
            mine = await ours(launch.url, adapted, n)
            said[task] = compare_likelihoods(f"{task} (adapter)", theirs[task], mine, "acc")
            own: Task = ArcEasy() if task == "arc_easy" else Lambada()
            mine = await ours(launch.url, own, n)
            said[f"{task}, ours"] = compare_likelihoods(f"{task} (own task)", theirs[task], mine, "acc")
    return said


@pytest.mark.timeout(600)
def test_lm_eval_and_we_agree_on_the_embedded_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = asyncio.run(agreement(EMBEDDED, tmp_path, monkeypatch))
    print(*said.values(), sep="\n")
    for name in ("arc_easy", "arc_easy, ours", "lambada", "lambada, ours"):
        assert "30 items, 30 scores equal" in said[name]


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_lm_eval_and_we_agree_on_smollm2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path(SMOLLM2.model).is_dir():
        pytest.skip("models/smollm2 is not there: make smollm2")
    if not os.environ.get("EQUIPOISE_DATA"):
        pytest.skip("EQUIPOISE_DATA is not set: no offline copy of ARC-Easy, LAMBADA and GSM8K")
    said = asyncio.run(agreement(SMOLLM2, tmp_path, monkeypatch))
    print(*said.values(), sep="\n")

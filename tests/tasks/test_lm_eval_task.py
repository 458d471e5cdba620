"""lm-eval's tasks as ours: the same prompts and the same scores as lm-eval itself gives the same replies."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise.evals.errors import UsageError
from equipoise.evals.types import (
    Output,
    Request,
    Sample,
    SampleKey,
    SamplingParams,
    Score,
    ScoreStatus,
    TaskItem,
)
from equipoise.tasks.lm_eval_task import LmEvalTask, load_lm_eval_task
from equipoise.tasks.options import with_options

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install -e '.[dev]'")

N = 40
SOME = SamplingParams(max_new_tokens=2)
OWN_SAMPLING = '{until: ["\\n\\n"], max_gen_toks: 12, do_sample: false, temperature: 0.0}'
HEAD = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{train: {data}, test: {data}}}, cache_dir: {cache}}}
test_split: test
metadata: {{version: 2.0}}
"""
TASKS = {
    "sums": """
fewshot_split: train
num_fewshot: 2
output_type: generate_until
doc_to_text: "Q: {{question}}\\nA:"
doc_to_target: "#### {{answer}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 12, do_sample: false, temperature: 0.0}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true, regexes_to_ignore: ["#### "]}
filter_list:
  - {name: strict, filter: [{function: regex, regex_pattern: "#### (\\\\d+)"}, {function: take_first}]}
  - {name: flexible, filter: [{function: regex, regex_pattern: "(\\\\d+)"}, {function: take_first}]}
""",
    "signs": """
output_type: multiple_choice
doc_to_text: "Is {{question}} even or odd? "
doc_to_choice: ["even", "quite odd"]
doc_to_target: "{{parity}}"
target_delimiter: ""
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
""",
    "last_word": """
output_type: loglikelihood
doc_to_text: "{{question}} ="
doc_to_target: " {{answer}}"
metric_list:
  - {metric: perplexity, aggregation: perplexity, higher_is_better: false}
  - {metric: acc, aggregation: mean, higher_is_better: true}
""",
    "referents": """
output_type: multiple_choice
doc_to_text: parity
doc_to_choice: "{{['An even sum,', 'An odd sum,']}}"
doc_to_target: "{{question}}"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
""",
    "several_targets": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{[answer, answer ~ '.0']}}"
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
""",
    "translations": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
metric_list:
  - {metric: bleu, aggregation: bleu, higher_is_better: true}
""",
}
ROWS = [{"question": f"{i} + 1", "answer": str(i + 1), "parity": i % 2, "page": i // 4} for i in range(N)]
Write = Callable[..., Path]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("datasets")


@pytest.fixture
def write(tmp_path: Path, cache: Path) -> Write:
    """Write a task's YAML beside its rows."""
    data = cache / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def written(name: str, body: str | None = None, *, more: str = "") -> Path:
        path = tmp_path / f"{name}.yaml"
        head = HEAD.format(name=name, data=data, cache=cache / "cache")
        path.write_text(head + (TASKS[name] if body is None else body) + more)
        return path

    return written


def loaded(path: Path, **options: Any) -> LmEvalTask:
    task = with_options(load_lm_eval_task(str(path), name="mine"), options)
    assert isinstance(task, LmEvalTask)
    return task


# -- one model behind both: lm-eval's own evaluation and our requests ------------------------------


def digest(text: str) -> int:
    return hashlib.sha256(text.encode()).digest()[0]


def generated(prompt: str) -> str:
    """Right, unmarked or wrong, by the prompt's hash."""
    i = int(re.findall(r"(\d+) \+ 1", prompt)[-1])
    return [f" #### {i + 1}", f"{i + 1}", f"it is {i + 1}", " #### 7", "no idea", f"{i + 1}.0"][
        digest(prompt) % 6
    ]


def likelihood(text: str) -> tuple[float, bool]:
    """Of a continuation, told by the whole text."""
    return -1.0 - digest(text) / 16, digest(text + "!") % 2 == 0


def evaluated(path: Path, name: str) -> dict[tuple[int, str], Mapping[str, Any]]:
    """The samples that lm-eval's own evaluation writes, by document and filter."""
    from lm_eval import simple_evaluate
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    class Model(LM):
        def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
            return [likelihood("".join(r.args)) for r in requests]

        def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
            raise NotImplementedError

        def generate_until(self, requests: list[Any]) -> list[str]:
            return [generated(r.args[0]) for r in requests]

    manager = TaskManager(include_path=str(path.parent), include_defaults=False)
    results = simple_evaluate(Model(), tasks=[name], task_manager=manager, bootstrap_iters=0)
    assert results is not None
    return {(s["doc_id"], s["filter"]): s for s in results["samples"][name]}


def reply(request: Request) -> Output:
    """The same model behind a server of ours, with one token a character."""
    assert request.text is not None
    output = Output(
        text="", finish_reason="length", prompt_tokens=len(request.text), completion_tokens=1, latency_s=0.0
    )
    if request.prompt_logprobs is None:
        if request.sampling.max_new_tokens == 1:
            return output
        return replace(output, text=generated(request.text), finish_reason="stop")
    logprob, greedy = likelihood(request.text)
    start = request.prompt_logprobs.start
    ids = tuple(range(len(request.text) - start))
    return replace(
        output,
        cached_tokens=start,
        prompt_logprobs_start=start,
        prompt_logprobs=(None, logprob, *[0.0] * (len(ids) - 2)),
        prompt_token_ids=ids,
        prompt_top1_ids=(None, *(ids[1:] if greedy else (0,) * (len(ids) - 1))),
    )


def answered(task: LmEvalTask, item: TaskItem, change: Callable[[Output], Output] = lambda o: o) -> Score:
    outputs: list[Output] = []
    while (request := task.next_request(item, outputs)) is not None:
        outputs.append(change(reply(request)))
    return task.score(item, sample(item, *outputs))


def sample(item: TaskItem, *outputs: Output) -> Sample:
    key = SampleKey(model="m", arm="A1", task=item.task, item_id=item.id)
    return Sample(
        key=key,
        content_hash=item.content_hash,
        outputs=outputs,
        attempts=len(outputs),
        started_unix_s=0.0,
        latency_s=0.0,
    )


@pytest.mark.parametrize(
    ("name", "metric", "filter_"),
    [
        ("sums", "", "strict"),
        ("sums", "exact_match,flexible", "flexible"),
        ("signs", "", "none"),
        ("signs", "acc_norm", "none"),
        ("last_word", "", "none"),
        ("referents", "", "none"),
        ("several_targets", "", "none"),
    ],
)
def test_prompts_hashes_and_scores_are_lm_evals_own(
    write: Write, name: str, metric: str, filter_: str
) -> None:
    path = write(name)
    theirs = evaluated(path, name)
    task = loaded(path, **({"metric": metric} if metric else {}))
    items = task.items(N, seed=3)
    scores = {}
    for item in items:
        known = item.inputs["lm_eval"]
        row = theirs[known["doc_id"], filter_]
        asked = [(ask["prompt"], ask["second"]) for ask in item.inputs["asks"]]
        assert asked == [tuple(arguments) for arguments in row["arguments"]]
        assert {key: known[key] for key in known if key.endswith("_hash")} == {
            key: row[key] for key in ("doc_hash", "prompt_hash", "target_hash")
        }
        score = answered(task, item)
        assert score.status is ScoreStatus.SCORED
        scores[item.id] = score.value
        assert score.value == row[task.lm_eval_metric[0]]
    assert 0 < sum(v or 0.0 for v in scores.values()) < N


def test_a_context_is_sent_alone_before_its_continuations_and_spaces_go_over(write: Write) -> None:
    task = loaded(write("signs"))
    (item,) = task.items(1, seed=1)
    outputs: list[Output] = []
    sent = []
    while (request := task.next_request(item, outputs)) is not None:
        sent.append(request)
        outputs.append(reply(request))
    assert [r.text for r in sent] == [
        (alone := item.inputs["prompt"].rstrip()),
        f"{alone} even",
        f"{alone} quite odd",
    ]
    assert [r.prompt_logprobs and r.prompt_logprobs.start for r in sent] == [None, *[len(alone) - 1] * 2]
    several = loaded(write("referents"))
    (item,) = several.items(1, seed=1)
    outputs = []
    while (request := several.next_request(item, outputs)) is not None:
        outputs.append(reply(request))
    assert len(outputs) == 4  # two contexts


def test_what_lm_eval_takes_for_an_answer_is_settled_before(write: Write) -> None:
    task = loaded(write("sums"))
    item = next(i for i in task.items(N, seed=1) if answered(task, i).value == 1.0)
    cut = answered(task, item, lambda o: replace(o, finish_reason="length"))
    null = answered(task, item, lambda o: replace(o, text=None))
    assert (cut.value, cut.status) == (0.0, ScoreStatus.TRUNCATED)
    assert (null.value, null.status) == (None, ScoreStatus.REFUSED)
    lenient = with_options(task, {"score_truncated": True})
    assert isinstance(lenient, LmEvalTask)
    assert answered(lenient, item, lambda o: replace(o, finish_reason="length")).value == 1.0
    thought_only = answered(lenient, item, lambda o: replace(o, finish_reason="length", text=None))
    assert thought_only.status is ScoreStatus.TRUNCATED
    failed = task.score(item, replace(sample(item), error="timeout"))
    assert (failed.value, failed.status) == (None, ScoreStatus.ERRORED)
    assert task.score(item, sample(item)).status is ScoreStatus.ERRORED
    unscored = loaded(write("last_word"))
    (item,) = unscored.items(1, seed=1)
    score = answered(unscored, item, lambda o: replace(o, prompt_logprobs=None))
    assert (score.value, score.status) == (None, ScoreStatus.ERRORED)


def test_what_the_filters_do_not_find_is_not_extracted(write: Write) -> None:
    task = loaded(write("sums"))
    (item,) = task.items(1, seed=1)
    found = answered(task, item, lambda o: replace(o, text=f"so #### {item.target.split()[-1]}"))
    nothing = answered(task, item, lambda o: replace(o, text="no idea"))
    assert (found.value, found.extracted) == (1.0, item.target.split()[-1])
    assert (nothing.value, nothing.extracted) == (0.0, None)


def test_replies_of_any_kind_are_scored_without_raising(write: Write) -> None:
    task = loaded(write("sums"), metric="exact_match,flexible")
    (item,) = task.items(1, seed=1)
    for text in ("", "\x00", "9" * 1_500_000, "#### " * 100_000, "\ud800", "{" * 50_000):
        score = task.score(
            item, sample(item, replace(reply(Request(text="1 + 1", sampling=SOME)), text=text))
        )
        assert score.value == 0.0 or score.status is ScoreStatus.ERRORED


def test_generation_arguments_become_sampling(write: Write) -> None:
    def sampling(arguments: str) -> Any:
        body = TASKS["sums"].replace(OWN_SAMPLING, arguments)
        task = loaded(write("sums", body))
        (item,) = task.items(1, seed=1)
        request = task.next_request(item, [])
        assert request is not None
        return request.sampling

    plain = sampling('{until: ["\\n", ""], do_sample: false, temperature: 0.7}')
    assert (plain.max_new_tokens, plain.temperature, plain.stop) == (256, 0.0, ("\n",))
    drawn = sampling(
        "{until: STOP, do_sample: true, temperature: 0.6, top_p: 0.95, top_k: -1, max_tokens: 9}"
    )
    assert (drawn.max_new_tokens, drawn.temperature, drawn.top_p, drawn.top_k) == (9, 0.6, 0.95, None)
    assert drawn.stop == ("STOP",)
    with pytest.raises(UsageError, match=r"document \d+: generation_kwargs num_beams are not known here"):
        sampling("{until: [], num_beams: 4}")


def test_repeats_of_a_task_are_asked_and_handed_over_together(write: Write) -> None:
    task = loaded(write("several_targets", more="repeats: 3\n"))
    (item,) = task.items(1, seed=1)
    outputs: list[Output] = []
    while (request := task.next_request(item, outputs)) is not None:
        outputs.append(reply(request))
    assert len(outputs) == 3
    assert task.score(item, sample(item, *outputs)).status is ScoreStatus.SCORED
    cut = [*outputs[:2], replace(outputs[2], finish_reason="length")]
    assert task.score(item, sample(item, *cut)).status is ScoreStatus.TRUNCATED


def test_a_chat_template_makes_messages_which_the_server_renders(write: Write) -> None:
    task = loaded(write("sums"), apply_chat_template=True, system_instruction="Be brief.")
    (item,) = task.items(1, seed=1)
    request = task.next_request(item, [])
    assert request is not None and request.messages is not None and request.text is None
    assert [m.role for m in request.messages] == ["system", *["user", "assistant"] * 2, "user"]
    assert task.needs_chat_template
    one_turn = with_options(task, {"fewshot_as_multiturn": False})
    request = one_turn.next_request(one_turn.items(1, seed=1)[0], [])
    assert request is not None and request.messages is not None
    assert [m.role for m in request.messages] == ["system", "user"]
    with pytest.raises(UsageError, match="servers score no text inside a chat; set apply_chat_template"):
        loaded(write("signs"), apply_chat_template=True).items(1, seed=1)
    with pytest.raises(UsageError, match="gen_prefix"):
        loaded(write("sums", more='gen_prefix: "####"\n'), apply_chat_template=True).items(1, seed=1)


def test_items_are_stable_extendable_and_hashed_with_all_that_is_asked(write: Write) -> None:
    path = write("sums")
    few, many = loaded(path).items(5, seed=2), loaded(path).items(12, seed=2)
    assert [(i.id, i.content_hash) for i in many[:5]] == [(i.id, i.content_hash) for i in few]
    assert len({i.id for i in many}) == 12
    other = loaded(path, num_fewshot=1).items(5, seed=2)
    budget = loaded(write("sums", TASKS["sums"].replace("12", "13"))).items(5, seed=2)
    gold = loaded(write("sums", TASKS["sums"].replace("#### {{answer}}", "#### 0{{answer}}"))).items(
        5, seed=2
    )
    for changed in (other, budget, gold):
        assert [i.id for i in changed] == [i.id for i in few]
        assert not {i.content_hash for i in changed} & {i.content_hash for i in few}
    with pytest.raises(UsageError, match=f"'mine' has {N} items; the plan asks for {N + 1}"):
        loaded(path).items(N + 1, seed=2)


def test_documents_of_one_source_share_a_cluster(write: Write) -> None:
    items = loaded(write("signs"), cluster="page").items(N, seed=1)
    assert len({i.cluster_id for i in items}) == N // 4
    with pytest.raises(UsageError, match=r"no field 'pages' \(cluster = ...\); it has answer, page"):
        loaded(write("signs"), cluster="pages").items(1, seed=1)


def test_version_and_card_say_what_is_scored(write: Write) -> None:
    task = loaded(write("sums"))
    assert task.version.startswith("2.0-")
    assert "lm-eval-0.4" in task.version
    assert loaded(write("sums"), num_fewshot=1).version != task.version
    assert loaded(write("sums", TASKS["sums"].replace("Q:", "Question:"))).version != task.version
    card = task.card
    assert (card.items, card.protocol) == (N, "completion")
    assert "exact_match,strict" in card.note


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"metric": "f1"}, "no metric 'f1'; there are exact_match"),
        ({"metric": "exact_match,loose"}, "no filter 'loose'; there are strict, flexible"),
        ({"num_fewshot": -1}, "num_fewshot must be a whole number"),
        ({"shots": 3}, "has no option 'shots'"),
    ],
)
def test_unknown_options_are_named(write: Write, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        loaded(write("sums"), **options).items(1, seed=1)


def test_metrics_that_score_no_single_item_are_refused_by_name(write: Write) -> None:
    with pytest.raises(UsageError, match=r"no metric that is a score of single items \(bleu: list"):
        loaded(write("translations")).items(1, seed=1)
    with pytest.raises(
        UsageError, match="metric 'perplexity' cannot be compared item by item: lower is better"
    ):
        loaded(write("last_word"), metric="perplexity").items(1, seed=1)
    with pytest.raises(UsageError, match="zero-shot by its definition; remove num_fewshot = 3"):
        loaded(write("signs", more="num_fewshot: 0\n"), num_fewshot=3).items(1, seed=1)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("output_type: loglikelihood_rolling\n", "measures perplexity .* use the task 'logprob'"),
        ("unsafe_code: true\n", "runs the programs that a model writes, without a sandbox"),
        ("doc_to_image: picture\n", "shows images"),
        ("use_prompt: 'promptsource:x'\n", "write doc_to_text instead"),
        ("metric_list: [{metric: someone/judge}]\n", "would be downloaded as code from the hub"),
        ("metric_list: [{metric: exact_match, hf_evaluate: true}]\n", "downloaded as code from the hub"),
        ("dataset_kwargs: {trust_remote_code: true}\n", "wants trust_remote_code"),
        ("group: several\n", "must define one task"),
        ("doc_to_text: [\n", "not valid YAML"),
        ("include: missing.yaml\n", r"cannot read .*missing\.yaml"),
    ],
)
def test_what_cannot_be_asked_or_would_run_code_is_refused(write: Write, more: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        loaded(write("sums", more=more))


def test_a_metric_of_the_hub_beside_one_of_lm_evals_is_never_loaded(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    import evaluate

    monkeypatch.setattr(evaluate, "load", lambda *a, **k: pytest.fail("code from the hub"))
    body = TASKS["signs"] + "  - {metric: f1, hf_evaluate: true, aggregation: f1, higher_is_better: true}\n"
    task = loaded(write("signs", body))
    assert len(task.items(2, seed=1)) == 2
    assert task.lm_eval_metric == ("acc", "none")


@pytest.fixture
def harmful(write: Write, tmp_path: Path) -> Path:
    """A task whose Python file leaves a mark when it is run, in a file that another includes."""
    (tmp_path / "helpers.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\ndef rows(docs):\n    return docs\n"
    )
    (tmp_path / "base.inc").write_text("process_docs: !function helpers.rows\n")
    return write("sums", more="include: base.inc\n")


def test_python_in_a_users_yaml_runs_only_if_allowed(
    harmful: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EQUIPOISE_TASK_CODE", raising=False)
    with pytest.raises(UsageError, match=r"calls Python code \(helpers.rows\).*EQUIPOISE_TASK_CODE=allow"):
        loaded(harmful)
    assert not (tmp_path / "ran").exists()
    monkeypatch.setenv("EQUIPOISE_TASK_CODE", "allow")
    assert len(loaded(harmful).items(3, seed=1)) == 3
    assert (tmp_path / "ran").exists()


def test_templates_of_a_users_yaml_cannot_reach_into_python(write: Write, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    attack = "{{ cycler.__init__.__globals__.os.system('touch MARK') }}".replace("MARK", str(mark))
    body = TASKS["sums"].replace("Q: {{question}}", attack)
    with pytest.raises(UsageError, match="SecurityError"):
        loaded(write("sums", body)).items(1, seed=1)
    assert not mark.exists()


def test_lm_evals_own_tasks_are_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    rows = [{"question": f"{i} + 1?", "answer": f"so\n#### {i + 1}"} for i in range(20)]

    def load_dataset(path: str, name: str, **kwargs: Any) -> datasets.DatasetDict:
        assert (path, name) == ("openai/gsm8k", "main")
        return datasets.DatasetDict({s: datasets.Dataset.from_list(rows) for s in ("train", "test")})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    task = load_lm_eval_task("gsm8k", name="g")
    (item,) = task.items(1, seed=1)
    assert item.inputs["prompt"].count("Question:") == 6
    assert task.score(item, sample(item, replace(reply(_asked(task, item)), text="#### 0"))).value == 0.0


def _asked(task: Any, item: TaskItem) -> Request:
    request = task.next_request(item, [])
    assert request is not None
    return replace(request, text="1 + 1")


def test_data_that_cannot_be_loaded_are_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def refuse(**kwargs: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    task = load_lm_eval_task("gsm8k", name="g")
    with pytest.raises(UsageError, match=r"'g': lm-eval's gsm8k cannot be loaded: ConnectionError: no route"):
        task.items(1, seed=1)


def test_without_lm_eval_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"not installed; run pip install 'lm-eval\[api\]>=0\.4\.13'"):
        load_lm_eval_task("gsm8k", name="g")


def test_every_reference_answer_of_gsm8k_is_right_and_a_wrong_one_wrong(tmp_path: Path) -> None:
    directory = os.environ.get("EQUIPOISE_DATA")
    if not directory or not (data := Path(directory) / "gsm8k" / "test.jsonl").is_file():
        pytest.skip("EQUIPOISE_DATA has no gsm8k/test.jsonl: no offline copy of GSM8K")
    from equipoise.tasks.lm_eval.finding import installed_root

    path = tmp_path / "gsm8k.yaml"
    path.write_text(
        f"include: {installed_root() / 'gsm8k' / 'gsm8k.yaml'}\ntask: gsm8k_here\ndataset_path: json\n"
        f"dataset_name: null\ndataset_kwargs: {{data_files: {{train: {data}, test: {data}}}, "
        f"cache_dir: {tmp_path / 'cache'}}}\n"
    )
    task = loaded(path, num_fewshot=1)
    items = task.items(1319, seed=1)
    assert len({i.id for i in items}) == 1319
    for item in items:
        right, wrong = (
            task.score(item, sample(item, replace(reply(Request(text="1 + 1", sampling=SOME)), text=text)))
            for text in (item.target, "#### 123456789")
        )
        assert (right.value, wrong.value) == (1.0, 0.0)

"""A task of lm-eval as one of ours: its documents, prompts, filters and scoring; our backends and statistics.

In a plan::

    [[tasks]]
    name = "gsm8k"                      # yours
    lm_eval = "gsm8k"                   # lm-eval's: a task, a tag or a group; or file = "my.yaml"
    items = 1319
    margin = 0.02
    options = { num_fewshot = 5, metric = "exact_match,flexible-extract" }

A document (of GSM8K) and how it is asked::

    {"question": "Janet's ducks lay 16 eggs ...", "answer": "... #### 18"}
    "Question: ...\\nAnswer: ...\\n\\nQuestion: Janet's ducks lay 16 eggs ...\\nAnswer:"

The score of an item is one metric of lm-eval's ``process_results`` for it. Where this differs from a run of
lm-eval itself: a reply that ran into its budget is wrong (``score_truncated`` judges it instead), null
content and failed requests are no answers, prompts are tokenized by the server (with the BOS token of models
that have one), and of equally likely tokens the server's first choice is the greedy one.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from equipoise.evals.errors import UsageError
from equipoise.evals.types import Output, Request, Sample, Score, Task, TaskItem
from equipoise.tasks.card import TaskCard
from equipoise.tasks.heldout import content_hash
from equipoise.tasks.lm_eval.asking import Ask, Rendering, asks_of, request_of, steps_of
from equipoise.tasks.lm_eval.finding import Found, find_definition
from equipoise.tasks.lm_eval.judging import judge
from equipoise.tasks.lm_eval.loading import Leaf, load
from equipoise.tasks.rows import sample_rows

__all__ = ["LmEvalTask", "load_lm_eval_task"]


# Without slots: the documents are loaded when they are first needed.
@dataclass(frozen=True, kw_only=True)
class LmEvalTask:
    """One definition of lm-eval; of a tag or group, all its tasks together, item by item.

    Attributes
    ----------
    num_fewshot, apply_chat_template, fewshot_as_multiturn, system_instruction
        lm-eval's own settings; None: as the task says.
    metric
        ``METRIC`` or ``METRIC,FILTER``; empty: the first one that scores single items.
    cluster
        A field of the documents whose value those of one source share.
    score_truncated
        Judge a reply that was cut off as it stands, as lm-eval does.
    """

    name: str
    found: Found = field(repr=False)
    num_fewshot: int | None = None
    apply_chat_template: bool = False
    fewshot_as_multiturn: bool = True
    system_instruction: str = ""
    metric: str = ""
    cluster: str = ""
    score_truncated: bool = False

    kind: Literal["accuracy", "logprob"] = field(default="accuracy", init=False)

    def __post_init__(self) -> None:
        shots = self.num_fewshot
        if shots is not None and (type(shots) is not int or not 0 <= shots <= 1000):
            raise ValueError(f"num_fewshot must be a whole number from 0 to 1000, not {shots!r}")

    @property
    def option_names(self) -> tuple[str, ...]:
        return (
            "num_fewshot",
            "apply_chat_template",
            "fewshot_as_multiturn",
            "system_instruction",
            "metric",
            "cluster",
            "score_truncated",
        )

    @property
    def version(self) -> str:
        options = {name: getattr(self, name) for name in self.option_names}
        return f"{self.found.version}-{content_hash(json.dumps(options, sort_keys=True))[:8]}"

    @property
    def needs_chat_template(self) -> bool:
        return self.apply_chat_template

    @property
    def card(self) -> TaskCard:
        leaves = self._leaves.values()
        metrics = ", ".join(sorted({f"{leaf.metric},{leaf.filter}" for leaf in leaves}))
        generates = any(leaf.task.OUTPUT_TYPE == "generate_until" for leaf in leaves)
        return TaskCard(
            title=f"{', '.join(list(self._leaves)[:3])} of lm-eval",
            group="lm-eval",
            protocol=("chat" if self.apply_chat_template else "completion") if generates else "loglikelihood",
            licence="that of its data set; lm-eval does not state it",
            citation="lm-evaluation-harness, doi:10.5281/zenodo.12608602",
            items=sum(len(leaf.docs) for leaf in leaves),
            clusters=self.cluster,
            note=f"metric {metrics}; the data are those that lm-eval names, at no pinned revision",
        )

    @property
    def lm_eval_metric(self) -> tuple[str, str]:
        """The metric and the filter that scores are of; of several tasks those of the first."""
        first = next(iter(self._leaves.values()))
        return first.metric, first.filter

    @property
    def shots(self) -> int:
        """Examples before each question; of several tasks the most."""
        return max(leaf.shots for leaf in self._leaves.values())

    def document(self, item: TaskItem) -> Mapping[str, Any]:
        """lm-eval's document of an item."""
        known = item.inputs["lm_eval"]
        found: Mapping[str, Any] = self._leaves[known["task"]].docs[known["doc_id"]]
        return found

    @cached_property
    def _leaves(self) -> dict[str, Leaf]:
        loaded = load(self.found, num_fewshot=self.num_fewshot, metric=self.metric)
        return {leaf.name: leaf for leaf in loaded}

    def items(self, n: int, seed: int) -> Sequence[TaskItem]:
        """``n`` documents drawn by ``seed`` over all tasks, with the prompts of a run over all documents.

        Raises
        ------
        UsageError
            The data cannot be loaded or are fewer, a prompt cannot be made or asked, or a document lacks the
            cluster field.
        """
        every = [
            {"leaf": name, "index": i} for name, leaf in self._leaves.items() for i in range(len(leaf.docs))
        ]
        drawn = [
            (str(row["leaf"]), int(row["index"])) for _, row in sample_rows(every, n, seed, name=self.name)
        ]
        how = Rendering(
            chat=self.apply_chat_template, multiturn=self.fewshot_as_multiturn, system=self.system_instruction
        )
        asked = {
            name: asks_of(
                leaf, {i for of, i in drawn if of == name}, how, where=f"task {self.name!r}, {name}"
            )
            for name, leaf in self._leaves.items()
        }
        items = [self._item(self._leaves[name], index, asked[name][index]) for name, index in drawn]
        twice = [i for i, count in Counter(item.id for item in items).items() if count > 1]
        if twice:
            raise UsageError(f"task {self.name!r}: item id {twice[0]} is there twice; use another name")
        return items

    def _item(self, leaf: Leaf, index: int, asks: Sequence[Ask]) -> TaskItem:
        hashes = _lm_eval_hashes(leaf, index, asks)
        several = len(self._leaves) > 1
        item_id = f"{self.name}-{leaf.name}-{index:05d}" if several else f"{self.name}-{index:05d}"
        listed = [asdict(ask) for ask in asks]
        repeats = int(leaf.task.config.repeats or 1)
        return TaskItem(
            task=self.name,
            id=item_id,
            inputs={
                "prompt": asks[0].prompt,
                "asks": listed,
                "repeats": repeats,
                "lm_eval": {"task": leaf.name, "doc_id": index, **hashes},
            },
            target=_target(leaf, index, asks),
            content_hash=content_hash(json.dumps(listed, sort_keys=True), str(repeats), *hashes.values()),
            cluster_id=self._cluster(leaf, index) or item_id,
            strata={"subset": leaf.name} if several else {},
        )

    def _cluster(self, leaf: Leaf, index: int) -> str:
        if not self.cluster:
            return ""
        doc = leaf.docs[index]
        if self.cluster not in doc:
            fields = ", ".join(sorted(map(str, doc))[:20])
            raise UsageError(
                f"task {self.name!r}: document {index} of {leaf.name} has no field {self.cluster!r} "
                f"(cluster = ...); it has {fields}"
            )
        return f"{leaf.name}-{doc[self.cluster]}"

    def next_request(self, item: TaskItem, outputs: Sequence[Output]) -> Request | None:
        """lm-eval's requests one after another, a context before its continuations; then None."""
        asks = _asks(item)
        steps = steps_of(asks, item.inputs["repeats"])
        if len(outputs) >= len(steps):
            return None
        step = steps[len(outputs)]
        return request_of(step, asks[step.ask], outputs)

    def score(self, item: TaskItem, sample: Sample) -> Score:
        """lm-eval's filters and metric on the replies; what is no answer is settled before."""
        asks = _asks(item)
        return judge(
            self._leaves[item.inputs["lm_eval"]["task"]],
            item.inputs["lm_eval"]["doc_id"],
            asks,
            steps_of(asks, item.inputs["repeats"]),
            sample,
            score_truncated=self.score_truncated,
        )


def _asks(item: TaskItem) -> list[Ask]:
    return [Ask(**ask) for ask in item.inputs["asks"]]


def _lm_eval_hashes(leaf: Leaf, index: int, asks: Sequence[Ask]) -> dict[str, str]:
    """What lm-eval writes beside a sample, so that its logs and ours pair."""
    from lm_eval.utils import handle_non_serializable, hash_string

    doc = leaf.docs[index]
    text = json.dumps(doc, indent=2, default=handle_non_serializable, ensure_ascii=False)
    return {
        "doc_hash": hash_string(text),
        "prompt_hash": hash_string(asks[0].prompt),
        "target_hash": hash_string(str(leaf.task.doc_to_target(doc))),
    }


def _target(leaf: Leaf, index: int, asks: Sequence[Ask]) -> str:
    """The reference answer; of a choice its text."""
    target: Any = leaf.task.doc_to_target(leaf.docs[index])
    if type(target) is int and 0 <= target < len(asks) and asks[0].kind == "loglikelihood":
        return str(asks[target].second).strip()
    return str(target)


def load_lm_eval_task(source: str, *, name: str) -> Task:
    """The lm-eval task ``source`` (a name, or the path of a YAML file), under ``name``.

    Raises
    ------
    UsageError
        See `find_definition`. The data are loaded later, with the first items.
    """
    return LmEvalTask(name=name, found=find_definition(source, name=name))

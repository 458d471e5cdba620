"""lm-eval's task objects, loaded as `simple_evaluate` loads them: seeds, few-shot counts, metrics."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.evals.errors import UsageError
from equipoise.tasks.lm_eval.finding import Found

__all__ = ["Leaf", "load"]

# Of simple_evaluate: some tasks shuffle choices with the global generators.
_RANDOM_SEED, _NUMPY_SEED, _FEWSHOT_SEED = 0, 1234, 1234


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaf:
    """One task of lm-eval with its documents, and what of its results counts.

    ``metric`` is a key of its ``process_results``; ``filter`` the name of the pipeline before it.
    """

    name: str
    task: Any
    docs: Sequence[Any]
    metric: str
    filter: str

    @property
    def shots(self) -> int:
        return int(self.task.config.num_fewshot or 0)


def load(found: Found, *, num_fewshot: int | None, metric: str) -> tuple[Leaf, ...]:
    """The tasks of a definition, ready to be asked.

    Parameters
    ----------
    num_fewshot : int or None
        None: the task's own.
    metric : str
        ``METRIC`` or ``METRIC,FILTER``; empty: the first that is a number in [0, 1] for each item and is
        averaged, after the first filter.

    Raises
    ------
    UsageError
        The data cannot be loaded, the task is zero-shot by definition, or it has no such metric.
    """
    where = f"task {found.name!r}: lm-eval's {found.source}"
    if found.sandboxed:
        _sandbox_templates()
    with _seeded(), _no_code_from_the_hub():
        try:
            tasks: dict[str, Any] = found.manager.load(found.spec)["tasks"]
        except Exception as e:
            raise UsageError(
                f"{where} cannot be loaded: {type(e).__name__}: {str(e)[:300]}; its data come through "
                "`datasets` (the hub, or files that a YAML names)"
            ) from e
        return tuple(_leaf(task, name, where, num_fewshot, metric) for name, task in tasks.items())


def _leaf(task: Any, name: str, where: str, num_fewshot: int | None, metric: str) -> Leaf:
    own = task.config.num_fewshot
    if num_fewshot is not None and own == 0 and num_fewshot != 0:
        raise UsageError(f"{where} is zero-shot by its definition; remove num_fewshot = {num_fewshot}")
    task.set_config(key="num_fewshot", value=own or 0 if num_fewshot is None else num_fewshot)
    task.set_fewshot_seed(seed=_FEWSHOT_SEED)
    docs = task.eval_docs
    if not len(docs):
        raise UsageError(f"{where} has no documents")
    chosen, _, filter_ = metric.partition(",")
    filters = [f.name for f in getattr(task, "_filters", ())] or ["none"]
    if filter_ and filter_ not in filters:
        raise UsageError(f"{where} has no filter {filter_!r}; there are {', '.join(filters)} (metric = ...)")
    return Leaf(
        name=name,
        task=task,
        docs=docs,
        metric=_metric(task, docs[0], chosen, where),
        filter=filter_ or filters[0],
    )


def _metric(task: Any, doc: Any, chosen: str, where: str) -> str:
    """The metric that counts, seen on the reference answer to the first document."""
    from lm_eval.api.metrics import mean

    try:
        seen: dict[str, Any] = task.process_results(doc, _reference(task, doc))
    except Exception as e:
        raise UsageError(
            f"{where}: its own scoring fails on a reference answer: {type(e).__name__}: {str(e)[:200]}"
        ) from e
    better, aggregation = task.higher_is_better(), task.aggregation()
    unfit = {
        name: "lower is better"
        if better.get(name) is False
        else f"{type(value).__name__} {str(value)[:40]!r}, no number in [0, 1]"
        if not is_score(value)
        else ""
        for name, value in seen.items()
    }
    unfit |= {name: "it has no value for a single item" for name in aggregation if name not in seen}
    if chosen:
        if chosen not in unfit:
            raise UsageError(f"{where} has no metric {chosen!r}; there are {', '.join(unfit)} (metric = ...)")
        if unfit[chosen]:
            raise UsageError(f"{where}: metric {chosen!r} cannot be compared item by item: {unfit[chosen]}")
        return chosen
    for name in aggregation:
        if not unfit[name] and aggregation[name] is mean:
            return str(name)
    reasons = "; ".join(f"{n}: {why or 'averaged in another way'}" for n, why in unfit.items())
    raise UsageError(f"{where} has no metric that is a score of single items ({reasons})")


def is_score(value: Any) -> bool:
    """Whether a result is a number in [0, 1]; NaN is none."""
    return isinstance(value, bool | int | float | np.bool_ | np.number) and bool(0 <= float(value) <= 1)


def _reference(task: Any, doc: Any) -> list[Any]:
    """Results as the reference answer would give them."""
    context = task.fewshot_context(doc, num_fewshot=0)
    requests = task.construct_requests(doc=doc, ctx=context, metadata=(task.config.task, 0, 1))
    requests = requests if isinstance(requests, list) else [requests]
    target = task.doc_to_target(doc)
    if isinstance(target, list) and target:
        target = target[0]
    choices = task.doc_to_choice(doc) if task.config.doc_to_choice is not None else None
    if choices is not None and isinstance(target, int):
        target = choices[target]
    return [(-1.0, True) if r.request_type == "loglikelihood" else str(target) for r in requests]


@contextmanager
def _seeded() -> Iterator[None]:
    """The global generators as lm-eval seeds them, and afterwards as they were."""
    state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(_RANDOM_SEED)
    np.random.seed(_NUMPY_SEED)  # noqa: NPY002  what lm-eval's tasks draw from
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)  # noqa: NPY002


@contextmanager
def _no_code_from_the_hub() -> Iterator[None]:
    """lm-eval asks the hub for the code of metrics that it does not know: those come to nothing.

    Also without the bars of `datasets`, one for each file.
    """
    import datasets
    import evaluate

    def refuse(name: str, *args: Any, **kwargs: Any) -> None:
        raise PermissionError(f"the metric {name!r} is code from the hub")

    loader, hidden = evaluate.load, datasets.are_progress_bars_disabled()
    evaluate.load = refuse
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        evaluate.load = loader
        if not hidden:
            datasets.enable_progress_bars()


def _sandbox_templates() -> None:
    """Render templates in Jinja's sandbox from here on: prompts are made after a task is loaded."""
    from jinja2 import BaseLoader, StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment
    from lm_eval import utils

    if not isinstance(utils.env, SandboxedEnvironment):
        sandbox = SandboxedEnvironment(
            loader=BaseLoader(), undefined=StrictUndefined, keep_trailing_newline=True
        )
        sandbox.filters.update(utils.env.filters)
        utils.env = sandbox

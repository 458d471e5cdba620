"""lm-eval's task definitions: found by name or in a file, and checked before any of their code runs.

A YAML of lm-eval can hold code in more than one way: ``!function``, templates (Jinja), metrics and data
that the hub sends as Python, generated programs that are run to be graded. What is installed with lm-eval
is trusted like any package; of a user's file nothing runs unless EQUIPOISE_TASK_CODE=allow.
"""

import difflib
import functools
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.evals.errors import UsageError

__all__ = ["Found", "find_definition", "installed_root"]

ALLOW_CODE = "EQUIPOISE_TASK_CODE"
MAX_YAML_BYTES = 1 << 20
MAX_INCLUDES = 20
Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """A definition that passed the checks; ``load`` in loading.py makes lm-eval's objects of it.

    ``configs`` are its leaves as written, functions as text. ``sandboxed``: it is a user's file whose
    templates may not reach into Python.
    """

    name: str
    source: str
    spec: str  # what lm-eval's TaskManager loads
    manager: Any
    configs: tuple[Config, ...]
    sandboxed: bool = False

    @property
    def version(self) -> str:
        """Of definition and package together; where the data lie is no part of it."""
        import lm_eval

        versions = {str((c.get("metadata") or {}).get("version", "?")) for c in self.configs}
        said = [{k: v for k, v in c.items() if k != "dataset_kwargs"} for c in self.configs]
        text = json.dumps(said, sort_keys=True, default=str).replace(str(installed_root()), "")
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return f"{'/'.join(sorted(versions))}-{digest}-lm-eval-{lm_eval.__version__}"


def installed_root() -> Path:
    """The directory of the tasks that lm-eval ships."""
    import lm_eval

    return Path(str(lm_eval.__file__)).parent / "tasks"


def find_definition(source: str, *, name: str) -> Found:
    """The definition of the lm-eval task, tag or group ``source`` (a name or a YAML file); no data is loaded.

    Raises
    ------
    UsageError
        lm-eval is not installed, there is no such task (the nearest names are given), the file is no task, it
        holds code that is not allowed to run, or its kind cannot be asked here.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise UsageError(
            f"task {name!r} is one of lm-eval, which is not installed; run pip install 'lm-eval[api]>=0.4.13'"
        )
    a_file = source.endswith((".yaml", ".yml"))
    found = _in_file(Path(source), name) if a_file else _by_name(source, name)
    for config in found.configs:
        _check(config, f"task {name!r}: lm-eval's {config.get('task', source)}", trusted=not found.sandboxed)
    return found


def _in_file(path: Path, name: str) -> Found:
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks._yaml_loader import load_yaml

    functions = sorted(set(_functions(path.resolve(), name, [])))
    allowed = os.environ.get(ALLOW_CODE) == "allow"
    if functions and not allowed:
        raise UsageError(
            f"task {name!r}: {path} calls Python code ({', '.join(functions[:3])}) that would run on this "
            f"machine; read it, then set {ALLOW_CODE}=allow"
        )
    try:
        config = load_yaml(path, resolve_func=False)
    except Exception as e:
        raise UsageError(f"task {name!r}: {path} is no lm-eval task: {type(e).__name__}: {e}") from e
    if "group" in config or not isinstance(config.get("task"), str):
        raise UsageError(
            f"task {name!r}: {path} must define one task (task: NAME); name the tasks of a group"
        )
    manager = TaskManager(include_defaults=False)
    return Found(
        name=name,
        source=str(path),
        spec=str(path.resolve()),
        manager=manager,
        configs=(config,),
        sandboxed=not allowed,
    )


def _functions(path: Path, name: str, seen: list[Path]) -> Iterator[str]:
    """Names after ``!function`` in a file and what it includes; what lm-eval ships is not looked at."""
    import yaml

    if path.is_relative_to(installed_root()):
        return
    seen.append(path)
    if len(seen) > MAX_INCLUDES:
        raise UsageError(f"task {name!r}: {path}: more than {MAX_INCLUDES} included files")
    try:
        if path.stat().st_size > MAX_YAML_BYTES:
            raise UsageError(f"task {name!r}: {path}: at most {MAX_YAML_BYTES} bytes are read")
        tree = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as e:
        raise UsageError(f"task {name!r}: cannot read {path} ({e.strerror})") from e
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as e:
        raise UsageError(f"task {name!r}: {path}: not valid YAML: {str(e)[:200]}") from e
    todo, walked = [tree], set[int]()
    while todo:
        node = todo.pop()
        if node is None or id(node) in walked:
            continue
        walked.add(id(node))
        if node.tag.startswith("!") or "python" in node.tag:
            yield str(node.value)[:80]
        if isinstance(node, yaml.MappingNode):
            todo += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            todo += node.value
    for included in _includes(tree):
        other = (path.parent / included).resolve()
        if other not in seen:
            yield from _functions(other, name, seen)


def _includes(tree: Any) -> list[str]:
    import yaml

    if not isinstance(tree, yaml.MappingNode):
        return []
    values = [value for key, value in tree.value if key.value == "include"]
    return [
        str(node.value)
        for value in values
        for node in (value.value if isinstance(value, yaml.SequenceNode) else [value])
    ]


def _by_name(source: str, name: str) -> Found:
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks._yaml_loader import load_yaml

    path = _own_file(source)
    if path is not None:  # thousands of files need not be parsed for one
        manager = TaskManager(include_defaults=False)
        config = load_yaml(path, resolve_func=False)
        return Found(name=name, source=source, spec=str(path), manager=manager, configs=(config,))
    manager = _every_task()
    if source not in manager.task_index:
        near = difflib.get_close_matches(source, manager.all_tasks, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "`lm_eval ls tasks` lists them"
        raise UsageError(f"task {name!r}: lm-eval has no task {source!r}; {hint}")
    leaves = tuple(_leaves(source, manager.task_index, set()))
    return Found(name=name, source=source, spec=source, manager=manager, configs=leaves)


@functools.cache
def _every_task() -> Any:
    """lm-eval's index of all that it ships: a quarter of a minute."""
    from lm_eval.tasks import TaskManager

    return TaskManager()


@functools.cache
def _own_file(task: str) -> Path | None:
    """The one file that lm-eval ships for a task; None if there is none, or several."""
    line = re.compile(rf"^task:\s*(['\"]?){re.escape(task)}\1\s*$", re.MULTILINE)
    found = [
        path
        for path in installed_root().rglob("*.yaml")
        if line.search(path.read_text(encoding="utf-8", errors="replace"))
    ]
    return found[0] if len(found) == 1 else None


def _leaves(name: str, index: Mapping[str, Any], seen: set[str]) -> Iterator[Config]:
    """The configs of a task, of all tasks of a tag, or of a group with its subgroups."""
    if name in seen:
        return
    seen.add(name)
    entry = index.get(name)
    if entry is None:
        return
    children: Sequence[Any] = sorted(entry.tags) if entry.kind.name == "TAG" else ()
    if entry.kind.name == "GROUP":
        listed = entry.cfg.get("task") or ()
        children = [listed] if isinstance(listed, str) else listed
    if entry.kind.name in ("TASK", "PY_TASK"):
        yield entry.cfg
    for child in children:
        named = child if isinstance(child, str) else child.get("task") or child.get("group")
        if isinstance(named, str):
            yield from _leaves(named, index, seen)


def _check(config: Config, where: str, *, trusted: bool) -> None:
    """Refuse what cannot be asked, or would run code that nobody here has read."""
    if config.get("output_type") == "loglikelihood_rolling":
        raise UsageError(
            f"{where} measures perplexity (loglikelihood_rolling): a text's likelihood is no score in "
            "[0, 1]; use the task 'logprob'"
        )
    if config.get("doc_to_image") or config.get("doc_to_audio"):
        raise UsageError(f"{where} shows images or plays sounds; only text is asked here")
    if config.get("unsafe_code"):
        raise UsageError(
            f"{where} runs the programs that a model writes, without a sandbox (unsafe_code); use a code "
            "task of `equipoise tasks`"
        )
    kwargs = config.get("dataset_kwargs") or {}
    if kwargs.get("trust_remote_code") and (not trusted or _datasets_major() < 4):
        raise UsageError(
            f"{where} wants trust_remote_code: its data come as a program; upgrade to datasets 4, or "
            "remove it"
        )
    if config.get("use_prompt") and not trusted:
        raise UsageError(f"{where}: use_prompt reads templates of another package; write doc_to_text instead")
    # Of likelihoods lm-eval computes the metrics itself, whatever it was handed for their names.
    if config.get("output_type", "generate_until") == "generate_until" and not config.get("process_results"):
        for metric in config.get("metric_list") or ():
            _check_metric(metric, where)


def _check_metric(metric: Mapping[str, Any], where: str) -> None:
    import lm_eval.api.metrics  # noqa: F401  fills the registry
    from lm_eval.api.registry import METRIC_REGISTRY

    named = str(metric.get("metric"))
    if Path(named).is_absolute():  # a function
        return
    if metric.get("hf_evaluate") or named not in METRIC_REGISTRY:
        raise UsageError(
            f"{where}: the metric {named!r} would be downloaded as code from the hub; use one that "
            "lm-eval has"
        )


def _datasets_major() -> int:
    from importlib.metadata import version

    return int(version("datasets").split(".")[0])

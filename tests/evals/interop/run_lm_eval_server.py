"""lm-eval against a running SGLang: ``run_lm_eval_server.py URL CHECKPOINT TASKS OUT NAMES``.

SGLang has the ``/tokenize`` that lm-eval's remote tokenizer asks, but not its ``/tokenizer_info``: the
special tokens are read from the checkpoint instead. Requests go out one after another, each to an empty
prefix cache: a generation may depend on what shares its batch and on how much of its prompt was cached.
"""

import json
import sys
from pathlib import Path

import requests
from lm_eval import simple_evaluate, utils
from lm_eval.loggers import EvaluationTracker
from lm_eval.models.api_models import TemplateAPI
from lm_eval.tasks import TaskManager


def main(url: str, checkpoint: Path, tasks: Path, out: Path, names: list[str]) -> None:
    info = json.loads((checkpoint / "tokenizer_config.json").read_text())
    special = {name: info.get(name) for name in ("eos_token", "bos_token", "pad_token")}
    utils.RemoteTokenizer._validate_server = lambda self: None
    utils.RemoteTokenizer.tokenizer_info = property(lambda self: special)
    send = TemplateAPI.model_call

    def send_afresh(self, messages, **kwargs):
        requests.post(f"{url}/flush_cache?timeout=30", timeout=60).raise_for_status()
        return send(self, messages, **kwargs)

    TemplateAPI.model_call = send_afresh
    tracker = EvaluationTracker(output_path=str(out))
    results = simple_evaluate(
        model="local-completions",
        model_args={
            "model": "default",
            "base_url": f"{url}/v1/completions",
            "tokenizer_backend": "remote",
            "tokenized_requests": True,
            "num_concurrent": 1,
            "max_retries": 1,
            "max_length": 4096,
        },
        tasks=names,
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
        evaluation_tracker=tracker,
    )
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    for name in names:
        tracker.save_results_samples(task_name=name, samples=samples[name])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), sys.argv[5].split(","))

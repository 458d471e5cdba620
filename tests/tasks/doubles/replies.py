"""Replies and samples of tasks, as a server would have given them."""

from typing import Any

from equipoise.evals.types import Output, Sample, SampleKey, TaskItem

__all__ = ["output", "sample"]


def output(text: str | None, finish_reason: str = "stop", **more: Any) -> Output:
    return Output(
        **{
            "text": text,
            "finish_reason": finish_reason,
            "prompt_tokens": 10,
            "completion_tokens": 3,
            "latency_s": 0.1,
            **more,
        }
    )


def sample(item: TaskItem, *outputs: Output, error: str | None = None) -> Sample:
    return Sample(
        key=SampleKey(model="m", arm="a", task=item.task, item_id=item.id),
        content_hash=item.content_hash,
        outputs=outputs,
        attempts=1,
        started_unix_s=0.0,
        latency_s=0.1,
        error=error,
    )

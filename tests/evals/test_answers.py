"""Facts about answers: lengths over turns, loops, and silence where a text was only scored."""

from equipoise.evals.answers import answer_facts
from equipoise.evals.types import AnswerFacts, Output, Sample, SampleKey, TaskItem

ITEM = TaskItem(task="t", id="i", inputs={}, target="yes", content_hash="h", cluster_id="i")


def output(text: str | None, tokens: int = 3, finish: str = "stop", **more) -> Output:
    return Output(
        text=text,
        finish_reason=finish,
        prompt_tokens=more.pop("prompt", 10),
        completion_tokens=tokens,
        latency_s=0.0,
        **more,
    )


def sample(*outputs: Output, error: str | None = None) -> Sample:
    key = SampleKey(model="m", arm="B", task="t", item_id="i")
    return Sample(
        key=key, content_hash="h", outputs=outputs, attempts=1, started_unix_s=0.0, latency_s=0.0, error=error
    )


def test_turns_add_up_and_the_longest_prompt_counts() -> None:
    facts = answer_facts(ITEM, sample(output("no", 2, prompt=10), output("yes", 5, prompt=40)))
    assert facts == AnswerFacts(prompt_tokens=40, completion_tokens=7, degenerate=False)


def test_a_loop_in_any_turn_is_degenerate() -> None:
    assert answer_facts(ITEM, sample(output("!" * 900), output("yes"))).degenerate
    assert answer_facts(ITEM, sample(output("49" * 30, finish="length"))).degenerate
    assert not answer_facts(ITEM, sample(output("49" * 30))).degenerate
    assert answer_facts(ITEM, sample(output("x", token_ids=(7,) * 300))).degenerate
    assert not answer_facts(ITEM, sample(output(None))).degenerate
    assert answer_facts(ITEM, sample(output("yes", reasoning="wait, " * 300))).degenerate


def test_scored_text_and_errors_say_nothing_about_answers() -> None:
    scored = sample(output("a", 1), output("b", 1, prompt=12, prompt_logprobs=(None, -0.5)))
    assert answer_facts(ITEM, scored) == AnswerFacts(prompt_tokens=12)
    assert answer_facts(ITEM, sample(output("yes"), error="timeout")) == AnswerFacts()
    assert answer_facts(ITEM, sample()) == AnswerFacts()

"""Every item of every task whose data is here becomes a prompt in Kimi's chat format, and back."""

import os

import pytest
from kimi_chat import encode, render, tokenizer

from equipoise.evals.errors import UsageError
from equipoise.tasks.options import where_data_is
from equipoise.tasks.reference import Counted
from equipoise.tasks.registry import TASKS

GENERATED = 4  # items of tasks without data of their own


@pytest.mark.parametrize("name", TASKS)
def test_all_items_render_and_come_back_from_their_token_ids(name: str) -> None:
    if not os.environ.get("EQUIPOISE_DATA"):
        pytest.skip("EQUIPOISE_DATA is not set")
    kimi = tokenizer()
    task = where_data_is(TASKS[name])
    try:
        items = task.items(task.count() if isinstance(task, Counted) else GENERATED, 1)
    except UsageError as e:
        pytest.skip(f"its data is not here: {e}")
    assert items
    for item in items:
        request = task.next_request(item, ())
        assert request is not None
        if request.input_ids is not None:
            continue  # of the embedded models' own tokenizer
        if request.messages is None:
            assert request.text is not None
            text = request.text
        else:
            text = render(request.messages, request.chat.tools)
            assert text.endswith("<|im_assistant|>assistant<|im_middle|>")
        ids = encode(text)
        assert kimi.decode(ids) == text
        limit = 200 + len(text.encode())  # a byte takes a token at most
        assert 0 < len(ids) <= limit

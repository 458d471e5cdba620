"""Greedy accuracy of an embedded model without generating: one forward pass an item.

A conversation is right exactly if every answer token (with its closing ``<eos>``) is the model's
first choice given the right tokens before it, because greedy decoding then reproduces them.
"""

# mypy: allow-untyped-decorators

from collections.abc import Sequence

import torch

from equipoise.tasks.embedded.architecture import FastModel
from equipoise.tasks.embedded.tokenizer import PAD_ID, render
from equipoise.tasks.generated import Draw

__all__ = ["Answers", "answer"]


class Answers:
    """Per conversation: ``right`` [n] and mean ``nll_nats`` of its answer tokens [n]."""

    def __init__(self, right: list[bool], nll_nats: list[float]) -> None:
        self.right, self.nll_nats = right, nll_nats

    @property
    def accuracy(self) -> float:
        return sum(self.right) / len(self.right)


@torch.no_grad()
def answer(model: FastModel, draws: Sequence[Draw], *, batch: int = 25) -> Answers:
    """Score ``draws`` in batches of ``batch`` conversations of similar length."""
    was_training = model.training
    model.eval()
    rows = [render(drawn.turns) for drawn in draws]
    right, nll_nats = [False] * len(rows), [0.0] * len(rows)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]))
    for start in range(0, len(order), batch):
        members = order[start : start + batch]
        longest = max(len(rows[i][0]) for i in members)
        ids = torch.full((len(members), longest), PAD_ID)
        is_answer = torch.zeros((len(members), longest), dtype=torch.bool)
        for row, i in enumerate(members):
            ids[row, : len(rows[i][0])] = torch.tensor(rows[i][0])
            is_answer[row, : len(rows[i][1])] = torch.tensor(rows[i][1])
        logprobs = model(ids)[:, :-1].float().log_softmax(-1)  # of token t + 1, at t
        following, counted = ids[:, 1:], is_answer[:, 1:]
        hit = (logprobs.argmax(-1) == following) | ~counted
        nll = -logprobs.gather(-1, following[..., None])[..., 0] * counted
        for row, i in enumerate(members):
            right[i] = bool(hit[row].all())
            nll_nats[i] = float(nll[row].sum() / counted[row].sum())
    model.train(was_training)
    return Answers(right, nll_nats)

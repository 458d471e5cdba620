"""Which generated items are for evaluation only.

Every generated item has a *split key*: the text that makes it what it is (a table, a string, a
sum). One key in eight, chosen by hash, is held out: evaluation draws only held-out keys and the
training stream rejects them, so the two are disjoint by construction, whatever the seeds.
"""

import hashlib

__all__ = ["HELD_OUT_ONE_IN", "content_hash", "is_held_out"]

HELD_OUT_ONE_IN = 8


def is_held_out(split_key: str) -> bool:
    """Whether an item with this split key may appear in evaluation (and so never in training)."""
    return hashlib.sha256(split_key.encode()).digest()[0] % HELD_OUT_ONE_IN == 0


def content_hash(*parts: str) -> str:
    """First 16 hex digits of the SHA-256 of the parts, each preceded by its length."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:16]

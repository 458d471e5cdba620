"""The text that things are hidden in: our own prose, or a file of the user's."""

import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from equipoise.evals.errors import UsageError
from equipoise.tasks.long.prose import grammar_digest, sentences

__all__ = ["haystack", "source_digest", "source_sentences"]

MAX_FILE_BYTES = 256 << 20
_SENTENCES_IN_PARAGRAPH = 6
_END = re.compile(r"(?<=[.!?])\s+")


def source_digest(text: str) -> str:
    """What stands for the source in content hashes: of the file ``text``, or of our grammar if it is empty.

    Raises
    ------
    UsageError
        The file cannot be read, is too large, not UTF-8, or has fewer than two sentences.
    """
    return _read(text)[0] if text else grammar_digest()


def source_sentences(rng: random.Random, text: str) -> Iterator[str]:
    """Sentences without end; a file's from a random one on, and from its beginning after its end."""
    if not text:
        yield from sentences(rng)
        return
    found = _read(text)[1]
    at = int(rng.random() * len(found))
    while True:
        yield found[at % len(found)]
        at += 1


def haystack(rng: random.Random, size_bytes: int, needles: Sequence[tuple[float, str]], text: str) -> str:
    """Paragraphs of at most ``size_bytes`` (UTF-8) with every needle as a sentence at its depth.

    ``needles`` are (depth in [0, 1], sentence); the needles' own size counts. One sentence at least is of the
    source.
    """
    left = size_bytes - sum(len(s.encode()) + 2 for _, s in needles)
    found: list[str] = []
    for sentence in source_sentences(rng, text):
        left -= len(sentence.encode()) + 2
        if left < 0 and found:
            break
        found.append(sentence)
    placed = sorted((round(depth * len(found)), i) for i, (depth, _) in enumerate(needles))
    whole: list[str] = []
    before = 0
    for at, i in placed:
        whole += found[before:at]
        whole.append(needles[i][1])
        before = at
    whole += found[before:]
    size = _SENTENCES_IN_PARAGRAPH
    return "\n\n".join(" ".join(whole[i : i + size]) for i in range(0, len(whole), size))


@lru_cache(maxsize=2)
def _read(path: str) -> tuple[str, tuple[str, ...]]:
    """Digest and sentences of a file."""
    try:
        if (size := Path(path).stat().st_size) > MAX_FILE_BYTES:
            raise UsageError(f"option text: {path} has {size} bytes; at most {MAX_FILE_BYTES} are read")
        raw = Path(path).read_bytes()
        found = tuple(s for s in (" ".join(x.split()) for x in _END.split(raw.decode("utf-8"))) if s)
    except OSError as e:
        raise UsageError(f"option text: cannot read {path} ({e.strerror}); give a text file") from e
    except UnicodeDecodeError as e:
        raise UsageError(f"option text: {path} is not UTF-8 text (byte {e.start}); convert it") from e
    if len(found) < 2:
        raise UsageError(f"option text: {path} has {len(found)} sentences; give a text of at least two")
    return hashlib.sha256(raw).hexdigest()[:16], found

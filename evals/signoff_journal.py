"""A journal's content, line by line: what a sign-off vouches for, whatever the layout of the file.

The manifest has one line of canonical JSON for each fact of the journal, with the SHA-256 of its content:

    ["meta", name, sha256]                              plan, its hash, the time of registration, provenance
    ["record", number, name, sha256]                    in the order in which they were kept
    ["sample", model, arm, task, item, repeat, sha256]  in the order of their keys

The digest of a journal is the SHA-256 of its manifest, so `sha256sum` on a kept manifest gives it too, and
two manifests say which samples differ.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from equipoise.evals.journal_file import connect, read_metadata, reading, require_file
from equipoise.evals.sample_json import canonical_json

__all__ = ["Manifest", "differences", "manifest_of", "parse_manifest"]

MAX_MANIFEST_BYTES = 1 << 30
_SAMPLES = """
SELECT model, arm, task, item_id, repeat,
       final, content_hash, finish_reason, prompt_tokens, completion_tokens, attempts, latency_s, error, body
FROM samples ORDER BY model, arm, task, item_id, repeat
"""
_KEY_COLUMNS = 5
_Key = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Content hashes by what they are of: the kind of line and its names."""

    entries: Mapping[_Key, str]

    @property
    def text(self) -> str:
        return "".join(canonical_json([*key, sha]) + "\n" for key, sha in self.entries.items())

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode("ascii")).hexdigest()

    def count(self, kind: str) -> int:
        """Lines of a kind: meta, record or sample."""
        return sum(key[0] == kind for key in self.entries)


def manifest_of(path: Path) -> Manifest:
    """The manifest of a journal.

    Raises
    ------
    UsageError
        There is none.
    JournalError
        It is damaged, or another version's.
    """
    require_file(path)
    read_metadata(path, check=False)
    return Manifest(entries=dict(_entries(path)))


def _entries(path: Path) -> Iterator[tuple[_Key, str]]:
    with reading(path):
        db = connect(path, writable=False)
        try:
            for name, value in db.execute("SELECT name, value FROM meta ORDER BY name"):
                yield ("meta", name), _sha(value)
            rows = db.execute("SELECT unix_s, name, value FROM records ORDER BY rowid")
            for number, (unix_s, name, value) in enumerate(rows, start=1):
                yield ("record", number, name), _sha(canonical_json([unix_s, value]))
            for row in db.execute(_SAMPLES):
                yield ("sample", *row[:_KEY_COLUMNS]), _sha(canonical_json(row[_KEY_COLUMNS:]))
        finally:
            db.close()


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def parse_manifest(text: str) -> Manifest:
    """What `Manifest.text` gave.

    Raises
    ------
    ValueError
        It is something else.
    """
    entries: dict[_Key, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            *key, sha = json.loads(line)
        except (ValueError, TypeError, RecursionError) as e:
            raise ValueError(f"line {number} is not a line of a manifest") from e
        if not isinstance(sha, str) or not key or not all(isinstance(part, str | int) for part in key):
            raise ValueError(f"line {number} is not a line of a manifest")
        entries[tuple(key)] = sha
    return Manifest(entries=entries)


def differences(signed: Manifest, now: Manifest) -> Iterator[str]:
    """What was changed, added or removed, each in words; plan and provenance first."""
    for key, sha in signed.entries.items():
        found = now.entries.get(key)
        if found is None:
            yield f"{_words(key)} was removed"
        elif found != sha:
            yield f"{_words(key)} was changed"
    for key in now.entries.keys() - signed.entries.keys():
        yield f"{_words(key)} was added"


def _words(key: _Key) -> str:
    match key:
        case ("sample", model, arm, task, item, repeat):
            return f"sample {item} (task {task}, arm {arm}, model {model}, repeat {repeat})"
        case ("record", number, name):
            return f"record {number} ({name})"
        case _:
            return f"the journal's {key[-1]}"

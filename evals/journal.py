"""The sample store of a run: crash-safe, one SQLite file, one writer.

Guarantees
----------
* A sample counts as saved once `flush` has returned (or `saved` includes it); a crash or power
  cut loses nothing that was saved. Commits use WAL with ``synchronous=FULL``: in WAL mode
  ``NORMAL`` survives a killed process but may lose the last commits on a power cut, and since
  commits are grouped, one fsync a group is cheap.
* An answered key is final: a second answer raises, and nothing ever overwrites the first one.
  A row whose ``error`` is set may be replaced by a later attempt, unless the server refused the
  request: a refusal is an outcome.
* A failed save stops the run: every later call raises.
* Two runners cannot share a run. The lock is the kernel's (``flock``), so it ends with the
  process that held it, also after ``kill -9``.

Rows are JSON text (see `sample_json`); nothing in the file is ever executed or unpickled.
"""

import contextlib
import hashlib
import json
import queue
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Self

from equipoise.evals.errors import JournalError
from equipoise.evals.journal_file import (
    RunMetadata,
    connect,
    initialise,
    lock_run,
    match_plan,
    read_metadata,
    reading,
    require_file,
    switch_to_wal,
)
from equipoise.evals.sample_json import canonical_json, sample_from_json, sample_to_json
from equipoise.evals.types import Sample, SampleKey

__all__ = ["Journal", "RunMetadata"]

MAX_SAMPLE_BYTES = 256 << 20
GROUP_S = 0.05  # a commit waits this long for more rows ...
GROUP_ROWS = 256  # ... or for this many
QUEUE_ROWS = 4096  # put() blocks beyond this: a stalled disk slows the run, not the memory

_UPSERT = """
INSERT INTO samples VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)
ON CONFLICT DO UPDATE SET final=excluded.final, content_hash=excluded.content_hash,
    finish_reason=excluded.finish_reason, prompt_tokens=excluded.prompt_tokens,
    completion_tokens=excluded.completion_tokens, attempts=excluded.attempts,
    latency_s=excluded.latency_s, error=excluded.error, body=excluded.body
WHERE samples.final = 0
"""
_CHOSEN = """
FROM samples WHERE (:model IS NULL OR model = :model) AND (:arm IS NULL OR arm = :arm)
    AND (:task IS NULL OR task = :task)
"""
_COUNT = "SELECT count(*)" + _CHOSEN
_BODIES = "SELECT body" + _CHOSEN + "ORDER BY model, arm, task, item_id, repeat"
_BODY = "SELECT body FROM samples WHERE model = ? AND arm = ? AND task = ? AND item_id = ? AND repeat = ?"

_Row = tuple[Any, ...]


class Journal:
    """A run's journal; make one with `create`, `resume` or `read`.

    A context manager; leaving it saves what is pending, and raises if that fails.
    """

    def __init__(self, path: Path, *, metadata: RunMetadata, lock: IO[str] | None) -> None:
        self.path = path
        self.metadata = metadata
        self._lock = lock
        self._reader = connect(path, writable=lock is not None)
        self._final: dict[SampleKey, str] = {}
        self._queued = 0
        self._saved = 0
        self._failure: JournalError | None = None
        self._closed = False
        self._condition = threading.Condition()
        self._queue: queue.Queue[_Row | None] = queue.Queue(QUEUE_ROWS)
        self._writer: threading.Thread | None = None
        if lock is not None:
            self._final = self.final_keys()
            self._writer = threading.Thread(target=self._write_loop, name="journal", daemon=True)
            self._writer.start()

    # -- opening ---------------------------------------------------------------------------

    @classmethod
    def create(cls, path: Path, *, plan_hash: str, plan_text: str, provenance: Mapping[str, Any]) -> Self:
        """Start the journal of a new run; the metadata is on disk when this returns.

        Raises
        ------
        JournalError
            The file exists already, another run holds it, or it cannot be written.
        """
        lock = lock_run(path)
        try:
            if path.exists():
                raise JournalError(
                    f"{path}: this run has a journal already; continue it with --resume, "
                    "or give another directory with --out"
                )
            metadata = RunMetadata(
                plan_hash=plan_hash, plan_text=plan_text, created_unix_s=time.time(), provenance=provenance
            )
            initialise(path, metadata)
            return cls(path, metadata=metadata, lock=lock)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def resume(cls, path: Path, *, plan_hash: str) -> Self:
        """Open the journal of a run that was cut short, to continue it.

        Raises
        ------
        JournalError
            No journal there, damaged, or held by a live run.
        PlanError
            The journal belongs to another plan; both hashes are named.
        """
        require_file(path)
        lock = lock_run(path)
        try:
            metadata = read_metadata(path, check=True)
            match_plan(path, metadata, plan_hash)
            return cls(path, metadata=metadata, lock=lock)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def read(cls, path: Path, *, plan_hash: str | None = None) -> Self:
        """Open a journal for reading only; works while a run is writing it."""
        require_file(path)
        metadata = read_metadata(path, check=False)
        if plan_hash is not None:
            match_plan(path, metadata, plan_hash)
        return cls(path, metadata=metadata, lock=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- writing ---------------------------------------------------------------------------

    @property
    def saved(self) -> int:
        """Samples of this session that are on disk for good."""
        return self._saved

    def put(self, sample: Sample) -> None:
        """Hand a sample over to be saved with the next group of rows.

        Raises
        ------
        JournalError
            The key is settled already, the sample cannot be stored, or an earlier save failed.
        """
        if self._failure is not None:
            raise self._failure
        if self._writer is None or self._closed:
            raise JournalError(f"{self.path}: the journal is closed, or open for reading only")
        if sample.key in self._final:
            raise JournalError(
                f"{self.path}: {_describe(sample.key)} is settled already; refusing to replace it"
            )
        row = self._row(sample)
        while True:
            try:
                self._queue.put(row, timeout=1)
                break
            except queue.Full:
                if self._failure is not None:
                    raise self._failure from None
        self._queued += 1
        if sample.final:
            self._final[sample.key] = sample.content_hash

    def failed_keys(self) -> set[SampleKey]:
        """The keys on disk whose last attempt ended in an error, refusals excepted."""
        with reading(self.path):
            rows = self._reader.execute(
                "SELECT model, arm, task, item_id, repeat FROM samples WHERE final = 0"
            )
            return {SampleKey(model=m, arm=a, task=t, item_id=i, repeat=r) for m, a, t, i, r in rows}

    def record(self, name: str, value: object) -> None:
        """Keep a fact about this run (a server's arguments, a resumption); records are only ever added.

        Raises
        ------
        JournalError
            The value is not JSON, or it cannot be saved.
        """
        if self._lock is None or self._closed:
            raise JournalError(f"{self.path}: the journal is closed, or open for reading only")
        try:
            self._reader.execute(
                "INSERT INTO records VALUES (?, ?, ?)", (time.time(), name, canonical_json(value))
            )
        except (sqlite3.Error, TypeError, ValueError) as e:
            raise JournalError(f"{self.path}: cannot save the record {name!r} ({e})") from e

    def flush(self) -> None:
        """Wait until everything put so far is on disk; raises JournalError if that failed."""
        target = self._queued
        with self._condition:
            while self._saved < target and self._failure is None:
                self._condition.wait(0.5)
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Save what is pending, fold the WAL into the file and give the lock back."""
        if self._closed:
            return
        self._closed = True
        try:
            self._reader.close()  # first: the writer can leave WAL mode only when it is alone
            if self._writer is not None:
                self._queue.put(None)
                self._writer.join()
        finally:
            if self._lock is not None:
                self._lock.close()
        if self._failure is not None:
            raise self._failure

    def _row(self, sample: Sample) -> _Row:
        k = sample.key
        try:
            body = sample_to_json(sample)
            if len(body) > MAX_SAMPLE_BYTES:
                raise ValueError(f"{len(body)} bytes is over the limit of {MAX_SAMPLE_BYTES}")
            for part in (k.model, k.arm, k.task, k.item_id, sample.content_hash):
                if "\0" in part or not part.isprintable():
                    raise ValueError(f"{part!r} in its key has characters that cannot be printed")
        except ValueError as e:
            raise JournalError(f"{self.path}: {_describe(k)} cannot be stored: {e}") from e
        return (
            k.model,
            k.arm,
            k.task,
            k.item_id,
            k.repeat,
            int(sample.final),
            sample.content_hash,
            sample.outputs[-1].finish_reason.encode("ascii", "backslashreplace").decode()
            if sample.outputs
            else None,
            sum(o.prompt_tokens for o in sample.outputs),
            sum(o.completion_tokens for o in sample.outputs),
            sample.attempts,
            sample.latency_s,
            None if sample.error is None else sample.error.encode("ascii", "backslashreplace").decode(),
            body,
        )

    def _write_loop(self) -> None:
        try:
            db = connect(self.path, writable=True)
            try:
                switch_to_wal(db)
                while self._write_group(db):
                    pass
                # One self-contained file, readable from a read-only directory. Somebody who reads it
                # at this moment prevents that, and then the WAL stays beside it.
                with contextlib.suppress(sqlite3.OperationalError):
                    db.execute("PRAGMA journal_mode = DELETE")
            finally:
                db.close()
        except BaseException as e:  # noqa: BLE001  whatever ended this thread, put() and flush() must say so
            self._fail(e)

    def _write_group(self, db: sqlite3.Connection) -> bool:
        """Save one group of rows; False when the journal is being closed."""
        rows: list[_Row] = []
        row = self._queue.get()
        deadline = time.monotonic() + GROUP_S
        while row is not None:
            rows.append(row)
            if len(rows) >= GROUP_ROWS:
                break
            try:
                row = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
        if rows:
            db.execute("BEGIN IMMEDIATE")
            before = db.total_changes
            db.executemany(_UPSERT, rows)
            if db.total_changes - before != len(rows):
                db.execute("ROLLBACK")
                raise JournalError(f"{self.path}: an answered row would have been replaced; nothing was")
            db.execute("COMMIT")
            with self._condition:
                self._saved += len(rows)
                self._condition.notify_all()
        return row is not None

    def _fail(self, e: BaseException) -> None:
        if not isinstance(e, JournalError):
            e = JournalError(
                f"{self.path}: cannot save ({e}); what was saved before is kept: free the disk or "
                "mend the file system, then continue with --resume"
            )
        with self._condition:
            self._failure = e
            self._condition.notify_all()
        while True:  # let a blocked put() and close() go on; they will see the failure
            try:
                self._queue.get_nowait()
            except queue.Empty:
                return

    # -- reading ---------------------------------------------------------------------------

    def final_keys(self) -> dict[SampleKey, str]:
        """The settled keys on disk, with the content hash of what each was asked."""
        with reading(self.path):
            rows = self._reader.execute(
                "SELECT model, arm, task, item_id, repeat, content_hash FROM samples WHERE final = 1"
            )
            return {SampleKey(model=m, arm=a, task=t, item_id=i, repeat=r): h for m, a, t, i, r, h in rows}

    def records(self, name: str | None = None) -> list[tuple[float, str, Any]]:
        """What `record` kept, in order: (unix time in seconds, name, value)."""
        with reading(self.path):
            rows = self._reader.execute(
                "SELECT unix_s, name, value FROM records WHERE ? IS NULL OR name = ? ORDER BY rowid",
                (name, name),
            )
            return [(t, n, json.loads(value)) for t, n, value in rows]

    def count(self, *, model: str | None = None, arm: str | None = None, task: str | None = None) -> int:
        """How many samples are on disk, errors included."""
        chosen = {"model": model, "arm": arm, "task": task}
        with reading(self.path):
            return int(self._reader.execute(_COUNT, chosen).fetchone()[0])

    def samples(
        self, *, model: str | None = None, arm: str | None = None, task: str | None = None
    ) -> Iterator[Sample]:
        """The samples on disk, in the order of their keys."""
        chosen = {"model": model, "arm": arm, "task": task}
        with reading(self.path):
            for (body,) in self._reader.execute(_BODIES, chosen):
                yield sample_from_json(body)

    def get(self, key: SampleKey) -> Sample | None:
        """One sample, or None."""
        with reading(self.path):
            found = self._reader.execute(
                _BODY, (key.model, key.arm, key.task, key.item_id, key.repeat)
            ).fetchone()
            return None if found is None else sample_from_json(found[0])

    def digest(self, *, answers_only: bool = False, model: str | None = None, arm: str | None = None) -> str:
        """SHA-256 over the samples in key order: the order of insertion does not matter.

        With ``answers_only`` the times, latencies and numbers of attempts are left out, so that
        two runs with the same answers agree. ``model`` and ``arm`` choose their samples alone.
        """
        sha = hashlib.sha256()
        with reading(self.path):
            for (body,) in self._reader.execute(_BODIES, {"model": model, "arm": arm, "task": None}):
                text = _without_timing(body) if answers_only else body
                sha.update(text.encode("ascii"))
                sha.update(b"\n")
        return sha.hexdigest()


def _without_timing(body: str) -> str:
    row = json.loads(body)
    for name in ("attempts", "started_unix_s", "latency_s"):
        row.pop(name, None)
    for output in row["outputs"]:
        output.pop("latency_s", None)
        output.pop("cached_tokens", None)
    return canonical_json(row)


def _describe(key: SampleKey) -> str:
    return f"model {key.model!r} arm {key.arm!r} task {key.task!r} item {key.item_id!r} repeat {key.repeat}"

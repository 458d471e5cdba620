"""The journal's file: its schema, its mark, its lock, and how it is opened."""

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from equipoise.evals.errors import JournalError, PlanError, UsageError
from equipoise.evals.sample_json import canonical_json

__all__ = [
    "RunMetadata",
    "connect",
    "initialise",
    "lock_run",
    "match_plan",
    "read_metadata",
    "reading",
    "require_file",
    "switch_to_wal",
]

SCHEMA_VERSION = 1
BUSY_S = 30.0  # how long somebody else's lock is waited for
APPLICATION_ID = 0x45515053  # "EQPS": tells a journal from any other SQLite file

_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE records (unix_s REAL NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL) STRICT;
CREATE TABLE samples (
    model TEXT NOT NULL, arm TEXT NOT NULL, task TEXT NOT NULL, item_id TEXT NOT NULL,
    repeat INTEGER NOT NULL,
    final INTEGER NOT NULL,        -- 1: answered or refused, never replaced
    content_hash TEXT NOT NULL,
    finish_reason TEXT,            -- of the last output
    prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,  -- over all outputs
    attempts INTEGER NOT NULL, latency_s REAL NOT NULL, error TEXT,
    body TEXT NOT NULL,            -- the whole sample, canonical JSON
    PRIMARY KEY (model, arm, task, item_id, repeat)
) STRICT;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetadata:
    """What was fixed before the first request."""

    plan_hash: str
    plan_text: str
    created_unix_s: float
    provenance: Mapping[str, Any]


class reading:
    """Turn SQLite's and the codec's errors into a JournalError that names the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, e: BaseException | None, trace: object) -> None:
        if isinstance(e, (sqlite3.Error, ValueError)):
            raise JournalError(
                f"{self.path}: the journal is damaged or not a journal ({e}); restore it from a copy, "
                "or start a new run in another directory"
            ) from e


def connect(path: Path, *, writable: bool) -> sqlite3.Connection:
    """Autocommit connection; transactions are explicit."""
    mode = "rw" if writable else "ro"
    db = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        timeout=BUSY_S,
        check_same_thread=False,
    )
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA trusted_schema = OFF")
    return db


def switch_to_wal(db: sqlite3.Connection) -> None:
    """Keep a write-ahead log. The switch needs the file for itself, and SQLite's own waiting does not cover
    it: somebody who reads at this moment is waited for here.
    """
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def initialise(path: Path, metadata: RunMetadata) -> None:
    """Write a complete, empty journal: beside, then renamed, so that no half-made one is ever seen."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    try:
        new.unlink(missing_ok=True)
        new.touch()
        db = connect(new, writable=True)
        try:
            db.executescript(_SCHEMA)
            rows = {
                "plan_hash": metadata.plan_hash,
                "plan_text": metadata.plan_text,
                "created_unix_s": repr(metadata.created_unix_s),
                "provenance": canonical_json(metadata.provenance),
            }
            db.executemany("INSERT INTO meta VALUES (?, ?)", rows.items())
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        finally:
            db.close()
        os.replace(new, path)
    except (sqlite3.Error, OSError, ValueError) as e:
        raise JournalError(f"{path}: cannot create the journal ({e}); give a writable --out") from e


def require_file(path: Path) -> None:
    if not path.is_file():
        raise UsageError(
            f"{path}: no journal there; give the directory of a run, or start one without --resume"
        )


def lock_run(path: Path) -> IO[str]:
    """Hold the run for as long as this file object, and this process, lives."""
    name = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = open(name, "a+", encoding="ascii")  # noqa: SIM115
    except OSError as e:
        raise JournalError(f"{name}: cannot lock the run ({e.strerror}); give a writable --out") from e
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        handle.seek(0)
        holder = handle.read(32).strip() or "unknown"
        handle.close()
        raise JournalError(
            f"{path}: another run is writing this journal (process {holder}); wait for it, "
            "stop it, or give another directory with --out"
        ) from e
    handle.truncate(0)
    handle.write(f"{os.getpid()}\n")
    handle.flush()
    return handle


def match_plan(path: Path, metadata: RunMetadata, plan_hash: str) -> None:
    if metadata.plan_hash != plan_hash:
        raise PlanError(
            f"{path}: this run was registered with plan {metadata.plan_hash}, but the plan given now is "
            f"{plan_hash}; resume with the registered plan, or start a new run for the new one"
        )


def read_metadata(path: Path, *, check: bool) -> RunMetadata:
    with reading(path):
        db = connect(path, writable=check)
        try:
            if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                raise ValueError("no journal's mark in its header")
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version != SCHEMA_VERSION:
                raise JournalError(
                    f"{path}: schema version {version}, this program reads {SCHEMA_VERSION}; "
                    "use the version of equipoise that wrote it"
                )
            if check:
                verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
                if verdict != "ok":
                    raise ValueError(verdict)
            meta = dict(db.execute("SELECT name, value FROM meta"))
            return RunMetadata(
                plan_hash=meta["plan_hash"],
                plan_text=meta["plan_text"],
                created_unix_s=float(meta["created_unix_s"]),
                provenance=json.loads(meta["provenance"]),
            )
        except KeyError as e:
            raise ValueError(f"no {e} in its metadata") from e
        finally:
            db.close()

"""Runs the jobs of a conversion: in parallel, resumable, and whole or not at all.

The target grows in ``DST.partial``, which has no config and no index, so that nothing takes it for a
checkpoint. Each finished shard leaves a record with checksums. When all are done the small files are
written and the folder gets its name in one step.
"""

import contextlib
import fcntl
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from equipoise.evals.errors import CheckpointError, EquipoiseError, UsageError
from equipoise.quant.checkpoint import INDEX_NAME, MAX_CONFIG_BYTES, MAX_INDEX_BYTES, read_json, read_shard
from equipoise.quant.weights.jobs import ShardJob, ShardRecord, Tick
from equipoise.quant.weights.resident import reset_peak_rss, rss_bytes
from equipoise.quant.weights.shards import checksums, storage_error
from equipoise.quant.weights.tiles import EncodeCounts

__all__ = ["REPORT_NAME", "Outcome", "Progress", "Target", "process_count", "run_parallel"]

REPORT_NAME = "equipoise_conversion.json"
WORK = ".equipoise"
POLL_S = 0.1

Progress = Callable[[int, int], None]  # (source bytes done, source bytes in all)
Job = TypeVar("Job")
Result = TypeVar("Result")

_ticks: Any = None  # in a worker: the counter shared with the parent
_idle_rss_bytes: int | None = None  # of this process before its first job


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What :meth:`Target.fill` did."""

    records: tuple[ShardRecord, ...]
    resumed: int  # shards found done
    seconds: float
    idle_rss_bytes: int  # the largest of a worker before its first job
    peak_rss_bytes: int  # the largest of a worker after its last


def process_count(requested: int | None, jobs: int) -> int:
    """Processes to use: as asked, else one a core; never more than there are jobs."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(requested or available, jobs))


def _start_worker(counter: Any) -> None:
    global _ticks  # noqa: PLW0603
    _ticks = counter
    torch.set_num_threads(1)
    _note_idle()


def _tick_shared(nbytes: int) -> None:
    with _ticks.get_lock():
        _ticks.value += nbytes


def _in_worker(call: Callable[[Job, Tick], Result], job: Job) -> Result:
    return call(job, _tick_shared)


def _note_idle() -> None:
    """Remember, once, what this process holds before it works, and let its peak begin there."""
    global _idle_rss_bytes  # noqa: PLW0603
    if _idle_rss_bytes is None:
        reset_peak_rss()
        _idle_rss_bytes = rss_bytes()


def run_parallel(
    call: Callable[[Job, Tick], Result],
    jobs: Sequence[Job],
    *,
    total_bytes: int,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Result]:
    """``call(job, tick)`` for every job, in order of the jobs; in this process if one worker is enough.

    ``call`` must be importable by name. The first error stops what has not started and is raised.
    """
    count = process_count(workers, len(jobs))
    report = progress or (lambda done, total: None)
    if count == 1:
        _note_idle()
        done = 0

        def tick(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            report(done, total_bytes)

        return [call(job, tick) for job in jobs]
    context = multiprocessing.get_context("spawn")
    counter = context.Value("q", 0)
    pool = ProcessPoolExecutor(count, context, initializer=_start_worker, initargs=(counter,))
    with pool:
        futures: list[Future[Result]] = [pool.submit(_in_worker, call, job) for job in jobs]
        try:
            pending: set[Future[Result]] = set(futures)
            while pending:
                finished, pending = wait(pending, timeout=POLL_S, return_when=FIRST_EXCEPTION)
                report(counter.value, total_bytes)
                for future in finished:
                    future.result()
            return [future.result() for future in futures]
        except BrokenProcessPool as e:
            raise EquipoiseError(
                "a worker process was killed (out of memory?); run again with --resume and fewer --workers"
            ) from e
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The folder to be made. ``plan`` is what a resumed run must have in common with the one it continues."""

    path: Path
    plan: Mapping[str, Any]

    @property
    def partial(self) -> Path:
        return self.path.with_name(self.path.name + ".partial")

    @contextlib.contextmanager
    def open(self, *, resume: bool) -> Iterator[Path]:
        """Make or take up the partial folder, alone.

        Raises
        ------
        UsageError
            The target exists; a partial one exists and ``resume`` is false, or is of another plan; another
            run works on it.
        """
        if self.path.exists() or self.path.is_symlink():
            raise UsageError(f"{self.path} exists; nothing is overwritten: choose another DST or remove it")
        if not self.path.parent.is_dir():
            raise UsageError(f"{self.path.parent} is not a folder; make it first")
        work = self.partial / WORK
        plan_path = work / "plan.json"
        if self.partial.exists():
            if not resume:
                raise UsageError(
                    f"{self.partial} is left from an unfinished run; continue it with --resume, or remove it"
                )
            if not plan_path.exists():
                raise UsageError(f"{self.partial} was not made by this command; remove it")
            if read_json(plan_path, max_bytes=MAX_INDEX_BYTES) != json.loads(json.dumps(self.plan)):
                raise UsageError(
                    f"{self.partial} is of another source, format or version; remove it and start afresh"
                )
        try:
            work.mkdir(parents=True, exist_ok=True)
            lock = os.open(work / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except OSError as e:
            raise storage_error(work, e) from e
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as e:
                raise UsageError(f"another run is writing {self.partial}; wait for it") from e
            if not plan_path.exists():
                write_json(plan_path, self.plan)
            yield self.partial
        finally:
            os.close(lock)

    def fill(
        self, jobs: Sequence[ShardJob], *, workers: int | None = None, progress: Progress | None = None
    ) -> Outcome:
        """Run the jobs that are not done. Call within :meth:`open`.

        Raises
        ------
        CheckpointError
            A source that cannot be read, a target that cannot be written (disk full); finished shards stay.
        """
        started = time.monotonic()
        for leftover in [p for p in self.partial.iterdir() if p.name.endswith(".tmp")]:
            leftover.unlink()
        self._check_space(jobs)
        total = sum(job.input_bytes for job in jobs)
        jobs = sorted(jobs, key=lambda job: -job.input_bytes)  # the longest first, so that none ends alone
        calls = [(job, self.partial) for job in jobs]
        results = run_parallel(_run_or_resume, calls, total_bytes=total, workers=workers, progress=progress)
        return Outcome(
            records=tuple(record for record, _, _ in results),
            resumed=sum(resumed for _, resumed, _ in results),
            seconds=time.monotonic() - started,
            idle_rss_bytes=max((idle for _, _, idle in results), default=0),
            peak_rss_bytes=max((record.peak_rss_bytes for record, _, _ in results), default=0),
        )

    def _check_space(self, jobs: Sequence[ShardJob]) -> None:
        missing = [job.output_bytes for job in jobs if not (self.partial / job.file).exists()]
        free = shutil.disk_usage(self.partial).free
        if sum(missing) > free:
            raise UsageError(
                f"{self.partial}: {sum(missing) / 1e9:,.3f} GB are still to be written and "
                f"{free / 1e9:,.3f} GB are free; make room, or choose another DST"
            )

    def complete(
        self, outcome: Outcome, *, index: bool, files: Mapping[str, bytes | Path], report: Mapping[str, Any]
    ) -> None:
        """Write index, small files and report, and give the folder its name."""
        try:
            if index:
                weight_map = {name: record.file for record in outcome.records for name in record.crc32}
                shards = [read_shard(self.partial / record.file) for record in outcome.records]
                total = sum(info.nbytes for shard in shards for info in shard.tensors.values())
                value = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
                write_json(self.partial / INDEX_NAME, value)
            write_json(self.partial / REPORT_NAME, report)
            # config.json last: a folder without it is no checkpoint to anyone.
            for name, content in sorted(files.items(), key=lambda file: file[0] == "config.json"):
                if isinstance(content, Path):
                    shutil.copyfile(content, self.partial / name)
                else:
                    (self.partial / name).write_bytes(content)
            for entry in self.partial.iterdir():
                if entry.is_file():
                    _fsync(entry)
            shutil.rmtree(self.partial / WORK)
            _fsync(self.partial)
            self.partial.rename(self.path)
            _fsync(self.path.parent)
        except OSError as e:
            raise storage_error(self.partial, e) from e


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write atomically: whole, or nothing is left."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("w", encoding="utf-8") as f:
            json.dump(value, f, indent=2, ensure_ascii=False)
            f.write("\n")
            f.flush()
            os.fsync(f.fileno())
        temporary.replace(path)
    except OSError as e:
        temporary.unlink(missing_ok=True)
        raise storage_error(path, e) from e


def _record_path(folder: Path, file: str) -> Path:
    return folder / WORK / (file + ".json")


def _run_or_resume(call: tuple[ShardJob, Path], tick: Tick) -> tuple[ShardRecord, bool, int]:
    """A shard's record, whether it was found done, and this process's resident memory before the job."""
    job, folder = call
    idle = _idle_rss_bytes or 0
    if (record := _finished(job, folder)) is not None:
        tick(job.input_bytes)
        return record, True, idle
    record = job.run(folder / job.file, tick)
    write_json(_record_path(folder, job.file), asdict(record))
    return record, False, idle


def _finished(job: ShardJob, folder: Path) -> ShardRecord | None:
    """The record of a shard whose bytes still have its checksums; None if it must be made (again)."""
    path = _record_path(folder, job.file)
    if not path.exists() or not (folder / job.file).exists():
        return None
    try:
        held = read_json(path, max_bytes=MAX_CONFIG_BYTES)
        shard, found = checksums(folder / job.file)
    except CheckpointError:
        return None
    if shard.size != held.get("size") or found != held.get("crc32"):
        return None
    counts = {name: EncodeCounts(**c) for name, c in held["counts"].items()}
    return ShardRecord(
        file=job.file, size=shard.size, crc32=found, counts=counts, peak_rss_bytes=held["peak_rss_bytes"]
    )

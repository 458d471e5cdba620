"""From a path to a result set: which format it is, and the reader of that format."""

from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from equipoise.evals.errors import UsageError
from equipoise.evals.interop.bounded import iter_json_lines
from equipoise.evals.interop.inspect_log import find_logs, is_inspect_log, read_inspect
from equipoise.evals.interop.lm_eval import find_samples, is_lm_eval_row, read_lm_eval
from equipoise.evals.interop.result_set import ReadOptions, ResultSet
from equipoise.evals.interop.sgl_eval import find_runs, read_sgl_eval
from equipoise.evals.interop.table import read_table

__all__ = ["READERS", "RUN", "detect_format", "read_results", "split_source"]

#: a run directory of ours; read by `equipoise.evals.experiment`, which can score its answers
RUN = "run"
JOURNAL_NAME = "journal.sqlite"
_TABLES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")

READERS: Mapping[str, Callable[[Path, ReadOptions], ResultSet]] = MappingProxyType(
    {"lm-eval": read_lm_eval, "sgl-eval": read_sgl_eval, "inspect": read_inspect, "table": read_table}
)


def split_source(source: str) -> tuple[Path, str]:
    """The path of ``PATH`` or ``PATH:SELECTOR``, and the selector ("" if there is none).

    Raises
    ------
    UsageError
        No such file or directory.
    """
    cuts = [len(source), *(i for i in range(len(source) - 1, 0, -1) if source[i] == ":")]
    for cut in cuts:
        path = Path(source[:cut])
        try:
            if path.exists():
                return path, source[cut + 1 :]
        except (OSError, ValueError):
            continue
    raise UsageError(f"{source}: no such file or directory; give a run directory, a log or a table")


def detect_format(path: Path) -> str:  # noqa: PLR0911 - one return for each format
    """One of `READERS` or `RUN`.

    Raises
    ------
    UsageError
        Nothing known is there; says what was looked for.
    """
    if path.is_dir():
        if (path / JOURNAL_NAME).exists():
            return RUN
        if find_samples(path):
            return "lm-eval"
        if find_runs(path):
            return "sgl-eval"
        if find_logs(path):
            return "inspect"
        raise UsageError(
            f"{path}: no results found; looked for {JOURNAL_NAME} (our run), samples_*.jsonl (lm-eval), "
            "output-rs*.jsonl (sgl-eval), *.eval and *.json logs (inspect)"
        )
    if path.name == JOURNAL_NAME:
        return RUN
    if path.suffix == ".eval" or (path.suffix == ".json" and is_inspect_log(path)):
        return "inspect"
    if path.suffix == ".json" and path.name.startswith("results_") and find_samples(path.parent):
        return "lm-eval"
    if path.suffix == ".jsonl" and any(is_lm_eval_row(row) for _, row in islice(iter_json_lines(path), 1)):
        return "lm-eval"
    if path.suffix.lower() in _TABLES:
        return "table"
    raise UsageError(
        f"{path}: the format is not known from its name; give --input-format {', '.join(READERS)} or {RUN}"
    )


def read_results(path: Path, selector: str, format_: str, options: ReadOptions) -> ResultSet:
    """Read a result set that is no run directory of ours.

    Raises
    ------
    UsageError
        It cannot be read as that format, or a selector is given where none is understood.
    """
    if format_ == "table":
        return read_table(path, options, selector)
    if selector:
        raise UsageError(
            f"{path}:{selector}: a {format_} log takes nothing after a colon; choose with --task or --metric"
        )
    return READERS[format_](path, options)

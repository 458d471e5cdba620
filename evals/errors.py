"""Every error this project raises on purpose.

::

    EquipoiseError            exit 4: no verdict; what was answered is kept
    ├── UsageError            exit 2: a flag, path or URL the user gave is wrong
    │   ├── PlanError         exit 2: the plan file is wrong, or no longer the registered one
    │   └── CheckpointError   exit 2: a model's files are missing, damaged, contradictory or refused
    ├── ServerError           an SGLang server of ours did not start, or died
    ├── RequestError          one request failed for good (after its retries)
    ├── ParityError           the arms differ in something the plan does not allow
    ├── InterruptedRunError   exit 130: Ctrl-C or SIGTERM; what was answered is kept
    ├── JournalError          the journal of a run cannot be read, written or matched
    └── LedgerError           the ledger of attempts cannot be read or written, or was changed

A message names the item, arm, file, flag or URL, and ends with the remedy.
"""

__all__ = [
    "CheckpointError",
    "EquipoiseError",
    "InterruptedRunError",
    "JournalError",
    "LedgerError",
    "ParityError",
    "PlanError",
    "RequestError",
    "ServerError",
    "SignoffError",
    "UsageError",
]


class EquipoiseError(Exception):
    """Base of all errors raised on purpose; ``exit_code`` is what the CLI returns."""

    exit_code = 4


class UsageError(EquipoiseError):
    """A flag, path, URL or input file given by the user is wrong."""

    exit_code = 2


class PlanError(UsageError):
    """The plan cannot be read, is inconsistent, or differs from the registered one."""


class CheckpointError(UsageError):
    """A checkpoint is missing, damaged, contradicts itself, or is of a kind that is refused (pickles)."""


class ServerError(EquipoiseError):
    """An SGLang server did not come up, or died; carries its log's last lines."""


class RequestError(EquipoiseError):
    """A request failed for good.

    Parameters
    ----------
    message : str
        Names the URL and the cause.
    retryable : bool
        Whether the same request may succeed later (time-out, 429, 5xx, broken connection).
    retry_after_s : float or None
        The server's own Retry-After, in seconds.
    refused : bool
        The server answered that it will not serve this very request (context overflow, content
        policy). An outcome of the item, not a fault of the infrastructure; never retried.
    unreachable : bool
        No connection at all: nothing listens there, or the name does not resolve.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        retry_after_s: float | None = None,
        refused: bool = False,
        unreachable: bool = False,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.refused = refused
        self.unreachable = unreachable


class ParityError(EquipoiseError):
    """Two arms differ in something the plan does not allow (tokenizer, template, server arguments)."""


class InterruptedRunError(EquipoiseError):
    """The run was stopped by a signal; the journal is whole and can be resumed."""

    exit_code = 130  # as shells say it of SIGINT


class JournalError(EquipoiseError):
    """The journal is missing, damaged, locked by another run, or belongs to another plan."""


class LedgerError(EquipoiseError):
    """The ledger of attempts is damaged, edited, locked, or cannot be saved."""


class SignoffError(EquipoiseError):
    """A sign-off is damaged, was edited, or its signature does not hold."""

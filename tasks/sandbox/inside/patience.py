"""How long a process is waited for: its processor time decides, the clock ends only what sleeps.

On a busy machine a right program may take many times its processor time. So every second of that buys
``SLOWEST`` seconds of the clock; what asks for too much of the processor is ended by its own limit.
"""

import time

__all__ = ["SLOWEST", "Patience", "processor_s"]

SLOWEST = 50.0  # a program that gets this part of a processor is still waited for
_PROCESS_CLOCK = 2  # of another process, see clock_getcpuclockid(3)


def processor_s(pid: int) -> float:
    """Processor time of a running process, in seconds; 0 where it cannot be told."""
    try:
        return time.clock_gettime((~pid << 3) | _PROCESS_CLOCK)
    except (AttributeError, OSError):
        return 0.0


class Patience:
    """``seconds`` of the clock for a process, from now on, and more while it works.

    Parameters
    ----------
    with_us : bool
        Whether this process's own work counts as the other's.
    """

    def __init__(self, pid: int, seconds: float, *, with_us: bool = False) -> None:
        self._pid, self._seconds, self._with_us = pid, seconds, with_us
        self._before, self._began = self._work(), time.monotonic()
        self._worked = 0.0

    def left(self) -> float:
        """Seconds of the clock until it is too late, if the process slept until then."""
        self._worked = max(self._worked, self._work() - self._before)  # one that has ended says 0
        return self._seconds + SLOWEST * self._worked - (time.monotonic() - self._began)

    def add(self, worked: float) -> None:
        """Count work, in seconds, that the process had done by another one."""
        self._before -= worked

    def _work(self) -> float:
        return processor_s(self._pid) + (time.process_time() if self._with_us else 0.0)

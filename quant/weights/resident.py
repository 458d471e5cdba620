"""Resident memory of this process: now, and at its peak since it was last reset."""

import contextlib
import resource
from pathlib import Path

__all__ = ["peak_rss_bytes", "reset_peak_rss", "rss_bytes"]

_STATUS = Path("/proc/self/status")


def _status_bytes(key: str) -> int | None:
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return None


def rss_bytes() -> int:
    """Resident now; where there is no /proc, the peak."""
    return _status_bytes("VmRSS") or peak_rss_bytes()


def peak_rss_bytes() -> int:
    """The peak. Not getrusage's where it can be helped: that one is inherited from the parent process."""
    return _status_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_peak_rss() -> None:
    """Let the peak begin at what is resident now (Linux; elsewhere nothing happens)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")

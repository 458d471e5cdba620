"""tests/server_env needs torch and sglang: it is collected in the server environment alone."""

import fcntl
import importlib.util
import os
from collections.abc import Iterator
from typing import IO

import pytest

collect_ignore = [] if importlib.util.find_spec("torch") else ["server_env"]

# A developer's own ledger must neither be read nor grow by a test.
os.environ.pop("EQUIPOISE_LEDGER", None)
os.environ.pop("GITHUB_STEP_SUMMARY", None)  # nor may a CI step's page


_lock: list[IO[bytes]] = []  # held while this process is in a file that starts servers


@pytest.hookimpl(hookwrapper=True, tryfirst=True)  # outside of a test's own time limit
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Of several workers (pytest-xdist) one at a time runs a file that starts servers: memory is for one."""
    if item.get_closest_marker("server") and not _lock:
        path = item.config.rootpath / ".pytest_cache" / "servers.lock"
        path.parent.mkdir(exist_ok=True)
        _lock.append(path.open("wb"))
        fcntl.flock(_lock[0], fcntl.LOCK_EX)
    yield
    if _lock and (nextitem is None or nextitem.path != item.path):
        _lock.pop().close()

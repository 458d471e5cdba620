"""tests/server_env needs torch and sglang: it is collected in the server environment alone."""

import importlib.util
import os
from collections.abc import Sequence

import pytest

collect_ignore = [] if importlib.util.find_spec("torch") else ["server_env"]

# A developer's own ledger must neither be read nor grow by a test.
os.environ.pop("EQUIPOISE_LEDGER", None)
os.environ.pop("GITHUB_STEP_SUMMARY", None)  # nor may a CI step's page


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Several workers (pytest-xdist): a file's tests go to one, and all that start servers to the same one.

    Servers of several tests at a time would not fit the memory.
    """
    for item in items:
        group = "servers" if item.get_closest_marker("server") else item.location[0]
        item.add_marker(pytest.mark.xdist_group(group))

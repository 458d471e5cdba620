"""tests/server_env needs torch and sglang: it is collected in the server environment alone."""

import importlib.util
import os

collect_ignore = [] if importlib.util.find_spec("torch") else ["server_env"]

# A developer's own ledger must neither be read nor grow by a test.
os.environ.pop("EQUIPOISE_LEDGER", None)
os.environ.pop("GITHUB_STEP_SUMMARY", None)  # nor may a CI step's page

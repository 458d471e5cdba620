"""tests/server_env needs torch and sglang: it is collected in the server environment alone."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("torch") else ["server_env"]

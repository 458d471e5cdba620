"""Logs of lm-eval and inspect, made by running them once a session, without a network."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def _run_tool(script: str, directory: Path) -> Path:
    home = directory.parent / "home"
    environment = os.environ | {
        "HOME": str(home),
        "XDG_DATA_HOME": str(home / "data"),
        "HF_HOME": str(home / "hf"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-P", str(HERE / script), str(directory)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return directory


@pytest.fixture(scope="session")
def lm_eval_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("lm_eval") is None:
        pytest.skip("lm-eval is not installed: pip install -e '.[dev]'")
    return _run_tool("run_lm_eval.py", tmp_path_factory.mktemp("lm_eval") / "logs")


@pytest.fixture(scope="session")
def inspect_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("inspect_ai") is None:
        pytest.skip("inspect-ai is not installed: pip install -e '.[dev]'")
    return _run_tool("run_inspect.py", tmp_path_factory.mktemp("inspect") / "logs")


@pytest.fixture(scope="session")
def sgl_eval_logs() -> Path:
    """Made once by make_sgl_eval_logs.py, since sgl-eval cannot live in this environment."""
    return HERE / "logs" / "sgl_eval"

"""``equipoise quant calibrate`` without torch: its help, and what to install."""

from importlib.util import find_spec

import pytest
from cli_runs import cli


def test_help_needs_no_torch() -> None:
    result = cli("quant", "calibrate", "--help")
    assert result.exit_code == 0
    assert "--granularity" in result.stdout


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed here")
def test_without_torch_it_says_what_to_install() -> None:
    result = cli("quant", "calibrate", "embedded:glm_tiny", "--data", "prompts.txt")
    assert result.exit_code == 2
    assert "equipoise[quant]" in result.stderr

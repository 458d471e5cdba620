"""Ports that SGLang picks for itself are never those that a server is told to listen on."""

import inspect

from equipoise.evals.backends.server_resources import PORT_RANGE


def test_the_port_range_is_clear_of_the_one_that_sglang_draws_from() -> None:
    from sglang.srt.utils.network import get_free_port_below_ephemeral

    drawn = inspect.signature(get_free_port_below_ephemeral).parameters
    low, high = drawn["low"].default, drawn["high"].default
    assert (low, high) == (22000, 29999)
    assert PORT_RANGE[1] <= low or PORT_RANGE[0] > high

"""The named production arms: explained without a problem, with the layout and capacity that they state."""

import pytest

from equipoise.quant.explain import explain
from equipoise.quant.geometry import BUILTIN
from equipoise.quant.production import PRODUCTION_ARMS
from equipoise.quant.production_launch import production_launch

LAUNCHES = [(name, gpu) for name, arm in PRODUCTION_ARMS.items() for gpu in arm.gpus if not arm.refused]


@pytest.mark.parametrize(("name", "gpu"), LAUNCHES)
def test_production_arm_is_clean_and_as_stated(name: str, gpu: str) -> None:
    launch = production_launch(PRODUCTION_ARMS[name], gpu)
    model = launch.arm.release.hub.rpartition("/")[2].lower()
    known = model in BUILTIN
    answer = explain(model if known else launch.arm.model.name, launch.argv[3:], gpu)
    assert answer.layout == launch.layout
    # Releases that are not built in have weights of another format than the model's own: other sizes.
    assert [f for f in answer.problems if known or f.rule != "capacity"] == []
    if known:
        assert answer.capacity_tokens == launch.capacity.tokens

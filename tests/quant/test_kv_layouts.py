"""Which layout fits which model, told before anything is started."""

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from equipoise.evals.errors import CheckpointError
from equipoise.quant.kv_layouts import HEAD_AMAX_FILE, KV_LAYOUT_KINDS, cache_attention_of, misfit, unservable
from equipoise.quant.variants import KV_VARIANTS

EMBEDDED = Path(str(files("equipoise.tasks") / "embedded"))


@pytest.mark.parametrize(
    ("config", "attention"),
    [
        ({"kv_lora_rank": 512}, "mla"),
        ({"text_config": {"kv_lora_rank": 512}}, "mla"),
        ({"num_key_value_heads": 8}, "gqa"),
        ({"kv_lora_rank": None}, "gqa"),
    ],
)
def test_attention_is_told_from_the_config(config: dict[str, Any], attention: str) -> None:
    assert cache_attention_of(config) == attention


@pytest.mark.parametrize("name", KV_LAYOUT_KINDS)
def test_a_layout_fits_one_kind_of_attention_and_names_variants_for_the_other(name: str) -> None:
    kind = KV_LAYOUT_KINDS[name]
    assert misfit(name, kind.attention) == ""
    reason = misfit(name, "gqa" if kind.attention == "mla" else "mla")
    named = [v for v in KV_VARIANTS.values() if v.name in reason.split("choose")[1]]
    assert "fp8_e4m3" in {v.name for v in named}
    offered = {KV_LAYOUT_KINDS[v.layout].attention for v in named if v.layout}
    assert offered == {"gqa", "mla"} - {kind.attention}


@pytest.mark.parametrize(
    ("model", "layouts"),
    [("kimi_tiny", {"ds656", "ds656_pow2"}), ("glm_tiny", {"fp8_per_head", "fp8_per_token_head"})],
)
def test_the_embedded_models_can_be_served_in_every_layout_that_fits_them(
    model: str, layouts: set[str]
) -> None:
    assert {n for n in KV_LAYOUT_KINDS if not unservable(n, str(EMBEDDED / model))} == layouts


def test_a_missing_calibration_is_told_with_what_needs_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_key_value_heads": 2}))
    reason = unservable("fp8_per_head", str(tmp_path))
    assert HEAD_AMAX_FILE in reason
    assert "fp8_per_token_head, which needs no calibration" in reason
    (tmp_path / HEAD_AMAX_FILE).write_text("{}")
    assert unservable("fp8_per_head", str(tmp_path)) == ""
    assert unservable("fp8_per_token_head", str(tmp_path)) == ""


def test_a_hub_id_is_left_to_the_server_and_a_broken_config_is_named(tmp_path: Path) -> None:
    assert unservable("ds656", "org/name-that-is-no-folder") == ""
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        unservable("ds656", str(tmp_path))


def test_telling_needs_no_torch() -> None:
    code = "import sys, equipoise.quant.kv_layouts; print({'torch', 'sglang'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

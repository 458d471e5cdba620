"""Capacity: weights by component, published pool sizes, and what data-parallel attention changes."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_runs import cli
from hypothesis import given
from hypothesis import strategies as st

from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.capacity import NOT_MODELLED, Capacity, Deployment, capacity_of, tokens_in
from equipoise.quant.checkpoint import Checkpoint
from equipoise.quant.geometry import BUILTIN, load_geometry
from equipoise.quant.gpus import GPUS, find_gpu
from equipoise.quant.weights_size import WEIGHT_FORMATS, checkpoint_components, weight_components

EMBEDDED = Path(__file__).parents[2] / "tasks" / "embedded"
H200 = GPUS["H200"]


def total(model: str, weights: str | None = None, *, all_layers: bool = False) -> int:
    found = weight_components(BUILTIN[model], weights)
    return sum(c.num_bytes for c in found if c.loaded or all_layers)


def capacity(model: str, layout: str, weights: str | None = None, **deployment: Any) -> Capacity:
    given = {"gpu": H200, "tp": 8} | deployment
    return capacity_of(
        BUILTIN[model], weight_components(BUILTIN[model], weights), Deployment(**given), layout
    )


# Parameters that the hubs' safetensors badges state, in thousand millions; MTP layers included.
@pytest.mark.parametrize(
    ("model", "billions"),
    [("kimi-k2", 1026), ("glm-4.5", 358), ("glm-4.5-air", 110), ("glm-4.7-flash", 31), ("glm-5", 754)],
)
def test_parameters_add_up_to_the_published_number(model: str, billions: int) -> None:
    assert total(model, "bf16", all_layers=True) / 2e9 == pytest.approx(billions, rel=0.02)


def test_smollm2_has_its_135_million_parameters() -> None:
    assert total("smollm2-135m") / 2 == pytest.approx(134_515_008, rel=1e-3)  # norms are not counted


def test_kimi_k26_is_570_gb_of_int4_experts_and_24_gb_of_the_rest() -> None:
    found = weight_components(BUILTIN["kimi-k2.6"])
    experts = sum(c.num_bytes for c in found if c.name == "routed experts")
    rest = sum(c.num_bytes for c in found if c.name != "routed experts")
    assert experts == 60 * 384 * 3 * 7168 * 2048 * 9 // 16  # 4 bits, and 16 for 32
    assert (round(experts / 1e9, 1), round(rest / 1e9, 1)) == (570.8, 24.2)
    assert round((experts + rest) / 1e9, 1) == 595.0


def test_fp8_blocks_have_ceil_shaped_scales() -> None:
    odd = replace(
        BUILTIN["smollm2-135m"], hidden_size=130, intermediate_size=100, num_layers=1, dense_layers=1
    )
    found = {c.name: c.num_bytes for c in weight_components(odd, "fp8-block")}
    assert found["dense MLP"] == 3 * (100 * 130 + 4 * 1 * 2)
    assert found["embedding"] == 2 * 49_152 * 130  # kept


@pytest.mark.parametrize("model", ["glm-4.6", "glm-5", "kimi-k2", "glm-4.7-flash"])
def test_formats_order_by_their_bits_and_scales(model: str) -> None:
    order = ("mxfp4", "nvfp4", "fp8-block", "fp8-channel", "mxfp8", "bf16")
    sizes = [total(model, f) for f in order]
    assert sizes == sorted(sizes)
    # Experts dominate: 4.25 bits of MXFP4 and 4.5 of NVFP4 against 16.
    assert sizes[0] / sizes[-1] == pytest.approx(4.25 / 16, rel=0.1)
    assert sizes[1] / sizes[-1] == pytest.approx(4.5 / 16, rel=0.1)
    assert set(order) | {"int4-g32"} == set(WEIGHT_FORMATS)


@pytest.mark.parametrize(("layout", "tokens"), [("bf16", 685_137), ("fp8_flat", 1_370_275)])
def test_kimi_k26_on_eight_h200_holds_the_published_tokens(layout: str, tokens: int) -> None:
    found = capacity("kimi-k2.6", layout, static_fraction=0.83)
    assert (found.tokens, H200.memory_mib) == (tokens, 143_771)
    published = {"bf16": 686_000, "fp8_flat": 1_370_000}[layout]
    assert found.tokens == pytest.approx(published, rel=0.002)


def test_46_80_gib_hold_the_published_tokens_of_kimi_k2_thinking() -> None:
    assert tokens_in(int(46.80 * 2**30), 70_272, page_size=64) == 715_072


def test_grouped_heads_share_the_pool_over_gpus() -> None:
    found = capacity("glm-4.6", "bf16")
    assert (found.bytes_per_token, found.bytes_per_token_per_gpu) == (376_832, 47_104)
    assert found.tokens == found.pool_bytes_per_gpu // 47_104
    more = capacity("glm-4.6", "bf16", tp=16)
    assert more.bytes_per_token_per_gpu == 47_104  # heads are repeated


def test_weights_of_kv_heads_are_repeated_like_the_heads() -> None:
    keys = [c for c in weight_components(BUILTIN["glm-4.6"]) if c.split == "kv_heads" and c.loaded]
    (component,) = keys
    assert component.num_bytes == 92 * 2 * 8 * 128 * 5120 * 2  # K and V of eight heads
    sizes = [component.bytes_per_gpu(tp=n, attention_tp=n, kv_heads=8) for n in (1, 4, 8, 16)]
    assert sizes == [component.num_bytes // n for n in (1, 4, 8, 8)]


def test_data_parallel_attention_multiplies_the_pools_of_a_latent_and_repeats_weights() -> None:
    plain, split = capacity("kimi-k2.6", "bf16"), capacity("kimi-k2.6", "bf16", dp=8)
    assert split.weight_bytes == plain.weight_bytes
    attention = sum(c.num_bytes for c in weight_components(BUILTIN["kimi-k2.6"]) if c.split == "attention")
    repeated = split.weight_bytes_per_gpu - plain.weight_bytes_per_gpu
    assert repeated == pytest.approx(attention * 7 / 8, abs=16)
    assert split.tokens == 8 * split.tokens_per_group
    assert split.tokens > 6 * plain.tokens


def test_mtp_layers_are_not_loaded() -> None:
    (mtp,) = {c.name for c in weight_components(BUILTIN["glm-4.6"]) if not c.loaded}
    assert mtp == "MTP"
    without = replace(BUILTIN["glm-4.6"], num_mtp_layers=0)
    assert capacity("glm-4.6", "bf16").weight_bytes == sum(c.num_bytes for c in weight_components(without))


def test_weights_that_do_not_fit_leave_no_tokens() -> None:
    found = capacity("glm-4.6", "bf16", tp=1, gpu=GPUS["H100"])
    assert not found.weights_fit and found.pool_bytes_per_gpu < 0
    assert (found.tokens, found.requests_at(1024), found.longest_context(1)) == (0, 0, 0)


def test_gpus_that_cannot_divide_the_model_are_refused() -> None:
    with pytest.raises(UsageError, match="64 attention heads, which 7 GPUs"):
        capacity("kimi-k2.6", "bf16", tp=7)
    with pytest.raises(UsageError, match="experts of width 1408"):
        capacity("glm-4.5-air", "bf16", tp=96)
    with pytest.raises(UsageError, match="8 GPUs cannot form 3"):
        capacity("kimi-k2.6", "bf16", dp=3)


@given(
    context=st.integers(1, 262_144),
    dp=st.sampled_from([1, 2, 4, 8]),
    page=st.sampled_from([1, 64]),
    concurrency=st.integers(1, 500),
)
def test_requests_that_fit_fit_and_one_more_does_not(
    context: int, dp: int, page: int, concurrency: int
) -> None:
    found = capacity("kimi-k2.6", "fp8_flat", dp=dp, page_size=page)
    pages = -(-context // page)
    each = found.requests_at(context) // dp
    assert each * pages * page <= found.tokens_per_group < (each + 1) * pages * page
    longest = found.longest_context(concurrency)
    assert found.requests_at(longest) >= concurrency
    if longest < found.geometry.max_position:
        assert found.requests_at(longest + page) < concurrency


@pytest.mark.parametrize("name", ["kimi_tiny", "glm_tiny"])
def test_headers_and_geometry_agree_on_matrices(name: str) -> None:
    found = load_geometry(EMBEDDED / name)
    read = checkpoint_components(Checkpoint.open(EMBEDDED / name), found)
    computed = weight_components(found)
    for component in ("routed experts", "shared experts", "dense MLP", "embedding", "lm_head"):
        assert [c.num_bytes for c in read if c.name == component] == [
            c.num_bytes for c in computed if c.name == component
        ]
    assert sum(c.num_bytes for c in read) == Checkpoint.open(EMBEDDED / name).weight_bytes
    assert sum(c.num_bytes for c in read) == pytest.approx(sum(c.num_bytes for c in computed), rel=0.005)


def write_checkpoint(folder: Path, config: dict[str, Any], tensors: dict[str, int]) -> Checkpoint:
    """A checkpoint whose tensors are zero bytes of dtype U8."""
    header, end = {}, 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(end))
    (folder / "config.json").write_text(json.dumps(config))
    return Checkpoint.open(folder)


@pytest.fixture
def tiny() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((EMBEDDED / "glm_tiny" / "config.json").read_text())
    return found | {"num_hidden_layers": 1}


def layer(index: int) -> dict[str, int]:
    return {f"model.layers.{index}.self_attn.{p}_proj.weight": 8 for p in "qkvo"}


def test_a_config_that_contradicts_its_tensors_is_refused(tmp_path: Path, tiny: dict[str, Any]) -> None:
    more = write_checkpoint(tmp_path, tiny, layer(0) | layer(1))
    with pytest.raises(CheckpointError, match="1 layers and 0 MTP layers, but there are tensors of layer 1"):
        checkpoint_components(more, load_geometry(tmp_path))
    less = write_checkpoint(tmp_path, tiny | {"num_hidden_layers": 2}, layer(0))
    with pytest.raises(CheckpointError, match="num_hidden_layers 2, but layer 1 has no tensors"):
        checkpoint_components(less, load_geometry(tmp_path))


def test_tensors_of_mtp_layers_are_not_loaded_and_unknown_ones_are_whole_everywhere(
    tmp_path: Path, tiny: dict[str, Any]
) -> None:
    tensors = layer(0) | layer(1) | {"model.layers.0.input_layernorm.weight": 5, "novel.weight": 7}
    checkpoint = write_checkpoint(tmp_path, tiny | {"num_nextn_predict_layers": 1}, tensors)
    found = checkpoint_components(checkpoint, load_geometry(tmp_path))
    sizes = {(c.name, c.split, c.loaded): c.num_bytes for c in found}
    assert sizes["other", "none", True] == 12
    assert sum(size for (name, _, loaded), size in sizes.items() if name == "MTP" and not loaded) == 32
    per_gpu = sum(c.bytes_per_gpu(tp=2, attention_tp=2, kv_heads=2) for c in found)
    assert per_gpu == 12 + 16  # half of 32


def test_a_gpu_is_found_by_name_or_memory() -> None:
    assert find_gpu("h200") is H200
    assert find_gpu("24576").memory_bytes == 24 * 2**30
    for name in ("H900", "-5", "0", "9" * 30, "²"):
        with pytest.raises(UsageError, match="no GPU"):
            find_gpu(name)


def run(*args: str) -> dict[str, Any]:
    result = cli("quant", "capacity", *args, "--json")
    assert result.exit_code == 0, result.stderr
    return dict(json.loads(result.stdout))


def test_capacity_on_the_command_line_gives_the_published_values() -> None:
    kimi = ("kimi-k2.6", "--gpu", "H200", "--tp", "8", "--static-fraction", ".83")
    bf16, fp8 = run(*kimi, "--kv-dtype", "bf16"), run(*kimi, "--kv-dtype", "fp8_e4m3")
    assert (bf16["bytes_per_token"], bf16["tokens"]) == (70_272, 685_137)
    assert (fp8["bytes_per_token"], fp8["tokens"]) == (35_136, 1_370_275)
    assert round(bf16["weight_bytes"] / 1e9, 1) == 595.0
    assert bf16["not_modelled"] == list(NOT_MODELLED)
    assert run(*kimi) == bf16
    assert run("moonshotai/Kimi-K2.6") == bf16  # the defaults


def test_capacity_says_whether_a_concurrency_fits() -> None:
    found = run("glm-4.6", "--context", "16384", "--concurrency", "64")
    assert (found["requests"], found["fits"]) == (47, False)
    assert 47 * 16384 <= found["tokens"] < 48 * 16384
    assert run("glm-4.6", "--context", "16384", "--concurrency", "47")["fits"] is True


def test_capacity_of_a_folder_counts_its_files() -> None:
    found = run("embedded:glm_tiny", "--tp", "1", "--gpu", "100")
    checkpoint = Checkpoint.open(EMBEDDED / "glm_tiny")
    assert (found["weight_bytes"], found["weights_counted_from"]) == (checkpoint.weight_bytes, "headers")
    assert found["bytes_per_token"] == 1536
    assert run("embedded:glm_tiny", "--tp", "1", "--weights", "bf16")["weights_counted_from"] == "geometry"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nothing",), "no built-in geometry 'nothing'"),
        (("kimi-k2.6", "--gpu", "H900"), "no GPU 'H900'"),
        (("kimi-k2.6", "--tp", "0"), "0 is out of range"),
        (("kimi-k2.6", "--static-fraction", "1"), "out of range"),
        (("kimi-k2.6", "--static-fraction", "nan"), "out of range"),
        (("kimi-k2.6", "--kv-dtype", "auto"), "depends on the checkpoint"),
        (("kimi-k2.6", "--kv-dtype", "int8"), "KV dtype 'int8'"),
        (("kimi-k2.6", "--layout", "ds656"), "does not store --kv-dtype bf16"),
        (("kimi-k2.6", "--dp-size", "2"), "add it"),
        (("kimi-k2.6", "--context", "300000"), "262,144 positions"),
        (("embedded:none",), "no embedded model"),
    ],
)
def test_capacity_refuses_what_cannot_be(args: tuple[str, ...], message: str) -> None:
    result = cli("quant", "capacity", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("capacity", "kimi-k2.6"),
        ("capacity", "glm-5.2", "--tp", "16", "--dp-attention", "--kv-dtype", "fp8_e4m3"),
        ("capacity", "glm-4.6", "--context", "32768", "--concurrency", "64"),
        ("capacity", "glm-4.6", "--tp", "1"),
        *(("geometry", model) for model in BUILTIN),
    ],
)
def test_output_fits_80_columns_and_is_plain_when_piped(args: tuple[str, ...]) -> None:
    result = cli("quant", *args)
    assert result.exit_code == 0, result.stderr
    assert "\x1b" not in result.stdout
    lines = [line for line in result.stdout.splitlines() if not line.startswith("Source: ")]
    assert max(map(len, lines)) <= 80


def test_capacity_prints_the_fitted_number_and_what_is_not_modelled() -> None:
    text = " ".join(cli("quant", "capacity", "kimi-k2.6").stdout.split())
    assert "685,137" in text and "570.8 GB + bf16 rest 24.2 GB" in text
    assert "fitted to the published capacity of Kimi K2.6" in text
    assert all(part in text for part in NOT_MODELLED)
    assert "do not fit" in cli("quant", "capacity", "glm-4.6", "--tp", "1").stdout


def test_geometry_prints_dimensions_and_bytes_for_each_layout() -> None:
    result = cli("quant", "geometry", "glm-5.2", "--json")
    found = json.loads(result.stdout)
    assert (found["attention"], found["num_layers"], len(found["index_layers"])) == ("dsa", 78, 21)
    assert {name: x["bytes_per_token"] for name, x in found["layouts"].items()} == {
        "bf16": 92_628,
        "fp8_flat": 47_700,
        "ds656": 53_940,
    }
    text = cli("quant", "geometry", "glm-5.2").stdout
    assert "92,628" in text and "78 x 656 latent and RoPE key + 21 x 132 indexer key" in text


def test_the_help_of_the_group_imports_no_subcommand() -> None:
    result = cli("quant", "--help")
    assert result.exit_code == 0
    assert "capacity" in result.stdout and "geometry" in result.stdout

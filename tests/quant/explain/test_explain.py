"""What a clean launch will do: resolution, scales, capacity, words and JSON."""

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest
from small_checkpoints import KIMI, LLAMA, SCHEME, Write, compressed_tensors, scales

from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.quant.explain import RULES, explain, find_hardware, hardware_of_gpu
from equipoise.quant.explain.model import layer_ranges
from equipoise.quant.explain.text import as_text
from equipoise.quant.geometry import BUILTIN
from equipoise.quant.variants import KV_VARIANTS, ServeOptions, build_launch_command

E4M3, BF16 = "--kv-cache-dtype=fp8_e4m3", "--kv-cache-dtype=bf16"
CT = compressed_tensors()
EMBEDDED = Path(str(files("equipoise.tasks.embedded")))


@pytest.mark.parametrize("model", ["kimi-k2.6", "glm-4.6", "glm-4.6-fp8", "glm-5.1-fp8", "kimi-k2-thinking"])
@pytest.mark.parametrize("hardware", ["H200", "B200"])
@pytest.mark.parametrize("dtype", [E4M3, BF16])
def test_clean_production_launches_have_no_problem(model: str, hardware: str, dtype: str) -> None:
    assert explain(model, ["--tp=8", dtype], hardware).problems == ()


@pytest.mark.parametrize("model", ["kimi_tiny", "glm_tiny"])
@pytest.mark.parametrize("variant", [v for v in KV_VARIANTS.values()], ids=lambda v: v.name)
def test_no_variant_of_an_embedded_model_is_falsely_accused(model: str, variant: object) -> None:
    launch = build_launch_command(
        str(EMBEDDED / model), variant, port=4321, device="cpu", python="python",  # type: ignore[arg-type]
        options=ServeOptions(served_model_name=model, max_total_tokens=4096),
    )  # fmt: skip
    answer = explain(EMBEDDED / model, launch.argv[3:], "cpu")
    fits = not any(f.rule == "cpu-layout" for f in answer.problems)
    assert [f for f in answer.problems if fits] == []
    assert (answer.capacity_tokens, answer.capacity_note) == (4096, "--max-total-tokens")


def test_defaults_by_hardware() -> None:
    def used(model: str, hardware: str, *words: str) -> tuple[str, str, str, str, int]:
        a = explain(model, ["--tp=8", *words], hardware)
        return a.kv_cache_dtype, a.layout, a.prefill_backend, a.decode_backend, a.page_size

    assert used("kimi-k2.6", "H200", E4M3) == ("fp8_e4m3", "fp8_flat", "fa3", "fa3", 1)
    assert used("kimi-k2.6", "B200", E4M3) == ("fp8_e4m3", "fp8_flat", "trtllm_mla", "trtllm_mla", 64)
    assert used("glm-4.7-flash", "B200") == ("bf16", "bf16", "flashinfer", "flashinfer", 1)
    assert used("glm-4.6", "H200", E4M3) == ("fp8_e4m3", "fp8_flat", "fa3", "fa3", 1)
    assert used("glm-4.6", "B200", E4M3) == ("fp8_e4m3", "fp8_flat", "trtllm_mha", "trtllm_mha", 64)
    kv = ("dsa (flashmla_kv)",) * 2
    assert used("glm-5", "H200", E4M3) == ("fp8_e4m3", "ds656", *kv, 64)
    # auto is not BF16 for DSA models on Blackwell, and its layout is not the one of Hopper.
    assert used("glm-5", "B200") == ("fp8_e4m3", "fp8_flat", "dsa (trtllm)", "dsa (trtllm)", 64)
    assert used("glm-5", "H200") == ("bf16", "bf16", "dsa (flashmla_sparse)", "dsa (fa3)", 64)


def test_auto_follows_the_checkpoint(write: Write) -> None:
    assert explain(write(LLAMA), [], "H200").kv_cache_dtype == "bf16"
    assert explain(write(LLAMA | {"torch_dtype": "float16"}), [], "H200").kv_cache_dtype == "float16"
    assert explain(write(LLAMA | {"torch_dtype": "float32"}), [], "H200").kv_cache_dtype == "float16"
    declared = explain(write(LLAMA | CT, scales()), [], "H200")
    assert (declared.kv_cache_dtype, declared.kv_cache_word) == ("fp8_e4m3", "fp8_e4m3")
    nested = {
        "model_type": "kimi_k25",
        "architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": KIMI | CT,
    }
    assert explain(write(nested, scales(k=1.0, v=1.0)), [], "H200").kv_cache_dtype == "fp8_e4m3"
    modelopt = {
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": SCHEME}
    }
    assert explain(write(LLAMA | modelopt, scales()), [], "H200").problems == ()


def test_loaded_scales_are_told_with_their_names_values_and_use(write: Write) -> None:
    mixed = scales(k=0.25, v=0.5) | {"model.layers.2.self_attn.k_proj.k_scale": 0.75}
    answer = explain(write(LLAMA | CT, mixed), [E4M3], "H200")
    assert answer.problems == ()
    (row,) = answer.scales
    assert row.layers == (0, 1, 2)
    assert row.k_source == "checkpoint model.layers.N.self_attn.k_proj.k_scale"
    assert (row.k, row.v) == ((0.25, 0.75), (0.5, 0.5))
    assert (row.on_write, row.on_read) == (True, True)


def test_unit_scales_of_an_mla_model_are_no_problem(write: Write) -> None:
    for hardware in ("H200", "B200", "cpu"):
        assert explain(write(KIMI | CT, scales(k=1.0, v=1.0)), [E4M3], hardware).problems == ()


def test_mla_scheme_without_tensors_is_no_problem_where_fp8_is_asked_for(write: Write) -> None:
    answer = explain(write(KIMI | CT), [E4M3], "H200")
    assert answer.problems == ()
    assert "scale-initial" in [f.rule for f in answer.notes]


def test_fp8_scales_do_not_matter_to_a_bf16_cache_that_does_not_read_them(write: Write) -> None:
    assert explain(write(LLAMA | CT, scales()), [BF16], "H200").problems == ()


def test_a_config_alone_is_explained_as_far_as_it_goes(write: Write) -> None:
    folder = write(LLAMA | CT)
    (folder / "model.safetensors").unlink()
    answer = explain(folder / "config.json", [], "H200")
    assert (answer.kv_cache_dtype, answer.problems) == ("fp8_e4m3", ())
    assert answer.scales[0].k_source == "not known"
    assert explain(folder, [], "H200").scales == answer.scales


def test_capacity_is_that_of_the_resolved_layout() -> None:
    assert explain("kimi-k2.6", ["--tp=8", BF16], "H200").capacity_tokens == 685_137
    assert explain("kimi-k2.6", ["--tp=8", E4M3], "H200").capacity_tokens == 1_370_275
    limited = explain("kimi-k2.6", ["--tp=8", E4M3, "--max-total-tokens=1000"], "H200")
    assert (limited.capacity_tokens, limited.bytes_per_token) == (1000, 35_136)
    assert explain("glm-5", ["--tp=8", E4M3], "H200").bytes_per_token == 61_464


def test_the_blind_spot_of_prefill_is_told() -> None:
    def notes(model: str, *words: str) -> set[str]:
        return {f.rule for f in explain(model, ["--tp=8", E4M3, *words], "H200").notes}

    assert "prefill-graph" in notes("kimi-k2.6")
    assert "prefill-fresh" in notes("kimi-k2.6", "--disable-cuda-graph")
    assert "prefill-graph-off" in notes("kimi-k2.6", "--disaggregation-mode=decode")
    assert not {"prefill-graph", "prefill-fresh"} & notes("glm-4.6")
    assert "gqa-prefill-fresh" in notes("glm-4.6", "--attention-backend=triton")
    assert "logprob-start" in notes("glm-4.6")


def test_mtp_layers_are_explained_where_they_draft() -> None:
    words = ["--tp=8", E4M3, "--speculative-algorithm=EAGLE", "--speculative-eagle-topk=1"]
    answer = explain("glm-4.6", words, "H200")
    assert [(layer_ranges(r.layers), r.role) for r in answer.scales] == [("0-91", "target"), ("92", "draft")]
    assert "draft-glm4-moe" in [f.rule for f in answer.notes]
    assert len(explain("glm-4.6", words[:2], "H200").scales) == 1


@pytest.mark.parametrize("model", BUILTIN)
@pytest.mark.parametrize("hardware", ["H200", "B200", "cpu"])
def test_every_model_is_explained_everywhere_within_80_columns(model: str, hardware: str) -> None:
    for dtype in ("auto", "bf16", "bfloat16", "fp8_e4m3", "fp8_e5m2", "mxfp8", "nvfp4"):
        within_80_columns(
            model, [f"--kv-cache-dtype={dtype}", "--tp=8", "--speculative-algorithm=EAGLE"], hardware
        )


def within_80_columns(model: str, words: list[str], hardware: str) -> None:
    answer = explain(model, words, hardware)
    text = as_text(answer, with_rules=True)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert ("PROBLEMS" in text) == bool(answer.problems)
    said = json.loads(json.dumps(answer.as_json(), allow_nan=False))
    assert said["exit_code"] == answer.exit_code
    assert {r["id"] for r in said["rules"]} <= set(RULES)
    cited = {f.rule for f in answer.findings} | {
        r for row in (*answer.rows, *answer.scales) for r in row.rules
    }
    assert cited == {r.id for r in answer.rules}


def test_json_stays_json_with_scales_that_are_not_finite(write: Write) -> None:
    answer = explain(write(LLAMA | CT, scales(k=float("inf"))), [E4M3], "H200")
    json.loads(json.dumps(answer.as_json(), allow_nan=False))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kv-cache-dtype=fp8"], "fp8"),
        (["--kv-cache-dty=fp8_e4m3"], "write it in full"),
        (["--page-size=much"], "page-size"),
        (["--tp=0"], "tp-size"),
        (["--hicache-storage-backend-extra-config={"], "not JSON"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(words: list[str], said: str, write: Write) -> None:
    with pytest.raises(UsageError, match=said):
        explain(
            write(LLAMA), ["--enable-hierarchical-cache", "--hicache-storage-backend=file", *words], "H200"
        )


def test_arguments_that_do_not_bear_on_the_cache_are_left_alone(write: Write) -> None:
    words = ["--host", "0.0.0.0", "--port=30000", "--log-level", "info", "--trust-remote-code", E4M3]
    answer = explain(write(LLAMA), [*words, "--api-key", "secret"], "H200")
    assert answer.kv_cache_dtype == "fp8_e4m3"
    assert answer.unread == ("--host", "--port", "--log-level", "--trust-remote-code", "--api-key")
    assert "secret" not in json.dumps(answer.as_json()) + as_text(answer)


def test_unknown_models_hardware_and_damaged_checkpoints_are_refused(write: Write) -> None:
    with pytest.raises(UsageError, match="no built-in"):
        explain("kimi-k9", [], "H200")
    with pytest.raises(UsageError, match="hardware"):
        find_hardware("A100")
    folder = write(LLAMA)
    (folder / "model.safetensors").write_bytes(b"\0" * 4)
    with pytest.raises(CheckpointError):
        explain(folder, [], "H200")


def test_unknown_model_class_is_told_and_not_guessed(write: Write) -> None:
    answer = explain(write(LLAMA | CT | {"architectures": ["NewForCausalLM"]}, scales()), [E4M3], "H200")
    assert answer.problems == ()
    assert answer.scales[0].k_source == "not known"
    assert any("NewForCausalLM" in f.message for f in answer.notes)


def test_hardware_is_known_by_the_name_that_the_driver_prints() -> None:
    for name, hardware in (
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA B200", "B200"),
    ):
        found = hardware_of_gpu(name)
        assert found is not None
        assert found.name == hardware
    assert hardware_of_gpu("NVIDIA A100-SXM4-80GB") is None


def test_layers_are_told_as_ranges() -> None:
    assert layer_ranges((0, 1, 2, 5, 7, 8)) == "0-2, 5, 7-8"
    assert layer_ranges((4,)) == "4"
    assert layer_ranges(()) == ""


def over(**keys: object) -> str:
    return f"--json-model-override-args={json.dumps(keys)}"


def test_an_override_is_laid_over_the_config_before_the_rules_run(write: Write) -> None:
    plain = write(LLAMA)
    fewer = explain(plain, [over(num_hidden_layers=2, no_such_key=1)], "H200")
    assert fewer.bytes_per_token * 3 == explain(plain, [], "H200").bytes_per_token * 2
    assert explain(EMBEDDED / "glm_tiny", [over(num_hidden_layers=2)], "H200").capacity_tokens
    (note,) = (f for f in fewer.notes if f.rule == "config-override")
    assert note.message.endswith("num_hidden_layers 3 -> 2, no_such_key (not in config.json) 1")
    # A declared KV scheme turns auto into FP8, and its scales are loaded; without it they are not.
    declared = explain(write(LLAMA, scales()), [over(**CT)], "H200")
    assert (declared.kv_cache_dtype, declared.problems) == ("fp8_e4m3", ())
    assert declared.scales[0].k == (0.5, 0.5)
    undeclared = explain(write(LLAMA | CT, scales()), [over(quantization_config=None)], "H200")
    assert undeclared.kv_cache_dtype == "bf16"
    other = explain(write(LLAMA), [over(architectures=["Qwen3ForCausalLM"], model_type="qwen3")], "H200")
    assert other.architecture == "Qwen3ForCausalLM"


def test_what_kimi_k2_5_says_inside_text_config_is_read_before_the_override(write: Write) -> None:
    nested = {
        "model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": KIMI | CT, "vision_config": {},
    }  # fmt: skip
    late = explain(write(nested), [over(text_config={"quantization_config": None})], "H200")
    assert late.kv_cache_dtype == "fp8_e4m3"
    top = explain(write(nested), [over(text_config={"num_mtp_layers": 1}, quantization_config={})], "H200")
    assert top.kv_cache_dtype == "bf16"
    (note,) = (f for f in top.notes if f.rule == "config-override")
    assert "text_config.num_nextn_predict_layers (not in config.json) 1" in note.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "is a JSON array, not an object"),
        ("3", "is a JSON number, not an object"),
        ("null", "is a JSON null, not an object"),
    ],
)
def test_an_override_that_is_no_json_object_is_refused(write: Write, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--json-model-override-args {said}")):
        explain(write(LLAMA), [f"--json-model-override-args={text}"], "H200")


def test_an_override_that_contradicts_the_config_is_named_as_the_cause(write: Write) -> None:
    with pytest.raises(
        CheckpointError, match=r"with --json-model-override-args over it.*num_key_value_heads"
    ):
        explain(write(LLAMA), [over(num_key_value_heads=3)], "H200")


def test_an_override_of_a_built_in_model_is_said_to_be_left_out() -> None:
    answer = explain("kimi-k2.6", ["--tp=8", over(num_hidden_layers=2)], "H200")
    assert answer.bytes_per_token == explain("kimi-k2.6", ["--tp=8"], "H200").bytes_per_token
    assert any(f.rule == "config-override" and "built-in" in f.message for f in answer.notes)

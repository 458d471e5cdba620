"""Misconfigurations planted one by one: each is found, by its rule, and nothing else is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from small_checkpoints import GLM_4, KIMI, LLAMA, SCHEME, Write, compressed_tensors, scale_file, scales

from equipoise.quant.explain import RULES, explain, with_peer

E4M3 = "--kv-cache-dtype=fp8_e4m3"
CT = compressed_tensors()
FP8_WEIGHTS = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
NAN, INF = float("nan"), float("inf")
EAGLE = ("--speculative-algorithm=EAGLE", "--speculative-eagle-topk=1")

Case = tuple[str, str, dict[str, Any], dict[str, Any], Sequence[str], str]
#: (rule, kind, config, scales, arguments, hardware)
CASES: dict[str, Case] = {
    "MLA scale with FlashMLA": (
        "mla-flashmla",
        "wrong",
        KIMI | CT,
        scales(),
        [E4M3, "--attention-backend=flashmla"],
        "H200",
    ),
    "MLA scale with TRT-LLM": ("mla-trtllm", "wrong", KIMI | CT, scales(), [E4M3], "B200"),
    "MLA scale with FlashAttention": ("mla-fa3", "ignored", KIMI | CT, scales(), [E4M3], "H200"),
    "MLA scale with Triton": (
        "mla-triton",
        "wrong",
        KIMI | CT,
        scales(),
        [E4M3, "--attention-backend=triton"],
        "H200",
    ),
    "MLA scale on the CPU server": ("cpu-reference", "crash", KIMI | CT, scales(), [E4M3], "cpu"),
    "GLM-4.5 to 4.7 with scales": ("no-scales-glm4-moe", "ignored", GLM_4 | CT, scales(), [E4M3], "H200"),
    "GLM-4 scheme without tensors": ("scale-initial", "wrong", GLM_4 | CT, {}, [], "H200"),
    "scales in a BF16 checkpoint": ("scale-method", "ignored", LLAMA, scales(), [E4M3], "H200"),
    "scales under a name that MLA models do not know": (
        "scale-names-mla",
        "ignored",
        KIMI | CT,
        scales(form="bare"),
        [E4M3],
        "H200",
    ),
    "scales under a name that Qwen2 does not know": (
        "scale-names-literal",
        "ignored",
        LLAMA | CT | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
        scales(),
        [E4M3],
        "H200",
    ),
    "Qwen3 with scales": (
        "no-scales-qwen3",
        "ignored",
        LLAMA | CT | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
        scales(),
        [E4M3],
        "H200",
    ),
    "KV scheme without tensors": ("scale-initial", "wrong", LLAMA | CT, {}, [], "H200"),
    "KV scheme without tensors, MLA, auto": ("scale-initial", "wrong", KIMI | CT, {}, [], "H200"),
    "dynamic KV scheme": (
        "scheme-compressed-tensors",
        "ignored",
        LLAMA | compressed_tensors(dynamic=True),
        {},
        [E4M3],
        "H200",
    ),
    "asymmetric KV scheme": (
        "scheme-compressed-tensors",
        "ignored",
        LLAMA | compressed_tensors(symmetric=False),
        {},
        [],
        "H200",
    ),
    "int8 KV scheme": (
        "scheme-compressed-tensors",
        "ignored",
        LLAMA | compressed_tensors(type="int"),
        {},
        [],
        "H200",
    ),
    "KV scheme per head": (
        "scheme-compressed-tensors",
        "ignored",
        LLAMA | compressed_tensors(strategy="attn_head"),
        {},
        [],
        "H200",
    ),
    "kv_cache_scheme beside quant_method fp8": (
        "scheme-fp8",
        "ignored",
        LLAMA | {"quantization_config": FP8_WEIGHTS["quantization_config"] | {"kv_cache_scheme": SCHEME}},
        {},
        [],
        "H200",
    ),
    "k_scale without v_scale": ("scale-copied", "wrong", LLAMA | CT, scales(v=None), [E4M3], "H200"),
    "v_scale without k_scale": ("scale-v-alone", "crash", LLAMA | CT, scales(k=None), [E4M3], "H200"),
    "infinite scale": ("scale-unchecked", "wrong", LLAMA | CT, scales(k=INF), [E4M3], "H200"),
    "NaN scale": ("scale-v-alone", "crash", LLAMA | CT, scales(k=NAN), [E4M3], "H200"),
    "negative scales": ("scale-initial", "ignored", LLAMA | CT, scales(k=-0.5, v=-0.5), [E4M3], "H200"),
    "scales of two layers of three": ("scale-initial", "wrong", LLAMA | CT, scales(layers=2), [E4M3], "H200"),
    "a scale for each head": (
        "scale-per-tensor",
        "crash",
        LLAMA | CT,
        {f"model.layers.{i}.self_attn.{p}_proj.{p}_scale": [0.5, 0.5] for i in range(3) for p in "kv"},
        [E4M3],
        "H200",
    ),
    "BF16 cache of a checkpoint with scales": (
        "gqa-triton",
        "wrong",
        LLAMA | CT,
        scales(),
        ["--kv-cache-dtype=bf16", "--attention-backend=triton"],
        "H200",
    ),
    "E5M2 with scales": (
        "gqa-trtllm-mha",
        "wrong",
        LLAMA | CT,
        scales(),
        ["--kv-cache-dtype=fp8_e5m2"],
        "B200",
    ),
    "scales with torch_native": (
        "torch-native-unscaled",
        "ignored",
        LLAMA | CT,
        scales(),
        [E4M3, "--attention-backend=torch_native"],
        "H200",
    ),
    "E5M2 with an explicit fa3": (
        "fa3-e5m2",
        "ignored",
        LLAMA,
        {},
        ["--kv-cache-dtype=fp8_e5m2", "--attention-backend=fa3"],
        "H200",
    ),
    "E5M2 with TRT-LLM MLA": ("trtllm-mla-dtypes", "crash", KIMI, {}, ["--kv-cache-dtype=fp8_e5m2"], "B200"),
    "the word bfloat16 with TRT-LLM MLA": (
        "trtllm-mla-dtypes",
        "crash",
        KIMI,
        {},
        ["--kv-cache-dtype=bfloat16"],
        "B200",
    ),
    "E5M2 with FlashMLA": (
        "e5m2-query",
        "wrong",
        KIMI,
        {},
        ["--kv-cache-dtype=fp8_e5m2", "--attention-backend=flashmla"],
        "H200",
    ),
    "FP8 with fa4": ("fa4-fp8", "crash", LLAMA, {}, [E4M3, "--prefill-attention-backend=fa4"], "H200"),
    "FP8 with HPC-Ops in E5M2": (
        "hpc-ops-dtypes",
        "crash",
        LLAMA,
        {},
        ["--kv-cache-dtype=fp8_e5m2", "--attention-backend=hpc_ops"],
        "H200",
    ),
    "trtllm_mla on Hopper": (
        "trtllm-mla-hardware",
        "crash",
        KIMI,
        {},
        [E4M3, "--attention-backend=trtllm_mla"],
        "H200",
    ),
    "cutedsl_mla on Hopper": (
        "cutedsl-mla",
        "crash",
        KIMI,
        {},
        [E4M3, "--decode-attention-backend=cutedsl_mla", "--prefill-attention-backend=fa3"],
        "H200",
    ),
    "fa3 on Blackwell": ("fa3-hardware", "crash", LLAMA, {}, [E4M3, "--attention-backend=fa3"], "B200"),
    "a GQA backend for an MLA model": (
        "backend-attention",
        "crash",
        KIMI,
        {},
        [E4M3, "--attention-backend=trtllm_mha"],
        "B200",
    ),
    "mxfp8 on Hopper": ("mxfp8-blackwell", "crash", LLAMA, {}, ["--kv-cache-dtype=mxfp8"], "H200"),
    "nvfp4 on Hopper": ("nvfp4-blackwell", "crash", LLAMA, {}, ["--kv-cache-dtype=nvfp4"], "H200"),
    "page size against FlashMLA": (
        "page-size",
        "ignored",
        KIMI,
        {},
        [E4M3, "--attention-backend=flashmla", "--page-size=1"],
        "H200",
    ),
    "page size against TRT-LLM MHA": ("page-size", "ignored", LLAMA, {}, [E4M3, "--page-size=1"], "B200"),
    "page size against fa4": (
        "page-size-fa4",
        "ignored",
        LLAMA,
        {},
        ["--attention-backend=fa4", "--page-size=64"],
        "B200",
    ),
    "determinism against TRT-LLM MLA": (
        "deterministic-backend",
        "crash",
        KIMI,
        {},
        ["--enable-deterministic-inference"],
        "B200",
    ),
    "MTP layer without the scales that the others have": (
        "draft-dtype",
        "wrong",
        LLAMA | CT | {"num_nextn_predict_layers": 1},
        scales(),
        [E4M3, *EAGLE],
        "H200",
    ),
    "a control on a GPU": ("cpu-only", "crash", LLAMA, {}, ["--kv-control=clip2"], "H200"),
    "a layout that does not fit": (
        "cpu-layout",
        "crash",
        KIMI,
        {},
        [E4M3, "--kv-layout=fp8_per_token_head"],
        "cpu",
    ),
    "scales beside a layout with its own": (
        "cpu-layout",
        "crash",
        LLAMA | CT,
        scales(),
        [E4M3, "--kv-layout=fp8_per_token_head"],
        "cpu",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_planted_fault_is_found_by_its_rule_alone(case: str, write: Write) -> None:
    rule, kind, config, tensors, args, hardware = CASES[case]
    answer = explain(write(config, tensors), args, hardware)
    assert [(f.rule, f.kind) for f in answer.problems] == [(rule, kind)], answer.problems
    assert answer.exit_code == 1
    assert rule in {r.id for r in answer.rules}
    assert rule in RULES


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("json-schema", {"layers": 2}),
        ("json-schema", {"layers": 4}),
        ("json-schema", {"ranks": 2}),
        ("json-schema", {"model_type": "qwen2"}),
        ("json-schema", {"dtype": "float8_e4m3fnuz"}),
        ("json-schema", {"scaling_factor": {"0": {"0": "much"}}}),
        ("json-unchecked", {"value": 0.0}),
        ("json-unchecked", {"value": -0.5}),
        ("json-unchecked", {"value": NAN}),
    ],
)
def test_bad_scale_file_is_found(rule: str, change: dict[str, Any], write: Write, tmp_path: Path) -> None:
    words = [E4M3, scale_file(tmp_path / "scales.json", **change)]
    answer = explain(write(LLAMA), words, "cpu")
    assert [f.rule for f in answer.problems] == [rule]


def test_weights_that_leave_no_room_are_found() -> None:
    words = ["--tp=4", "--mem-fraction-static=0.85"]
    assert [(f.rule, f.kind) for f in explain("glm-4.6", words, "H100").problems] == [("capacity", "crash")]
    assert explain("glm-4.6", ["--tp=8", "--mem-fraction-static=0.85"], "H200").problems == ()
    # The fraction that is fitted here, not given, makes no fault of it.
    assert [f.rule for f in explain("glm-4.6", words[:1], "H100").notes][:1] == ["capacity"]


def test_missing_scale_file_is_found(write: Write, tmp_path: Path) -> None:
    answer = explain(write(LLAMA), [E4M3, f"--quantization-param-path={tmp_path / 'none.json'}"], "cpu")
    assert [f.rule for f in answer.problems] == ["json-schema"]


@pytest.mark.parametrize(
    ("config", "hardware", "words", "rule"),
    [
        (GLM_4, "H200", [E4M3], "json-models"),
        (KIMI, "H200", [E4M3], "json-models"),
        (LLAMA, "H200", ["--kv-cache-dtype=fp8_e5m2"], "json-only-e4m3"),
        (LLAMA | CT, "H200", [E4M3], "json-parameter"),
        (LLAMA, "H200", [E4M3], "json-fa3"),
        (LLAMA, "H200", [E4M3, "--attention-backend=flashinfer"], "json-flashinfer"),
        (LLAMA, "H200", [E4M3, "--attention-backend=triton"], "json-triton"),
        (LLAMA, "H200", [E4M3, "--attention-backend=hpc_ops"], "json-hpc-ops"),
    ],
)
def test_good_scale_file_where_it_cannot_work_is_found(
    config: dict[str, Any], hardware: str, words: list[str], rule: str, write: Write, tmp_path: Path
) -> None:
    path = scale_file(tmp_path / "scales.json", model_type=config["model_type"])
    tensors = scales(k=1.0, v=1.0) if "quantization_config" in config else {}
    answer = explain(write(config, tensors), [*words, path], hardware)
    assert [f.rule for f in answer.problems] == [rule]


@pytest.mark.parametrize("hardware", ["cpu", "B200"])
def test_good_scale_file_is_applied_where_it_works(hardware: str, write: Write, tmp_path: Path) -> None:
    path = scale_file(tmp_path / "scales.json")
    answer = explain(write(LLAMA), [E4M3, path], hardware)
    assert answer.problems == ()
    (row,) = answer.scales
    assert (row.k, row.v, row.on_write, row.on_read) == ((0.03, 0.03), (0.03, 0.03), True, True)
    assert row.k_source.endswith("scales.json")


def test_hf_quant_config_that_config_json_hides_is_found(write: Write) -> None:
    hidden = {"hf_quant_config.json": {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}}
    answer = explain(write(LLAMA | FP8_WEIGHTS, files=hidden), [], "H200")
    assert [f.rule for f in answer.problems] == ["scheme-no-config"]
    alone = explain(write(LLAMA, scales(), files=hidden), [], "H200")
    assert (alone.kv_cache_dtype, alone.problems) == ("fp8_e4m3", ())


# -- two servers ------------------------------------------------------------------------------


def pair(folder: Path, one: list[str], other: list[str], hardware: str = "H200") -> list[str]:
    first, second = (explain(folder, words, hardware) for words in (one, other))
    assert first.problems == second.problems == ()
    return [f.rule for f in with_peer(first, second).problems]


PREFILL, DECODE = "--disaggregation-mode=prefill", "--disaggregation-mode=decode"


def test_pd_sides_with_other_kv_dtypes_are_found(write: Write) -> None:
    folder = write(KIMI)
    assert pair(folder, [E4M3, DECODE], [E4M3, PREFILL]) == []
    assert pair(folder, [E4M3, DECODE], ["--kv-cache-dtype=bf16", PREFILL]) == ["pd-kv-dtype"]
    # Both store BF16, but the check compares words.
    assert pair(folder, ["--kv-cache-dtype=bf16", DECODE], [PREFILL]) == ["pd-kv-dtype"]
    assert pair(folder, [E4M3], ["--kv-cache-dtype=bf16"]) == []  # not a PD pair


def test_pd_sides_with_other_page_sizes_are_found(write: Write) -> None:
    flashmla = [E4M3, DECODE, "--decode-attention-backend=flashmla"]
    assert pair(write(KIMI), flashmla, [E4M3, PREFILL]) == ["pd-page-size"]


def test_pd_sides_with_other_dsa_layouts_are_found() -> None:
    raw = explain("glm-5", [E4M3, DECODE, "--tp=8"], "B200")
    packed = explain("glm-5", [E4M3, PREFILL, "--tp=8"], "H200")
    assert (raw.layout, packed.layout) == ("fp8_flat", "ds656")
    assert [f.rule for f in with_peer(raw, packed).problems] == ["pd-dsa-layout"]


HICACHE = ["--enable-hierarchical-cache", "--hicache-storage-backend=file", "--served-model-name=m"]


def test_arms_that_share_a_dtype_blind_storage_are_found(write: Write) -> None:
    folder = write(KIMI)
    fp8, bf16 = [E4M3, *HICACHE], ["--kv-cache-dtype=bf16", *HICACHE]
    assert pair(folder, fp8, bf16) == ["hicache-key"]
    assert pair(folder, fp8, fp8) == []
    assert pair(folder, fp8, [*bf16, "--served-model-name=other"]) == []
    elsewhere = '--hicache-storage-backend-extra-config={"file_storage_path": "/other"}'
    assert pair(folder, fp8, [*bf16, elsewhere]) == []
    assert pair(folder, fp8, [*bf16, "--hicache-storage-backend=mooncake"]) == []
    assert pair(folder, fp8, ["--kv-cache-dtype=bf16"]) == []


def test_arms_with_other_scales_do_not_share_a_storage_either(write: Write) -> None:
    one = explain(write(LLAMA | CT, scales(k=0.5, v=0.5), name="a"), [E4M3, *HICACHE], "H200")
    other = explain(write(LLAMA | CT, scales(k=0.4, v=0.4), name="b"), [E4M3, *HICACHE], "H200")
    assert [f.rule for f in with_peer(one, other).problems] == ["hicache-key"]


def test_problems_of_the_peer_are_told_as_its_own(write: Write) -> None:
    good = explain(write(LLAMA), [E4M3], "H200")
    bad = explain(write(LLAMA), [E4M3, "--attention-backend=fa4"], "H200")
    (found,) = with_peer(good, bad).problems
    assert found.message.startswith("the peer: ")

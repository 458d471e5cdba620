"""Round trips with the field's own tools: compressed-tensors, transformers, modelopt, safetensors."""

import json
import shutil
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import load_file, save_file
from tiny_models import make_checkpoint
from transformers import AutoModelForCausalLM

from equipoise.quant.weights.convert import convert, dequantize
from equipoise.quant.weights.verify import verify

EMBEDDED = Path(str(files("equipoise.tasks") / "embedded"))
IDS = torch.arange(3, 40)[None]


def both_ways(source: Path, folder: Path, format_name: str, **options) -> tuple[Path, Path]:
    """Converted and decoded again."""
    made, back = folder / format_name, folder / f"{format_name}-bf16"
    convert(source, made, format_name=format_name, workers=1, **options)
    dequantize(made, back, workers=1)
    return made, back


@pytest.fixture(scope="module", params=["kimi_tiny", "glm_tiny"])
def embedded(request) -> Path:
    return EMBEDDED / request.param


CT_FORMATS = {
    "fp8-channel": ("float-quantized", 69),
    "int4-g32": ("pack-quantized", 48),
    "mxfp4": ("mxfp4-pack-quantized", 48),
}


@pytest.mark.parametrize("format_name", CT_FORMATS)
def test_compressed_tensors_reads_our_files_to_exactly_our_decoded_values(embedded, format_name, tmp_path):
    made, back = both_ways(embedded, tmp_path, format_name)
    config = QuantizationConfig.model_validate(
        json.loads((made / "config.json").read_text())["quantization_config"]
    )
    registered, modules = CT_FORMATS[format_name]
    assert config.format == registered
    compressor = BaseCompressor.get_value_from_registry(registered)
    stored, decoded = load_file(made / "model.safetensors"), load_file(back / "model.safetensors")
    first = "weight" if format_name == "fp8-channel" else "weight_packed"
    bases = [
        k[: -len(first)] for k in stored if k.endswith("." + first) and stored[k].dtype != torch.bfloat16
    ]
    bases = [b for b in bases if b + "weight_scale" in stored]
    assert len(bases) == modules
    for base in bases:
        state = {k[len(base) :]: v for k, v in stored.items() if k.startswith(base)}
        theirs = compressor.decompress(state, config.config_groups["group_0"])["weight"]
        assert torch.equal(theirs.to(torch.bfloat16), decoded[base + "weight"]), base


def written_by_compressed_tensors(source: Path, folder: Path, scheme_name: str, form: str) -> Path:
    """Every linear layer of a Llama-type model, quantized by compressed-tensors' observer-free functions."""
    scheme = preset_name_to_scheme(scheme_name, ["Linear"])
    if scheme_name == "W4A16":
        scheme.weights.group_size = 32
    compressor = BaseCompressor.get_value_from_registry(form)
    out = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            out[name] = tensor
            continue
        groups = (
            tensor
            if scheme.weights.group_size is None
            else tensor.unflatten(1, (-1, scheme.weights.group_size))
        )
        low, high = groups.amin(-1), groups.amax(-1)
        if scheme.weights.group_size is None:
            low, high = low[:, None], high[:, None]
        extra = {}
        if scheme_name == "NVFP4A16":
            extra["global_scale"] = generate_gparam(tensor.min(), tensor.max())
        scale, _ = calculate_qparams(low, high, scheme.weights, **extra)
        state = {"weight": tensor, "weight_scale": scale}
        state |= {"weight_global_scale": extra["global_scale"]} if extra else {}
        for part, value in compressor.compress(state, scheme).items():
            out[name.removesuffix("weight") + part] = value.detach().contiguous()
    folder.mkdir()
    save_file(out, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    declared = QuantizationConfig(
        config_groups={"group_0": scheme}, format=form, ignore=["lm_head"], quantization_status="compressed"
    )
    config["quantization_config"] = json.loads(declared.model_dump_json())
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    return make_checkpoint("llama", tmp_path_factory.mktemp("llama") / "model")


THEIR_SCHEMES = [
    ("FP8_DYNAMIC", "float-quantized", "fp8-channel"),
    ("W4A16", "pack-quantized", "int4-g32"),
    ("NVFP4A16", "nvfp4-pack-quantized", "nvfp4"),
    ("MXFP4A16", "mxfp4-pack-quantized", "mxfp4"),
    ("MXFP8A16", "mxfp8-quantized", "mxfp8"),
]


@pytest.mark.parametrize(("scheme_name", "form", "ours"), THEIR_SCHEMES, ids=lambda v: v)
def test_we_read_what_compressed_tensors_wrote(llama, tmp_path, scheme_name, form, ours):
    theirs = written_by_compressed_tensors(llama, tmp_path / "theirs", scheme_name, form)
    result = dequantize(theirs, tmp_path / "back", workers=1)
    assert result.converted == 21
    config = QuantizationConfig.model_validate(
        json.loads((theirs / "config.json").read_text())["quantization_config"]
    )
    compressor = BaseCompressor.get_value_from_registry(form)
    stored, decoded = (
        load_file(theirs / "model.safetensors"),
        load_file(tmp_path / "back" / "model.safetensors"),
    )
    assert decoded.keys() == load_file(llama / "model.safetensors").keys()
    for name, ours_decoded in decoded.items():
        if not name.endswith("_proj.weight"):
            assert torch.equal(ours_decoded, stored[name])
            continue
        base = name.removesuffix("weight")
        state = {k[len(base) :]: v for k, v in stored.items() if k.startswith(base)}
        due = compressor.decompress(state, config.config_groups["group_0"])["weight"].float()
        # They multiply in bfloat16 where their scales are: two roundings of 2**-9 at most.
        assert (ours_decoded.float() - due).abs().max() <= due.abs().max() * 2.0**-7
        assert (
            torch.nn.functional.cosine_similarity(ours_decoded.float().flatten(), due.flatten(), dim=0)
            > 0.99999
        )
    # And the quantizers agree in kind: their error against the original is as ours.
    mine = tmp_path / "mine"
    convert(llama, mine, format_name=ours, workers=1)
    dequantize(mine, tmp_path / "mine-back", workers=1)
    original, back = (
        load_file(llama / "model.safetensors"),
        load_file(tmp_path / "mine-back" / "model.safetensors"),
    )
    for name in (n for n in decoded if n.endswith("_proj.weight")):
        x = original[name].double()
        noise = [float((x - side[name].double()).square().sum()) for side in (decoded, back)]
        assert noise[1] <= noise[0] * 1.06, (name, noise)


def logits(path: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    with torch.no_grad():
        return model(IDS).logits.float()


@pytest.mark.parametrize("format_name", ["fp8-block", "mxfp8"])
def test_transformers_loads_our_glm_checkpoint_to_exactly_our_decoded_weights(format_name, tmp_path):
    made, back = both_ways(EMBEDDED / "glm_tiny", tmp_path, format_name)
    loaded = AutoModelForCausalLM.from_pretrained(made, dtype=torch.bfloat16).state_dict()
    decoded = AutoModelForCausalLM.from_pretrained(back, dtype=torch.bfloat16).state_dict()
    assert loaded.keys() == decoded.keys()
    assert all(torch.equal(loaded[k], decoded[k]) for k in decoded)
    assert torch.equal(logits(made), logits(back))
    assert not torch.equal(logits(made), logits(EMBEDDED / "glm_tiny"))


def test_transformers_loads_blocks_only_where_they_divide_the_rows_so_kimi_keeps_one_projection(tmp_path):
    """transformers 5.19 derives the block from rows / scale rows; MLA's 576 rows are 4.5 blocks."""
    whole = tmp_path / "whole"
    convert(EMBEDDED / "kimi_tiny", whole, format_name="fp8-block", workers=1)
    with pytest.raises(RuntimeError, match="CONVERSION"):
        AutoModelForCausalLM.from_pretrained(whole, dtype=torch.bfloat16)
    made, back = both_ways(EMBEDDED / "kimi_tiny", tmp_path, "fp8-block", ignore=["kv_a_proj_with_mqa"])
    assert torch.equal(logits(made), logits(back))


@pytest.mark.parametrize("format_name", ["fp8-block", "int4-g32"])
def test_transformers_runs_our_llama_checkpoints_as_our_decoded_ones(llama, format_name, tmp_path):
    made, back = both_ways(llama, tmp_path, format_name)
    ours, theirs, original = logits(back), logits(made), logits(llama)
    assert (ours - theirs).abs().max() < 0.03 * original.std()
    assert (ours - theirs).square().mean() < 0.01 * (ours - original).square().mean()


def test_transformers_decompresses_our_channels_to_our_decoded_weights(llama, tmp_path):
    """It rounds our float32 scales to bfloat16, and quantizes activations too: weights are compared."""
    made, back = both_ways(llama, tmp_path, "fp8-channel")
    model = AutoModelForCausalLM.from_pretrained(made, dtype=torch.bfloat16)
    with torch.no_grad():
        model(IDS)  # decompresses on first use
    theirs, ours = model.state_dict(), load_file(back / "model.safetensors")
    for name in (n for n in ours if n.endswith("_proj.weight")):
        assert theirs[name].dtype == torch.bfloat16
        assert (theirs[name].float() - ours[name].float()).abs().max() <= ours[name].abs().max() * 2.0**-7, (
            name
        )


@pytest.mark.parametrize("format_name", ["fp8-block", "fp8-channel", "int4-g32", "nvfp4", "mxfp4", "mxfp8"])
def test_the_safetensors_library_reads_our_files_aligned(embedded, format_name, tmp_path):
    made = tmp_path / "made"
    convert(embedded, made, format_name=format_name, workers=1)
    tensors = load_file(made / "model.safetensors")
    original = load_file(embedded / "model.safetensors")
    for name in original.keys() & tensors.keys():
        if tensors[name].dtype == original[name].dtype:
            assert torch.equal(tensors[name], original[name])
    again = tmp_path / "again.safetensors"
    save_file(tensors, again, metadata={"format": "pt"})
    assert (
        again.read_bytes() == (made / "model.safetensors").read_bytes()
    )  # byte for byte what the library writes
    assert verify(embedded, made, workers=1).passed


def test_sglang_parses_our_configs_as_the_formats_they_are(embedded, tmp_path):
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
    from sglang.srt.layers.quantization.compressed_tensors.utils import should_ignore_layer
    from sglang.srt.layers.quantization.fp8 import Fp8Config
    from sglang.srt.layers.quantization.modelopt_quant import ModelOptFp4Config
    from sglang.srt.layers.quantization.utils import is_layer_skipped

    def config_of(format_name: str) -> dict:
        made = tmp_path / format_name
        convert(embedded, made, format_name=format_name, workers=1)
        return json.loads((made / "config.json").read_text())["quantization_config"]

    block = Fp8Config.from_config(config_of("fp8-block"))
    assert (
        block.weight_block_size == [128, 128] and block.is_checkpoint_fp8_serialized and not block.use_mxfp8
    )
    assert is_layer_skipped("lm_head", block.ignored_layers)
    for module in ("self_attn.o_proj", "mlp.gate_up_proj", "mlp.shared_experts.gate_up_proj", "mlp.experts"):
        assert not is_layer_skipped(f"model.layers.1.{module}", block.ignored_layers), module
    mx = Fp8Config.from_config(config_of("mxfp8"))
    assert mx.use_mxfp8 and mx.weight_block_size == [1, 32]
    int4 = CompressedTensorsConfig.from_config(config_of("int4-g32"))
    assert int4._is_wNa16_group_channel(int4.target_scheme_map["Linear"]["weights"], None)
    assert should_ignore_layer("model.layers.1.self_attn.o_proj", int4.ignore)
    assert should_ignore_layer("model.layers.0.mlp.gate_up_proj", int4.ignore)
    assert not should_ignore_layer("model.layers.1.mlp.experts.0.gate_proj", int4.ignore)
    channel = CompressedTensorsConfig.from_config(config_of("fp8-channel")).target_scheme_map["Linear"]
    assert CompressedTensorsConfig._is_fp8_w8a8(None, channel["weights"], channel["input_activations"])
    nvfp4 = ModelOptFp4Config.from_config(config_of("nvfp4"))
    assert nvfp4.group_size == 16 and nvfp4.is_w4a16 and nvfp4.is_checkpoint_nvfp4_serialized
    assert nvfp4.is_layer_excluded("model.layers.1.self_attn.fused_qkv_a_proj_with_mqa")
    assert not nvfp4.is_layer_excluded("model.layers.1.mlp.experts")
    own_file = json.loads((tmp_path / "nvfp4" / "hf_quant_config.json").read_text())
    assert ModelOptFp4Config.from_config(own_file).exclude_modules == nvfp4.exclude_modules


def test_modelopt_s_nvfp4_quantizer_gives_our_codes(tmp_path):
    tensors = pytest.importorskip("modelopt.torch.quantization.qtensor.nvfp4_tensor")
    from equipoise.quant.weights.fp4 import nvfp4_encode, nvfp4_global_scale

    x = (torch.randn(256, 512, generator=torch.Generator().manual_seed(0)) * 0.02).to(torch.bfloat16)
    theirs, scale, global_scale = tensors.NVFP4QTensor.quantize(x, 16)
    ours = nvfp4_global_scale(float(x.abs().max()))
    assert float(global_scale) == pytest.approx(ours, rel=1e-6)
    packed, scales, _ = nvfp4_encode(x, float(global_scale))
    assert torch.equal(scales.view(torch.uint8), scale.view(torch.uint8))
    assert (packed != theirs._quantized_data).float().mean() < 1e-3  # they multiply where we divide


def official_block_release(source: Path, folder: Path) -> Path:
    """As DeepSeek publishes it: scales in another shard than their weights, KV scales beside them."""
    made = folder / "made"
    convert(source, made, format_name="fp8-block", workers=1)
    tensors = load_file(made / "model.safetensors")
    scales = {k: v for k, v in tensors.items() if k.endswith("_scale_inv")}
    rest = {k: v for k, v in tensors.items() if k not in scales}
    rest["model.layers.0.self_attn.k_proj.k_scale"] = torch.tensor(0.5)
    out = folder / "official"
    out.mkdir()
    save_file(rest, out / "model-00001-of-00002.safetensors")
    save_file(scales, out / "model-00002-of-00002.safetensors")
    weight_map = dict.fromkeys(rest, "model-00001-of-00002.safetensors")
    weight_map |= dict.fromkeys(scales, "model-00002-of-00002.safetensors")
    (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    shutil.copy(made / "config.json", out)
    return out


def test_an_official_style_release_is_decoded_though_scales_are_in_another_shard(embedded, tmp_path):
    official = official_block_release(embedded, tmp_path)
    result = dequantize(official, tmp_path / "back", workers=1)
    assert result.dropped == ("model.layers.0.self_attn.k_proj.k_scale",)
    assert sorted(p.name for p in (tmp_path / "back").glob("*.safetensors")) == [
        "model-00001-of-00002.safetensors"
    ]
    dequantize(tmp_path / "made", tmp_path / "direct", workers=1)
    back = load_file(tmp_path / "back" / "model-00001-of-00002.safetensors")
    direct = load_file(tmp_path / "direct" / "model.safetensors")
    assert back.keys() == direct.keys() and all(torch.equal(back[k], direct[k]) for k in direct)
    assert verify(official, tmp_path / "back", workers=1).passed
    AutoModelForCausalLM.from_pretrained(tmp_path / "back")


def test_kimi_s_nested_config_and_int64_shapes_are_read(tmp_path):
    """K2.5 keeps its quantization in text_config; compressed-tensors writes weight_shape as int64."""
    made = tmp_path / "made"
    convert(EMBEDDED / "kimi_tiny", made, format_name="int4-g32", workers=1)
    tensors = load_file(made / "model.safetensors")
    renamed = {
        f"language_model.{k}": v.to(torch.int64) if k.endswith("weight_shape") else v
        for k, v in tensors.items()
    }
    config = json.loads((made / "config.json").read_text())
    nested = tmp_path / "nested"
    nested.mkdir()
    save_file(renamed, nested / "model.safetensors")
    text = {**config, "model_type": "kimi_k2"}
    (nested / "config.json").write_text(json.dumps({"model_type": "kimi_k25", "text_config": text}))
    dequantize(nested, tmp_path / "back", workers=1)
    dequantize(made, tmp_path / "direct", workers=1)
    back, direct = (load_file(tmp_path / n / "model.safetensors") for n in ("back", "direct"))
    assert all(torch.equal(back[f"language_model.{k}"], direct[k]) for k in direct)
    assert (
        "quantization_config"
        not in json.loads((tmp_path / "back" / "config.json").read_text())["text_config"]
    )

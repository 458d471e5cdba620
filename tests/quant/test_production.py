"""The production variants: complete, launchable as printed, and with the published capacities."""

import json
import shlex

import pytest
from click.testing import CliRunner

from equipoise.evals.cli.app import main
from equipoise.evals.errors import UsageError
from equipoise.quant.explain import explain
from equipoise.quant.geometry import BUILTIN
from equipoise.quant.production import PRODUCTION_ARMS, PRODUCTION_GPUS, find_arm
from equipoise.quant.production_launch import production_launch

MODELS = (
    "kimi-k2-thinking", "kimi-k2.5", "kimi-k2.6", "glm-4.5-air", "glm-4.6", "glm-4.7", "glm-4.7-flash",
    "glm-5", "glm-5.1", "glm-5.2",
)  # fmt: skip
LAUNCHES = [(name, gpu) for name, arm in PRODUCTION_ARMS.items() for gpu in arm.gpus]


def flags(argv: tuple[str, ...]) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in argv[3:])


def test_every_model_has_a_baseline_and_an_fp8_cache_of_the_same_weights() -> None:
    for model in MODELS:
        arms = [a for a in PRODUCTION_ARMS.values() if a.model.name == model and not a.refused]
        for release in {a.release.weights for a in arms}:
            caches = {a.kv_cache_dtype for a in arms if a.release.weights == release}
            assert caches == {"bf16", "fp8_e4m3"}, (model, release)
    assert {a.model.name for a in PRODUCTION_ARMS.values()} == set(MODELS)


def test_kimi_has_no_bf16_weights_and_its_baseline_says_why() -> None:
    for model in ("kimi-k2-thinking", "kimi-k2.5", "kimi-k2.6"):
        assert not any(n.startswith(f"{model}@w=bf16") for n in PRODUCTION_ARMS)
        notes = production_launch(find_arm(f"{model}@w=int4-g32,kv=bf16"), "H200").notes
        assert any("no BF16 original" in note for note in notes)


@pytest.mark.parametrize(("name", "gpu"), LAUNCHES)
def test_arms_of_one_model_differ_in_what_their_names_say_and_nothing_else(name: str, gpu: str) -> None:
    arm = PRODUCTION_ARMS[name]
    launch = production_launch(arm, gpu)
    words = flags(launch.argv)
    assert launch.argv[:3] == ("python", "-m", "sglang.launch_server")
    assert words["--kv-cache-dtype"] == arm.kv_cache_dtype
    assert words["--model-path"] == arm.release.hub
    assert words["--served-model-name"] == f"{arm.model.name}+{arm.arm}"
    assert launch.capacity.weights_fit
    twin = find_arm(f"{arm.model.name}@w={arm.release.weights},kv=bf16")
    other = flags(production_launch(twin, gpu).argv)
    differs = {k for k in words.keys() | other.keys() if words.get(k) != other.get(k)}
    assert differs <= {"--kv-cache-dtype", "--served-model-name"}


@pytest.mark.parametrize(
    ("name", "gpu", "layout", "tokens"),
    [
        # Published for eight H200: about 686,000 and 1.37 million.
        ("kimi-k2.6@w=int4-g32,kv=bf16", "H200", "bf16", 685_137),
        ("kimi-k2.6@w=int4-g32,kv=fp8_e4m3", "H200", "fp8_flat", 1_370_275),
        ("glm-5.1@w=fp8-block,kv=fp8_e4m3", "H200", "ds656", None),
        ("glm-5.1@w=fp8-block,kv=fp8_e4m3", "B200", "fp8_flat", None),
        ("glm-4.6@w=bf16,kv=fp8_e4m3", "H200", "fp8_flat", None),
    ],
)
def test_expected_capacity_follows_the_gpus_own_layout(
    name: str, gpu: str, layout: str, tokens: int | None
) -> None:
    launch = production_launch(find_arm(name), gpu)
    assert launch.layout == layout
    if tokens is not None:
        assert launch.capacity.tokens == tokens


def test_weights_that_do_not_fit_one_node_get_two() -> None:
    launch = production_launch(find_arm("glm-5@w=bf16,kv=bf16"), "H200")
    assert launch.nodes == 2
    assert {"--tp-size=16", "--nnodes=2", "--node-rank=$NODE_RANK"} <= set(launch.argv)
    assert "'" not in launch.as_shell.replace("'$", "")  # the shell must see $NODE_RANK, not its name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("glm-5.1@w=fp8-block,kv=fp8_e5m2", "refuses fp8_e5m2 for DSA"),
        ("kimi-k2.6@w=int4-g32,prefill-kv=bf16,decode-kv=fp8_e4m3", "KV cache dtypes differ"),
    ],
)
def test_what_sglang_refuses_has_a_reason_and_no_command(name: str, said: str) -> None:
    assert find_arm(name).gpus == ()
    with pytest.raises(UsageError, match=said):
        production_launch(find_arm(name), "H200")


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("kimi-k2.6@fp8_e4m3", "kimi-k2.6@w=int4-g32,kv=fp8_e4m3"),
        ("kimi-k26@w=int4-g32,kv=fp8", "kimi-k2.6@w=int4-g32,kv=fp8_e4m3"),
        ("glm-4.6@w=fp8,kv=bf16", "glm-4.6@w=bf16,kv=bf16"),
    ],
)
def test_an_unknown_name_gives_the_nearest(asked: str, nearest: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_arm(asked)
    assert f"did you mean {nearest!r}" in str(caught.value)


def test_serve_prints_a_command_that_a_shell_reads_back_unchanged() -> None:
    name = "kimi-k2.6@w=int4-g32,kv=fp8_e4m3"
    done = CliRunner().invoke(main, ["serve", name, "--print", "--gpu", "B200", "--revision", "0123abc"])
    assert done.exit_code == 0, done.output
    said = [line for line in done.output.splitlines() if line.startswith("#")]
    assert any("moonshotai/Kimi-K2.6@0123abc" in line for line in said)
    assert not any("not pinned" in line for line in said)
    words = shlex.split(done.output.replace("\\\n", " "), comments=True)
    assert tuple(words) == production_launch(find_arm(name), "B200", revision="0123abc").argv


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["kimi-k2.6@w=int4-g32,kv=bf16", "--start"], "printed, not started"),
        (["kimi-k2.6@w=int4-g32,kv=bf16", "--print", "--gpu", "H100"], "H200 or B200"),
        (["kimi-k2.6@w=nvfp4,kv=bf16", "--print"], "does not run on H200"),
        (["embedded:kimi_tiny@bf16", "--print", "--gpu", "H200"], "production variants"),
    ],
)
def test_serve_refuses_what_it_cannot_mean(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(main, ["serve", *arguments])
    assert done.exit_code == 2
    assert said in done.output


def test_variants_lists_every_arm_and_json_has_the_commands() -> None:
    listed = CliRunner().invoke(main, ["quant", "variants"]).output.splitlines()
    for name, arm in PRODUCTION_ARMS.items():
        assert any(line.startswith(f"{name} ") for line in listed) == (not arm.refused)
    rows = json.loads(CliRunner().invoke(main, ["quant", "variants", "--json"]).output)
    assert [row["name"] for row in rows] == list(PRODUCTION_ARMS)
    by_name = {row["name"]: row for row in rows}
    launched = by_name["kimi-k2.6@w=int4-g32,kv=bf16"]["launches"]["H200"]
    assert (launched["tokens"], launched["bytes_per_token"]) == (685_137, 70_272)
    assert set(launched) >= {"command", "layout", "notes", "weight_bytes"}
    assert CliRunner().invoke(main, ["quant", "variants", "kimi"]).exit_code == 2


def test_releases_are_of_the_models_that_the_geometries_know() -> None:
    known = {
        g.source.partition("/blob/")[0].removeprefix("https://huggingface.co/") for g in BUILTIN.values()
    }
    for arm in PRODUCTION_ARMS.values():
        if not arm.release.hub.startswith("nvidia/"):
            assert arm.release.hub in known, arm.name
    assert set(PRODUCTION_GPUS) == {"H200", "B200"}


@pytest.mark.parametrize(("name", "gpu"), LAUNCHES)
def test_explain_says_of_each_command_what_the_table_says(name: str, gpu: str) -> None:
    arm = PRODUCTION_ARMS[name]
    launch = production_launch(arm, gpu)
    model = arm.model.name + ("-fp8" if arm.release.weights.startswith("fp8") else "")
    found = explain(model, launch.argv[3:], gpu.lower())
    assert (found.kv_cache_dtype, found.layout) == (arm.kv_cache_dtype, launch.layout)
    assert found.bytes_per_token == launch.capacity.bytes_per_token
    assert found.page_size == launch.capacity.deployment.page_size
    if BUILTIN[model].weights == arm.release.weights:  # NVFP4 ones have no geometry of their own
        assert found.capacity_tokens == launch.capacity.tokens
        assert not found.problems

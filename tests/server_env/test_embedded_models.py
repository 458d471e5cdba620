"""The embedded models: widening, agreement with transformers, and what the shipped weights can do."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from equipoise.evals.types import Message
from equipoise.quant.sglang.torchvision_ops import declare_torchvision_ops
from equipoise.tasks.embedded.architecture import GLM, KIMI, FastModel, Shape
from equipoise.tasks.embedded.checkpoint import load_model, write_checkpoint
from equipoise.tasks.embedded.scoring import answer
from equipoise.tasks.embedded.sensitivity import (
    CALIBRATION_SEED,
    SELECTION_SEED,
    TREATMENTS,
    compare,
    generated_tasks,
)
from equipoise.tasks.embedded.tokenizer import (
    ASSISTANT_ID,
    EOS_ID,
    USER_ID,
    VOCABULARY,
    decode,
    encode,
    render_chat,
)
from equipoise.tasks.embedded.train import SHAPES, finish, harden, train
from equipoise.tasks.embedded.widen import REAL_SIZES, narrow, widen
from equipoise.tasks.generated import draw_held_out

declare_torchvision_ops()  # before transformers, which imports torchvision

from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

MODELS = Path(__file__).resolve().parents[2] / "tasks" / "embedded"
FAMILIES = pytest.mark.parametrize("family", ["kimi", "glm"])


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def random_model(shape: Shape) -> FastModel:
    """Weights as the checkpoint stores them (BF16 values), with routers that choose."""
    torch.manual_seed(0)
    model = FastModel(shape).eval()
    for router in model.routers():
        torch.nn.init.normal_(router.weight, std=0.1)
        router.e_score_correction_bias.normal_(std=0.02)
    state = model.state_dict()
    model.load_state_dict({k: v if "correction" in k else v.bfloat16().float() for k, v in state.items()})
    return model


@torch.no_grad()
def test_widening_preserves_the_function() -> None:
    small = random_model(KIMI)
    state, shape = widen(small.state_dict(), KIMI)
    assert all(getattr(shape, name) == size for name, size in REAL_SIZES.items())
    wide = FastModel(shape).eval()
    wide.load_state_dict(state)
    ids = torch.randint(7, 60, (3, 120))
    expected, got = small(ids), wide(ids)
    # float32 rounding over a few hundred additions, relative to the largest logit
    assert (expected - got).abs().max() < 2e-5 * expected.abs().max()


def test_narrowing_undoes_widening() -> None:
    state = random_model(KIMI).state_dict()
    back = narrow(widen(state, KIMI)[0], KIMI)
    assert back.keys() == state.keys()
    for name, tensor in state.items():
        torch.testing.assert_close(back[name], tensor, rtol=1e-6, atol=0.0)


@torch.no_grad()
def test_a_wrong_widening_would_be_seen() -> None:
    small = random_model(KIMI)
    state, shape = widen(small.state_dict(), KIMI)
    state["model.layers.0.self_attn.q_proj.weight"] = state["model.layers.0.self_attn.q_proj.weight"] * 1.01
    wide = FastModel(shape).eval()
    wide.load_state_dict(state)
    ids = torch.randint(7, 60, (3, 120))
    expected = small(ids)
    assert (expected - wide(ids)).abs().max() > 2e-4 * expected.abs().max()


@FAMILIES
@torch.no_grad()
def test_fast_model_computes_what_transformers_computes(family: str, tmp_path: Path) -> None:
    model = random_model(SHAPES[family])
    write_checkpoint(model.state_dict(), model.shape, tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ids = torch.randint(7, 60, (3, 120))
    expected = reference(ids, use_cache=False).logits
    assert (expected - load_model(tmp_path)(ids)).abs().max() < 2e-5 * expected.abs().max()


@FAMILIES
def test_shipped_config_has_what_the_server_reads(family: str) -> None:
    config = json.loads((MODELS / f"{family}_tiny" / "config.json").read_text())
    wanted = {"rope_theta", "rope_scaling", "num_nextn_predict_layers", "n_group", "topk_group"}
    if family == "kimi":
        wanted |= {"topk_method", "scoring_func", "moe_layer_freq"}
        assert (config["kv_lora_rank"], config["qk_rope_head_dim"]) == (512, 64)
    assert wanted <= config.keys()
    widths = ["vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size"]
    assert all(config[name] % 32 == 0 for name in widths)


@FAMILIES
def test_shipped_tokenizer_equals_the_pure_python_one(family: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODELS / f"{family}_tiny")
    text = "".join(token for token in VOCABULARY if len(token) == 1)
    assert tokenizer(text).input_ids == encode(text)
    assert tokenizer.decode(encode(text)) == text
    messages = [
        Message(role="user", content="K:ab=12;?ab"),
        Message(role="assistant", content="12"),
        Message(role="user", content="?ab"),
    ]
    dicts = [dataclasses.asdict(message) for message in messages]
    rendered = tokenizer.apply_chat_template(dicts, add_generation_prompt=True)["input_ids"]
    assert rendered == render_chat(messages)
    assert tokenizer.decode(rendered, skip_special_tokens=True) == decode(rendered)
    assert tokenizer.eos_token_id == EOS_ID


@FAMILIES
def test_shipped_model_reproduces_its_recorded_accuracy(family: str) -> None:
    directory = MODELS / f"{family}_tiny"
    recorded = json.loads((directory / "training.json").read_text())
    assert recorded["accuracy_seed"] == SELECTION_SEED
    model, n = load_model(directory), 25
    model.set_on_cache(TREATMENTS["bf16"](()))
    for name, task in generated_tasks().items():
        accuracy = answer(model, draw_held_out(task, n, SELECTION_SEED)).accuracy
        p = recorded["accuracies"][name]
        assert 0.6 <= p <= 0.97, name
        # the first 25 of the recorded 400 items: within four standard errors
        assert abs(accuracy - p) < 4 * (p * (1 - p) / n) ** 0.5, name


@FAMILIES
@torch.no_grad()
def test_generating_gives_what_the_single_pass_says(family: str) -> None:
    directory = MODELS / f"{family}_tiny"
    model = load_model(directory)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    for name in ("sort", "copy", "brackets"):
        draws = draw_held_out(generated_tasks()[name], 8, CALIBRATION_SEED)
        said = answer(model, draws).right
        for drawn, right in zip(draws, said, strict=True):
            ((question, target),) = drawn.turns
            prompt = torch.tensor([render_chat([Message(role="user", content=question)])])
            output = reference.generate(prompt, max_new_tokens=64, do_sample=False)[0, prompt.shape[1] :]
            assert (decode(output) == target and output[-1] == EOS_ID) == right


@FAMILIES
def test_amax_covers_calibration_items_and_the_gross_control_hurts(family: str) -> None:
    directory = MODELS / f"{family}_tiny"
    model = load_model(directory)
    amax = json.loads((directory / "kv_amax.json").read_text())["layers"]
    parts = {"latent", "rope"} if family == "kimi" else {"k", "v"}
    assert [set(layer) for layer in amax] == [parts] * model.shape.num_layers
    draws = {"sort": draw_held_out(generated_tasks()["sort"], 60, CALIBRATION_SEED)}
    rows = compare(model, amax, draws, ["int4-tensor"])
    assert rows["int4-tensor"]["sort"]["lost"] > rows["int4-tensor"]["sort"]["gained"] + 3


def test_training_runs_and_writes_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from equipoise.tasks.embedded import train as module

    short = [dataclasses.replace(stage, steps=1, batch=2, length=64) for stage in module.STAGES[:2]]
    monkeypatch.setattr(module, "STAGES", short)
    monkeypatch.setattr(module, "QUICK_ITEMS", 2)
    monkeypatch.setattr(module, "CALIBRATION_ITEMS", 2)
    monkeypatch.setattr(module, "HARDEN_STEPS", 1)
    log = train("kimi", tmp_path)
    log["hardening"] = harden("kimi", tmp_path)
    finish(tmp_path, log, items_per_task=4)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"} <= names
    assert {"kv_amax.json", "training.json", "README.md"} <= names
    card = (tmp_path / "README.md").read_text()
    assert "apache-2.0" in card
    assert "1 more with relative noise" in " ".join(card.split())
    assert load_model(tmp_path).shape == dataclasses.replace(KIMI, **REAL_SIZES)


def test_both_shapes_use_role_tokens_within_their_vocabulary() -> None:
    assert max(USER_ID, ASSISTANT_ID) < min(KIMI.vocab_size, GLM.vocab_size)
    assert KIMI.vocab_size == GLM.vocab_size == len(VOCABULARY)

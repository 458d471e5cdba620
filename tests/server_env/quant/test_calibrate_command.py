"""``equipoise quant calibrate`` as it is typed: prompts in, tables or JSON and an overlay out."""

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from calibration_cases import MODELS, sequences
from click.testing import CliRunner

from equipoise.evals.cli.app import main
from equipoise.evals.errors import UsageError
from equipoise.quant.calibration.model import load_model, load_tokenizer
from equipoise.quant.calibration.prompts import Prompt, read_prompts, tokenize
from equipoise.quant.checkpoint import Checkpoint
from equipoise.quant.geometry import kv_bytes_per_token, load_geometry


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"token_ids": ids}) + "\n" for ids in sequences(1).sequences))
    return path


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["quant", "calibrate", *words], env={"COLUMNS": "80"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize("model", ["glm_tiny", "kimi_tiny"])
def test_tables_fit_eighty_columns_and_say_what_a_server_makes_of_it(
    model: str, prompts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, text = run(
        f"embedded:{model}",
        "--data",
        str(prompts),
        "--out",
        str(out),
        "--kl-prompts",
        "2",
        "--kl-budget",
        ".02",
    )
    assert code == 0, text
    commands = [line for line in text.splitlines() if line.startswith(("serve with", "wrote"))]
    assert all(len(line) <= 80 for line in text.splitlines() if line not in commands)
    assert f"--model-path {out}" in text
    parts = ("latent", "rope") if model == "kimi_tiny" else ("k", "v")
    for part in parts:
        assert sum(f" {part} " in line for line in text.splitlines()) == 3
    assert "KL budget 0.02 nats: keep in BF16:" in text
    if model == "kimi_tiny":
        assert "the scale stays exactly 1" in " ".join(text.split())
    else:
        assert "never loads scale tensors" in " ".join(text.split())
    assert len(Checkpoint.open(out).tensors) == len(Checkpoint.open(MODELS / model).tensors) + 6
    # The overlay is a model like its source, for transformers too.
    ids = torch.tensor([list(range(7, 40))])
    with torch.no_grad():
        a, b = (load_model(folder).causal_lm(ids).logits for folder in (out, MODELS / model))
    assert torch.equal(a, b)


def test_json_has_every_figure_of_every_layer(prompts: Path) -> None:
    code, text = run(
        "embedded:glm_tiny", "--data", str(prompts), "--json", "--granularity", "head", "--kl-prompts", "2",
        "--method", "percentile", "--kl-budget", "99",
    )  # fmt: skip
    assert code == 0, text
    report = json.loads(text)
    assert (report["method"], report["percentile"], report["layout"]) == ("percentile", 99.99, "fp8_per_head")
    assert (report["data"]["prompts"], report["kl_prompts"]) == (6, 2)
    assert len(report["data"]["files"][0]["sha256"]) == 64
    assert sorted(report["ranking"]) == [0, 1, 2]
    for layer in report["layers"]:
        assert {"attention_error", "attention_error_at_unit_scale", "kl_nats"} <= set(layer)
        for part in layer["parts"].values():
            assert len(part["scales"]) == 2
            for population in ("rest", "sinks"):
                found = part[population]
                assert set(found["percentiles"]) == {"50", "90", "99", "99.9", "99.99"}
                figures = {"sqnr_db", "cosine", "saturated_share", "flushed_share"}
                assert set(found["stored"]) == set(found["at_unit_scale"]) == figures
    geometry = load_geometry(MODELS / "glm_tiny")
    plan = report["plan"]
    assert plan["bf16_layers"] == []
    assert plan["bytes_all_quantized"] == kv_bytes_per_token(geometry, "fp8_per_head")
    assert plan["bytes_all_bf16"] == kv_bytes_per_token(geometry, "bf16")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["embedded:kimi_tiny", "--granularity", "head"], "one latent for all heads"),
        (["embedded:glm_tiny", "--granularity", "token-tile", "--method", "mse"], "--method amax, not mse"),
        (["embedded:glm_tiny", "--granularity", "token-tile", "--out", "x"], "leaves nothing to write"),
        (["embedded:glm_tiny", "--overlay-of", "x"], "--overlay-of says what is linked into --out"),
        (["embedded:glm_tiny", "--percentile", "101"], "up to 100"),
        (["embedded:glm_tiny", "--kl-budget", "0"], "out of range"),
        (["hub:zai-org/GLM-4.6"], "is not on this disk"),
        (["embedded:glm_tiny", "--out", "/"], "exists; nothing is overwritten"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_run(
    words: list[str], message: str, prompts: Path
) -> None:
    code, text = run(*words, "--data", str(prompts))
    assert code == 2
    assert message in " ".join(text.split())


def test_an_interrupted_calibration_leaves_nothing(prompts: Path, tmp_path: Path) -> None:
    many = tmp_path / "many.jsonl"
    many.write_text(prompts.read_text() * 200)
    command = [
        sys.executable, "-P", "-m", "equipoise.evals.cli", "quant", "calibrate", "embedded:glm_tiny",
        "--data", str(many), "--max-prompts", "1200", "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    time.sleep(15)  # it takes minutes
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted; nothing was written" in stderr
    assert [p.name for p in tmp_path.iterdir()] == ["many.jsonl"]


def test_prompts_are_lines_of_text_or_json_from_all_files_in_turn(tmp_path: Path) -> None:
    text, lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    text.write_text("one\n\ntwo\nthree\n")
    messages = [{"role": "user", "content": "x"}]
    rows = [
        "plain",
        {"text": "t"},
        {"prompt": "p"},
        {"messages": messages},
        {"token_ids": [1, 2]},
        {"input_ids": [3]},
    ]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_prompts([text, lines], max_prompts=100)
    assert not found.unread
    texts = [p.text or p.messages or p.token_ids for p in found.prompts]
    assert texts == ["one", "plain", "two", "t", "three", "p", (messages[0],), (1, 2), (3,)]
    assert found.prompts[2].where == f"{text}:3"
    some = read_prompts([text, lines], max_prompts=4)
    assert [p.text for p in some.prompts] == ["one", "plain", "two", "t"]
    assert some.unread


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{\n", "is not JSON"),
        (b'{"question": "x"}\n', "is not a string, or an object with text"),
        (b'{"token_ids": [1, -2]}\n', "is not a string, or an object"),
        (b'"\xff"\n', "not UTF-8"),
        (b"\n", "no prompts in"),
    ],
)
def test_malformed_prompts_are_named_by_line(line: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n" + line)
    with pytest.raises(UsageError, match=message):
        read_prompts([path], max_prompts=10)
    with pytest.raises(UsageError, match="cannot read"):
        read_prompts([tmp_path / "none"], max_prompts=10)


def test_tokens_are_the_models_own_and_cut_and_counted() -> None:
    prompts = [
        Prompt(where="a", text="abc" * 10),
        Prompt(where="b", messages=({"role": "user", "content": "abc"},)),
        Prompt(where="c", token_ids=(9,)),
        Prompt(where="d", token_ids=(9, 10)),
    ]
    found = tokenize(prompts, lambda: load_tokenizer(MODELS / "glm_tiny"), vocab_size=64, max_tokens=12)
    assert [len(s) for s in found.sequences] == [12, len(found.sequences[1]), 2]
    assert found.where == ("a", "b", "d")
    assert (found.truncated, found.too_short, found.tokens) == (1, 1, sum(map(len, found.sequences)))

    def never() -> object:
        raise AssertionError("token ids need no tokenizer")

    with pytest.raises(UsageError, match=r"e: token 64 is outside the model's vocabulary of 64"):
        tokenize([Prompt(where="e", token_ids=(1, 64))], never, vocab_size=64, max_tokens=9)
    with pytest.raises(UsageError, match="no prompt has two tokens"):
        tokenize([Prompt(where="c", token_ids=(9,))], never, vocab_size=64, max_tokens=9)


def test_sglang_still_has_one_kv_dtype_for_all_layers() -> None:
    """A version that stores layers in different dtypes makes the note about mixed plans wrong."""
    import installed_sglang  # noqa: F401  makes sglang importable without a GPU
    from sglang.srt.mem_cache.kv_cache_dtype import configure_kv_cache_dtype
    from sglang.srt.server_args import ServerArgs

    fields = set(ServerArgs.__struct_fields__)
    found = {f for f in fields if "kv_cache_dtype" in f}
    assert found == {"kv_cache_dtype", "speculative_draft_kv_cache_dtype"}
    assert not {f for f in fields if "kv" in f and "layer" in f}
    parameters = inspect.signature(configure_kv_cache_dtype).parameters
    assert not [name for name in parameters if "layer" in name]

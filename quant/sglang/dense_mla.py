"""GLM-5-type models on the CPU server: DSA's sparse indexer calls CUDA kernels, so it is left out.

What remains is dense MLA over the same latent cache. The indexer picks ``index_topk`` of the cached tokens
for each query, so the two are the same while a context has no more tokens than that, and only then. The
server says so in its log, in its name, and as a fact of /server_info, which reports repeat.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.quant.checkpoint import MAX_CONFIG_BYTES, read_json
from equipoise.quant.sglang.arguments import option

__all__ = ["DENSE_ENV", "DENSE_FACT", "DENSE_FLAG", "dense_limit", "said", "split_dense"]

DENSE_FLAG = "--dense-mla"
DENSE_ENV = "EQUIPOISE_SGLANG_DENSE_MLA"  # index_topk, for the plugin in this process and its children
DENSE_FACT = "attention_indexer"  # in /server_info

# Those whose attention SGLang 0.5.23 makes sparse if the config has index_topk (configs/model_config.py,
# is_deepseek_dsa), of the families known here.
_SPARSE = ("GlmMoeDsaForCausalLM", "DeepseekV32ForCausalLM", "DeepseekV3ForCausalLM")


def dense_limit(model_path: str) -> int | None:
    """``index_topk`` of a checkpoint directory with sparse attention; None for any other model.

    Raises
    ------
    CheckpointError
        Its config.json cannot be read.
    """
    path = Path(model_path) / "config.json"
    if not path.is_file():
        return None  # a hub id: the server sees it first
    return _index_topk(read_json(path, max_bytes=MAX_CONFIG_BYTES))


def _index_topk(config: Mapping[str, Any]) -> int | None:
    topk, names = config.get("index_topk"), config.get("architectures")
    sparse = isinstance(names, list) and any(name in _SPARSE for name in names)
    return topk if sparse and isinstance(topk, int) and topk > 0 else None


def said(limit: int) -> str:
    """The fact, and what a report's limits say of it."""
    return (
        "sparse attention (DSA) was left out: dense MLA without the indexer and its cache, the same only "
        f"while a context has at most {limit:,} tokens"
    )


def split_dense(argv: Sequence[str]) -> tuple[list[str], int | None]:
    """Take ``--dense-mla`` out of SGLang's arguments and name the server after it.

    Raises
    ------
    SystemExit
        The flag for a model that has no sparse attention, or such a model without the flag.
    """
    model_path = option(argv, "--model-path") or option(argv, "--model") or ""
    limit = dense_limit(model_path)
    if DENSE_FLAG not in argv:
        if limit is not None:
            raise SystemExit(
                f"{model_path} has sparse attention (DSA, index_topk {limit}), which needs CUDA: add "
                f"{DENSE_FLAG} to serve it here without its indexer"
            )
        return list(argv), None
    if limit is None:
        raise SystemExit(f"{DENSE_FLAG} is for models with sparse attention (DSA): leave it out")
    rest = [arg for arg in argv if arg != DENSE_FLAG]
    name = option(argv, "--served-model-name") or model_path
    return [*rest, f"--served-model-name={name}+{DENSE_FLAG.removeprefix('--')}"], limit

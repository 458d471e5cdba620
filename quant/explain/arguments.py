"""The arguments of an SGLang server that decide how its KV cache is stored and read."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from equipoise.evals.errors import UsageError

__all__ = ["KV_CACHE_DTYPES", "ServerArguments", "parse_arguments"]

KV_CACHE_DTYPES = ("auto", "fp8_e5m2", "fp8_e4m3", "mxfp8", "bf16", "bfloat16", "nvfp4", "fp4_mx_block16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerArguments:
    """Names are SGLang's; kv_control and kv_layout are flags of this project's CPU server.

    ``unread`` are the words that do not matter here, kept to be shown.
    """

    kv_cache_dtype: str
    quantization: str | None
    quantization_param_path: str | None
    attention_backend: str | None
    prefill_attention_backend: str | None
    decode_attention_backend: str | None
    dsa_prefill_backend: str | None
    dsa_decode_backend: str | None
    page_size: int | None
    tp_size: int
    dp_size: int
    attn_dp_size: int
    enable_dp_attention: bool
    pp_size: int
    dcp_size: int
    dtype: str
    device: str | None
    model_path: str | None
    served_model_name: str | None
    json_model_override_args: str | None
    speculative_algorithm: str | None
    speculative_eagle_topk: int | None
    speculative_draft_model_path: str | None
    speculative_draft_kv_cache_dtype: str | None
    enable_deterministic_inference: bool
    disaggregation_mode: str
    enable_hierarchical_cache: bool
    hicache_storage_backend: str | None
    hicache_storage_backend_extra_config: str | None
    disable_radix_cache: bool
    mem_fraction_static: float | None
    max_total_tokens: int | None
    chunked_prefill_size: int | None
    disable_cuda_graph: bool
    disable_prefill_cuda_graph: bool
    cuda_graph_backend_prefill: str | None
    enable_two_batch_overlap: bool
    kv_control: str | None
    kv_layout: str | None
    unread: tuple[str, ...]

    @property
    def attention_dp(self) -> int:
        """Groups of GPUs that each attend to their own requests."""
        return self.attn_dp_size if self.attn_dp_size > 1 else self.dp_size if self.enable_dp_attention else 1

    @property
    def storage_config(self) -> dict[str, Any]:
        """``--hicache-storage-backend-extra-config`` where it is JSON; a file ("@path") is not read."""
        text = self.hicache_storage_backend_extra_config
        if text is None or text.startswith("@"):
            return {}
        try:
            value = json.loads(text)
        except ValueError as e:
            raise UsageError(f"--hicache-storage-backend-extra-config is not JSON ({e})") from e
        return value if isinstance(value, dict) else {}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"server arguments: {message}; give them as to sglang.launch_server")


_TEXT = (
    "--quantization", "--quantization-param-path", "--attention-backend", "--prefill-attention-backend",
    "--decode-attention-backend", "--dsa-prefill-backend", "--dsa-decode-backend", "--device",
    "--served-model-name", "--json-model-override-args", "--speculative-algorithm",
    "--hicache-storage-backend", "--hicache-storage-backend-extra-config", "--kv-control", "--kv-layout",
)  # fmt: skip
_FLAGS = (
    "--enable-dp-attention", "--enable-deterministic-inference", "--disable-radix-cache",
    "--disable-cuda-graph", "--disable-prefill-cuda-graph", "--enable-two-batch-overlap",
)  # fmt: skip
_WHOLE = ("--page-size", "--speculative-eagle-topk", "--max-total-tokens", "--chunked-prefill-size")
_DEPRECATED = {"nsa": "dsa", "tokenspeed_mla": "cutedsl_mla", "compressed": "dsv4"}


def _parser() -> _Parser:
    p = _Parser(allow_abbrev=False, add_help=False, usage=argparse.SUPPRESS)
    p.add_argument("--kv-cache-dtype", choices=KV_CACHE_DTYPES, default="auto")
    p.add_argument("--model-path", "--model")
    p.add_argument("--speculative-draft-model-path", "--speculative-draft-model")
    p.add_argument(
        "--speculative-draft-kv-cache-dtype", choices=("auto", "fp8_e5m2", "fp8_e4m3", "bf16", "bfloat16")
    )
    p.add_argument("--dtype", default="auto")
    p.add_argument("--disaggregation-mode", choices=("null", "prefill", "decode"), default="null")
    p.add_argument("--cuda-graph-backend-prefill", choices=("full", "breakable", "disabled"))
    p.add_argument("--mem-fraction-static", type=float)
    p.add_argument("--enable-hierarchical-cache", "--enable-hicache", action="store_true")
    p.add_argument("--tp-size", "--tensor-parallel-size", "--tp", type=int, default=1)
    p.add_argument("--dp-size", "--data-parallel-size", "--dp", type=int, default=1)
    p.add_argument("--attn-dp-size", "--attention-data-parallel-size", type=int, default=1)
    p.add_argument("--pp-size", "--pipeline-parallel-size", "--pp", type=int, default=1)
    p.add_argument("--dcp-size", "--decode-context-parallel-size", type=int, default=1)
    for name in _TEXT:
        p.add_argument(name)
    for name in _FLAGS:
        p.add_argument(name, action="store_true")
    for name in _WHOLE:
        p.add_argument(name, type=int)
    return p


def parse_arguments(words: Sequence[str]) -> ServerArguments:
    """Read a server's command line; what does not bear on the KV cache is kept in ``unread``.

    Raises
    ------
    UsageError
        A value that SGLang's parser refuses, or a flag cut short: SGLang would complete it, and what is
        meant must be known here.
    """
    parser = _parser()
    values, unread = parser.parse_known_args(list(words))
    for word in unread:
        flag = word.partition("=")[0]
        if full := [k for k in parser._option_string_actions if flag.startswith("--") and k.startswith(flag)]:
            raise UsageError(f"server arguments: {flag} is short for {' or '.join(full)}; write it in full")
    found = vars(values)
    for name in ("tp_size", "dp_size", "attn_dp_size", "pp_size", "dcp_size", "page_size"):
        if found[name] is not None and found[name] < 1:
            raise UsageError(f"server arguments: --{name.replace('_', '-')} {found[name]} is not positive")
    for name in ("attention_backend", "prefill_attention_backend", "decode_attention_backend"):
        found[name] = _DEPRECATED.get(found[name], found[name])
    return ServerArguments(**found, unread=tuple(unread))

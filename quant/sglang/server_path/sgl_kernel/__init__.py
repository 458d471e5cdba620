"""Stand-in for SGLang's compiled ``sgl_kernel`` package, for the CPU server process only.

The published wheels need CUDA libraries to import, and sglang 0.5.23 imports these names
unconditionally on a CPU. The launcher puts the folder above on its own import path; nothing
installs it. One function is really used, and is written out; a call of any other one raises.
"""

from collections.abc import Callable
from typing import Any

import torch

__version__ = "0.0.0+equipoise.cpu"

_IMPORTED_NEVER_CALLED = (
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
)


def missing(name: str) -> Callable[..., Any]:
    """A function that says it does not exist on this CPU path."""

    def raise_not_implemented(*_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(
            f"sgl_kernel.{name} does not exist on a CPU without AMX: this model or option needs a GPU server"
        )

    raise_not_implemented.__name__ = name
    return raise_not_implemented


globals().update({name: missing(name) for name in _IMPORTED_NEVER_CALLED})


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,  # [requests]
    req_to_token: torch.Tensor,  # [max_requests, max_context], written in place
    start_offset: torch.Tensor,  # [requests]
    end_offset: torch.Tensor,  # [requests]
    out_cache_loc: torch.Tensor,  # [sum(end - start)]
    *_: Any,
) -> None:
    """Write each request's new cache slots into its row of the request-to-token table."""
    first = 0
    rows = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, start, end in rows:
        req_to_token[row, start:end] = out_cache_loc[first : first + end - start].to(req_to_token.dtype)
        first += end - start

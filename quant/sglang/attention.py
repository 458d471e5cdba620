"""Reference attention in float32 over a paged KV pool: what the CPU server computes.

Pure functions over torch tensors, without SGLang. Keys and values are always read back from the
pool, also in prefill, so the error of storing them there is in every logit. GQA and absorbed MLA
are the same computation; for MLA the pool has one row a token and its values are the first
``v_head_dim`` numbers of its keys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from equipoise.kernels.formats import format_of, read_float8

__all__ = ["DecodeGroup", "KVRows", "attend_decode", "attend_extend", "plan_decode", "read_rows"]

# Rows gathered at once; 16,384 rows of 576 float32 are 38 MB.
MAX_ROWS_PER_GROUP = 16384
# Requests are padded to the longest of their group; a shorter one starts a new group.
MIN_FILL = 0.75
MIN_GROUP = 8
# Queries per block in prefill: bounds the score matrix, and keys after the block are skipped.
QUERY_BLOCK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class KVRows:
    """Float32 keys [..., kv_heads, qk_head_dim] and values [..., kv_heads, v_head_dim]."""

    k: torch.Tensor
    v: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeGroup:
    """Requests of similar length, padded to the longest; built once a step for all layers."""

    requests: torch.Tensor  # int64 [b], positions in the batch
    slots: torch.Tensor  # int64 [b, length]; padding repeats the request's own first slot
    mask: torch.Tensor | None  # float32 [b, 1, length], -inf at padding; None where there is none


def _read(pool: torch.Tensor, slots: torch.Tensor, scale: float) -> torch.Tensor:
    """Rows of a pool [slots, heads, dim] as float32 [*slots.shape, heads, dim]."""
    flat = pool.view(pool.shape[0], -1)
    index = slots.reshape(-1)
    if format_of(pool.dtype) is None:
        rows = flat.index_select(0, index).to(torch.float32)
    else:
        # index_select is not implemented for fp8 on CPU; bytes are.
        rows = read_float8(flat.view(torch.uint8).index_select(0, index).view(pool.dtype), scale=scale)
    return rows.view(*slots.shape, *pool.shape[1:])


def read_rows(
    k_pool: torch.Tensor,
    v_pool: torch.Tensor | None,
    slots: torch.Tensor,
    *,
    v_head_dim: int,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> KVRows:
    """Read cache rows, dequantized.

    Parameters
    ----------
    k_pool, v_pool : Tensor
        [pool slots, kv_heads, dim], bfloat16, float32 or fp8. ``v_pool`` None: values are the
        first ``v_head_dim`` numbers of the keys (absorbed MLA).
    slots : Tensor
        int64, any shape.
    k_scale, v_scale : float
        Descales of an fp8 pool (value = code * scale). A wider pool holds unscaled values.
    """
    k = _read(k_pool, slots, k_scale)
    v = k if v_pool is None else _read(v_pool, slots, v_scale)
    return KVRows(k=k, v=v[..., :v_head_dim])


def plan_decode(
    req_to_token: torch.Tensor, req_pool_indices: torch.Tensor, seq_lens: Sequence[int]
) -> list[DecodeGroup]:
    """Sort a decode batch by length and cut it into groups that pad little.

    Parameters
    ----------
    req_to_token : Tensor
        int [max requests, max context]: the cache slot of each position of each request.
    req_pool_indices : Tensor
        int64 [batch], rows of ``req_to_token``.
    seq_lens : sequence of int
        Lengths including the token being decoded, on the host.
    """
    order = sorted(range(len(seq_lens)), key=lambda i: -seq_lens[i])
    groups = []
    for members in _cut(order, seq_lens):
        lengths = [seq_lens[i] for i in members]
        longest = lengths[0]
        requests = torch.tensor(members)
        slots = req_to_token[req_pool_indices[requests], :longest].to(torch.int64)
        mask = None
        if lengths[-1] < longest:
            padding = torch.arange(longest) >= torch.tensor(lengths).unsqueeze(1)  # [b, longest]
            # Unused slots may hold anything, NaN included, and 0 * NaN is NaN: never read them.
            slots = torch.where(padding, slots[:, :1], slots)
            mask = torch.zeros(padding.shape).masked_fill_(padding, float("-inf")).unsqueeze(1)
        groups.append(DecodeGroup(requests=requests, slots=slots, mask=mask))
    return groups


def _cut(order: Sequence[int], seq_lens: Sequence[int]) -> Iterator[list[int]]:
    group: list[int] = []
    for i in order:
        if group:
            longest = seq_lens[group[0]]
            too_short = seq_lens[i] < MIN_FILL * longest and len(group) >= MIN_GROUP
            if too_short or (len(group) + 1) * longest > MAX_ROWS_PER_GROUP:
                yield group
                group = []
        group.append(i)
    if group:
        yield group


@cache
def _causal_mask(group: int) -> torch.Tensor:
    """[QUERY_BLOCK * group, QUERY_BLOCK]: -inf where a key comes after the query; 0 elsewhere."""
    later = torch.full((QUERY_BLOCK, QUERY_BLOCK), float("-inf")).triu(1)
    return later.repeat_interleave(group, dim=0)


def attend_decode(
    q: torch.Tensor, rows: KVRows, *, scaling: float, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """One query token a request.

    Parameters
    ----------
    q : Tensor
        float32 [b, heads, qk_head_dim]; heads is a multiple of kv_heads, and consecutive heads
        share a KV head.
    rows : KVRows
        k [b, length, kv_heads, qk_head_dim], v [b, length, kv_heads, v_head_dim].
    mask : Tensor or None
        float32 [b, 1, length], added to the scores.

    Returns
    -------
    Tensor
        float32 [b, heads, v_head_dim].
    """
    kv_heads = rows.k.shape[2]
    grouped = q.unflatten(1, (kv_heads, -1))  # [b, kv_heads, group, d]
    out = []
    for h in range(kv_heads):
        scores = torch.bmm(grouped[:, h], rows.k[:, :, h].transpose(1, 2)).mul_(scaling)
        if mask is not None:
            scores.add_(mask)
        out.append(torch.bmm(torch.softmax(scores, dim=-1), rows.v[:, :, h]))
    return out[0] if kv_heads == 1 else torch.cat(out, dim=1)


def attend_extend(q: torch.Tensor, rows: KVRows, *, scaling: float, causal: bool = True) -> torch.Tensor:
    """The last ``n`` positions of one request (prefill, with or without a cached prefix).

    Parameters
    ----------
    q : Tensor
        float32 [n, heads, qk_head_dim].
    rows : KVRows
        The whole request: k [length, kv_heads, qk_head_dim], v [length, kv_heads, v_head_dim].

    Returns
    -------
    Tensor
        float32 [n, heads, v_head_dim].
    """
    n, heads, _ = q.shape
    length, kv_heads, _ = rows.k.shape
    group = heads // kv_heads
    prefix = length - n
    k, v = rows.k.transpose(0, 1), rows.v.transpose(0, 1)  # [kv_heads, length, d]
    out = q.new_empty((n, heads, rows.v.shape[-1]))
    for start in range(0, n, QUERY_BLOCK):
        end = min(start + QUERY_BLOCK, n)
        visible = prefix + end if causal else length
        # [kv_heads, block * group, d]: a query's group of heads shares one KV head
        block = q[start:end].unflatten(1, (kv_heads, group)).transpose(0, 1).flatten(1, 2)
        scores = torch.bmm(block, k[:, :visible].transpose(1, 2)).mul_(scaling)
        if causal:  # only the block's own positions can be in the future
            scores[..., prefix + start :].add_(_causal_mask(group)[: block.shape[1], : end - start])
        weighted = torch.bmm(torch.softmax(scores, dim=-1), v[:, :visible])
        out[start:end] = weighted.unflatten(1, (end - start, group)).transpose(0, 1).flatten(1, 2)
    return out

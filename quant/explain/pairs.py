"""Two servers that share something: the sides of a PD pair, or arms with one KV storage."""

from equipoise.quant.explain.model import Explanation, Finding

__all__ = ["pair_findings"]


def pair_findings(one: Explanation, other: Explanation) -> tuple[Finding, ...]:
    """What the two may not share; empty if they have nothing in common."""
    return (*_disaggregated(one, other), *_storage(one, other))


def _disaggregated(one: Explanation, other: Explanation) -> list[Finding]:
    if {one.disaggregation_mode, other.disaggregation_mode} != {"prefill", "decode"}:
        return []
    prefill, decode = (one, other) if one.disaggregation_mode == "prefill" else (other, one)
    found = []
    if prefill.kv_cache_word != decode.kv_cache_word:
        found.append(
            Finding(
                kind="crash",
                rule="pd-kv-dtype",
                message=f"the prefill side stores {_word(prefill)}, the decode side {_word(decode)}: the "
                "decode side refuses the transfer",
                remedy="say the same --kv-cache-dtype on both sides",
            )
        )
    elif prefill.layout != decode.layout:
        found.append(
            Finding(
                kind="wrong",
                rule="pd-dsa-layout",
                message=f"the prefill side stores the layout {prefill.layout}, the decode side "
                f"{decode.layout}, which the check of the pair does not compare",
                remedy="choose kernels of one layout on both sides",
            )
        )
    if prefill.page_size != decode.page_size:
        found.append(
            Finding(
                kind="crash",
                rule="pd-page-size",
                message=f"page size {prefill.page_size} on the prefill side, {decode.page_size} on the "
                "decode side",
                remedy="say the same --page-size on both sides",
            )
        )
    return found


def _word(side: Explanation) -> str:
    if side.kv_cache_word == side.kv_cache_dtype:
        return side.kv_cache_dtype
    return f"{side.kv_cache_dtype} (called {side.kv_cache_word!r})"


def _storage(one: Explanation, other: Explanation) -> list[Finding]:
    if not one.cache_storage or one.cache_storage != other.cache_storage or one.stored_as == other.stored_as:
        return []
    return [
        Finding(
            kind="wrong",
            rule="hicache-key",
            message=f"both servers keep KV pages in {one.cache_storage}, whose keys do not tell "
            f"{_stored(one)} from {_stored(other)}: they read each other's bytes",
            remedy="give each server a storage path or --served-model-name of its own, or flush between arms",
        )
    ]


def _stored(side: Explanation) -> str:
    return f"{side.kv_cache_dtype} ({side.layout}, page size {side.page_size})"

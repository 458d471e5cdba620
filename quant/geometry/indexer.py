"""Which layers of a DSA model run the indexer, and so cache its keys."""

from equipoise.quant.geometry.fields import Fields

__all__ = ["index_layers", "scheduled_index_layers"]


def scheduled_index_layers(num_layers: int, *, freq: int, offset: int = 2) -> tuple[int, ...]:
    """Every ``freq``-th layer from ``offset`` - 1 on, and all before: GLM-5.2's rule (freq 4, offset 3).

    As ``dsa_layer_skips_topk`` of ``sglang/srt/configs/model_config.py`` 0.5.23 and ``GlmMoeDsaConfig`` of
    transformers 5.19.
    """
    return tuple(i for i in range(num_layers) if max(i - offset + 1, 0) % freq == 0)


def index_layers(fields: Fields) -> tuple[int, ...]:
    """From ``indexer_types``, else ``index_topk_pattern``, else ``index_topk_freq``; else all layers.

    Raises
    ------
    CheckpointError
        A list of another length or with other words, a first layer without anything to reuse, or keys that
        contradict each other.
    """
    layers = fields.layers()
    found: dict[str, tuple[int, ...]] = {}
    if (types := fields.values.get("indexer_types")) is not None:
        found["indexer_types"] = _listed(fields, "indexer_types", types, ("full", "shared"))
    if (pattern := fields.values.get("index_topk_pattern")) is not None:
        found["index_topk_pattern"] = _listed(fields, "index_topk_pattern", pattern, ("F", "S"))
    if fields.values.get("index_topk_freq") is not None:
        found["index_topk_freq"] = scheduled_index_layers(
            layers,
            freq=fields.integer("index_topk_freq"),
            offset=fields.integer("index_skip_topk_offset", default=2),
        )
    if not found:
        return tuple(range(layers))
    key, chosen = next(iter(found.items()))
    if key != "index_topk_freq" and "index_topk_pattern" in found:
        found.pop("index_topk_freq", None)  # a pattern replaces the schedule
    for other, value in found.items():
        if value != chosen:
            fields.fail(key, f"names {len(chosen)} indexing layers, but {other} means {len(value)} others")
    return chosen


def _listed(fields: Fields, key: str, value: object, words: tuple[str, str]) -> tuple[int, ...]:
    (runs, reuses), layers = words, fields.layers()
    if not isinstance(value, (list, str)) or len(value) != layers or any(kind not in words for kind in value):
        fields.fail(key, f"is not a list of {layers} times {runs!r} or {reuses!r}")
    if value[0] != runs:
        fields.fail(key, "lets layer 0 reuse a choice that no layer has made")
    return tuple(i for i, kind in enumerate(value) if kind == runs)

"""The dimensions of models, from a config.json or built in, and what their KV caches cost."""

from equipoise.quant.geometry.builtin import BUILTIN, find_builtin
from equipoise.quant.geometry.config import FAMILIES, load_geometry
from equipoise.quant.geometry.kv_bytes import (
    KV_LAYOUTS,
    LayerBytes,
    kv_bytes_per_token,
    kv_bytes_per_token_per_gpu,
    kv_layer_bytes,
    kv_layout_for,
    kv_layouts_of,
)
from equipoise.quant.geometry.model import Attention, Geometry

__all__ = [
    "BUILTIN",
    "FAMILIES",
    "KV_LAYOUTS",
    "Attention",
    "Geometry",
    "LayerBytes",
    "find_builtin",
    "kv_bytes_per_token",
    "kv_bytes_per_token_per_gpu",
    "kv_layer_bytes",
    "kv_layout_for",
    "kv_layouts_of",
    "load_geometry",
]

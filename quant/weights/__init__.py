"""Compressed weights on disk: convert, dequantize, verify, shard by shard and in bounded memory.

torch is imported by the modules that compute, not here: names, ignore rules and configurations work
without it.
"""

from equipoise.quant.weights.names import FORMAT_NAMES

__all__ = ["FORMAT_NAMES"]

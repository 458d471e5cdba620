"""Lossless BF16: exponents near their entropy, signs and mantissas as they are; bit-exact by checksum.

No torch. Needs zstandard and xxhash.
"""

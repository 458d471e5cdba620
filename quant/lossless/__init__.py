"""Lossless BF16: exponents near their entropy, signs and mantissas as they are; bit-exact by checksum.

A tensor::

    encoded = encode_tensor(bit_patterns)  # uint16, any shape
    rows = decode_tensor(encoded, rows=(10, 20))

A file, in bounded memory; the original comes back byte for byte::

    write_lossless("model.safetensors", "lossless/model.safetensors", threads=4)
    with LosslessFile.open("lossless/model.safetensors") as file:
        file.decode("lm_head.weight", rows=(0, 8))
        file.restore("again/model.safetensors")

No torch: ``t.view(torch.uint16).numpy()`` and back. Needs zstandard and xxhash.
"""

from equipoise.quant.lossless.container import is_lossless
from equipoise.quant.lossless.exponents import ExponentStreams, decode_exponents, encode_exponents
from equipoise.quant.lossless.jobs import convert_plan, restore_plan
from equipoise.quant.lossless.reader import LosslessFile, LosslessTensor
from equipoise.quant.lossless.tensor import EncodedTensor, decode_tensor, encode_tensor
from equipoise.quant.lossless.verify import SpecialValues, Verified, verify_lossless
from equipoise.quant.lossless.writer import Written, write_lossless

__all__ = [
    "EncodedTensor",
    "ExponentStreams",
    "LosslessFile",
    "LosslessTensor",
    "SpecialValues",
    "Verified",
    "Written",
    "convert_plan",
    "decode_exponents",
    "decode_tensor",
    "encode_exponents",
    "encode_tensor",
    "is_lossless",
    "restore_plan",
    "verify_lossless",
    "write_lossless",
]

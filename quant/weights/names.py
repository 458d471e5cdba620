"""The formats by the names the command line gives them; pure, no torch."""

__all__ = ["FORMAT_NAMES", "LOSSLESS_FORMAT", "QUANTIZED_FORMATS"]

QUANTIZED_FORMATS = ("fp8-block", "fp8-channel", "int4-g32", "nvfp4", "mxfp4", "mxfp8")
LOSSLESS_FORMAT = "bf16-lossless"
FORMAT_NAMES = (*QUANTIZED_FORMATS, LOSSLESS_FORMAT)

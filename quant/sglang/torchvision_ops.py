"""Operator declarations that let ``import torchvision`` succeed beside a CPU torch.

torchvision's PyPI wheel is a CUDA build: its compiled library does not load next to a CPU torch,
and its import then fails while registering a fake ``torchvision::nms``. transformers imports
torchvision wherever it is installed. Declaring the two operators is enough; text models call
neither.
"""

import importlib.util

import torch

__all__ = ["declare_torchvision_ops"]

_libraries: list[torch.library.Library] = []  # an operator lives as long as its library object


def declare_torchvision_ops() -> None:
    """Declare ``torchvision::nms`` and ``::qnms`` once; call before torchvision is imported."""
    if _libraries or torch.cuda.is_available() or importlib.util.find_spec("torchvision") is None:
        return
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(library)

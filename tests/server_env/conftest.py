"""Declares torchvision's operators before transformers is imported; makes the doubles importable."""

import sys
from pathlib import Path

from equipoise.quant.sglang.torchvision_ops import declare_torchvision_ops

declare_torchvision_ops()
sys.path.insert(0, str(Path(__file__).parent / "doubles"))

"""Declares torchvision's operators before transformers is imported; makes the doubles importable."""

import sys
from pathlib import Path

import torch

from equipoise.quant.sglang.torchvision_ops import declare_torchvision_ops

declare_torchvision_ops()
# The models are tiny. Threads that wait for each other by spinning cost ten times more on a busy machine.
torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parent / "doubles"))

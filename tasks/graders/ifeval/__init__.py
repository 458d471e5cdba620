"""IFEval's 25 kinds of verifiable instructions (Zhou et al. 2023, arXiv:2311.07911), each a pure function."""

from equipoise.tasks.graders.ifeval.follow import Instruction, follow, instructions_of

__all__ = ["Instruction", "follow", "instructions_of"]

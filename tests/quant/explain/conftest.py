"""Makes the doubles importable and their fixture known."""

import sys
from pathlib import Path

DOUBLES = Path(__file__).parent / "doubles"
if str(DOUBLES) not in sys.path:
    sys.path.insert(0, str(DOUBLES))

from small_checkpoints import write  # noqa: E402, F401

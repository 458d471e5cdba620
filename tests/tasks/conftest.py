"""Makes the doubles of tasks importable (pytest's importlib mode puts nothing on the path)."""

import sys
from pathlib import Path

DOUBLES = Path(__file__).parent / "doubles"
if str(DOUBLES) not in sys.path:
    sys.path.insert(0, str(DOUBLES))

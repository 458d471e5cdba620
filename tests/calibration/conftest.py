"""Makes the calibration's own modules and the shared test doubles importable; see tests/evals/conftest.py."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "evals" / "doubles"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

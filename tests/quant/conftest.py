"""Makes this folder's published configs importable (pytest's importlib mode puts nothing on the path)."""

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
for folder in (FOLDER, FOLDER.parent / "evals" / "doubles"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

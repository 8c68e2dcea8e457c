"""Where the repository and its sources are, and its programs outside of the package."""

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"


def program(file: Path) -> ModuleType:
    """One of the programs in examples/, results/, docs/ or tools/, as a module."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

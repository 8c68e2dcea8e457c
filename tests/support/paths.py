"""Where the repository and its sources are."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"

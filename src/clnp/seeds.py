"""Seeds that depend on what they are for and on nothing else.

Every task, candidate, split and epoch has a seed of its own, derived from the run's by name, so
that adding a candidate, or resuming in the middle, changes no other.
"""

import hashlib
import json
from typing import Any


def derive(seed: int, *purpose: Any) -> int:
    """A seed for one purpose, below 2**63.

    derive(0, "split", "flowers") != derive(0, "split", "trees"), in every process alike
    """
    # A number of numpy's, or of PyTorch's, counts as what it holds.
    text = json.dumps(
        [seed, *purpose],
        sort_keys=True,
        separators=(",", ":"),
        default=lambda number: number.item(),
    )
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

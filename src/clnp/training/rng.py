"""Seeds and generators of random numbers.

Every task, candidate, split and epoch has a seed of its own, derived from the seed of the run by
name, so that adding a candidate, or resuming in the middle, changes no other.
"""

import hashlib
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


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


def seed_all(seed: int) -> None:
    """Seed all that the data set of a user may draw from: PyTorch, `random` and numpy."""
    # What torch.manual_seed does, which looks at the stack for every kind of device not in use.
    torch.default_generator.manual_seed(seed)
    for devices in (torch.cuda, torch.xpu):
        if devices.is_initialized():
            devices.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextmanager
def isolated(device: torch.device) -> Iterator[None]:
    """Whatever is seeded or drawn inside leaves the user's random numbers as they were."""
    python, arrays = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)


def default_generator(device: torch.device) -> torch.Generator:
    """The generator that operations on the GPU draw from unless they are given one."""
    index = torch.cuda.current_device() if device.index is None else device.index
    found: torch.Generator = torch.cuda.default_generators[index]
    return found

"""Seeds and random number generators.

Every task, candidate, split and epoch has its own seed, derived by name from the seed of the run.
So adding a candidate, or resuming in the middle, changes no other.
"""

import hashlib
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clnp.checks import check_memory


def derive(seed: int, *purpose: Any) -> int:
    """Return the seed for a purpose, below 2**63, the same in every process.

    derive(0, "split", "flowers") == 1880624096771054623
    """
    # Numbers of NumPy and PyTorch count as the Python numbers that they hold.
    text = json.dumps(
        [seed, *purpose],
        sort_keys=True,
        separators=(",", ":"),
        default=lambda number: number.item(),
    )
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_all(seed: int) -> None:
    """Seed PyTorch, `random` and NumPy, from all of which the data set of a user may draw."""
    # As torch.manual_seed, which inspects the stack for each kind of device that is not in use.
    torch.default_generator.manual_seed(seed)
    for devices in (torch.cuda, torch.xpu):
        if devices.is_initialized():
            devices.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def permutation(count: int, seed: int) -> Tensor:
    """Return the numbers below `count` in random order, int64 [count], drawn on the CPU."""
    check_memory(f"an order of {count} samples", 8 * count, torch.device("cpu"), "Use fewer")
    # So that the order does not depend on the device.
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed), device="cpu")


@contextmanager
def isolated(device: torch.device) -> Iterator[None]:
    """Restore the user's random number generators at the end of the block."""
    python, arrays = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)


def default_generator(device: torch.device) -> torch.Generator:
    """Return the generator that operations on the GPU use by default."""
    index = torch.cuda.current_device() if device.index is None else device.index
    found: torch.Generator = torch.cuda.default_generators[index]
    return found

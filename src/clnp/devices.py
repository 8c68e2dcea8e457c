"""Find the device that a run uses, set its threads, and set aside a default device of the user."""

import contextlib
import re
from typing import Any

import torch

from clnp.errors import ArgumentError


def find_device(name: str | None) -> torch.device:
    """The device of that name; a GPU, if there is one, unless one is named."""
    if name is None or name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except Exception as error:  # Each kind of device has errors of its own.
        # The first sentence: what follows tells what else there might be.
        reason = re.split(r"[.:]\s|\n", str(error))[0].strip(" .,")
        raise ArgumentError(
            f"device {name!r} cannot be used here ({reason}); try --device cpu"
        ) from error
    return torch.device("cuda", 0) if name == "cuda" else device


def use_threads(device: torch.device, num_threads: int | None) -> None:
    """Use as many threads as the run did before: another number adds in another order."""
    if device.type == "cpu" and num_threads is not None and 1 <= num_threads <= 1024:
        torch.set_num_threads(num_threads)


def on_the_host() -> contextlib.AbstractContextManager[Any]:
    """Tensors that are made inside without a device are on the CPU, whatever default is set.

    For code of PyTorch that counts on it: data loaders draw with generators of the CPU, and
    optimizers keep the number of steps there.
    """
    if torch.get_default_device().type == "cpu":
        return contextlib.nullcontext()  # Every operation inside would take longer.
    return torch.device("cpu")

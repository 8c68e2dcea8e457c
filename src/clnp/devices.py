"""Find the device that a run uses, set its threads, and set aside a default device of the user."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import torch

from clnp.errors import ArgumentError


def find_device(name: str | None) -> torch.device:
    """Return the device of that name. Without a name, a GPU if there is one."""
    if name is None or name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except Exception as error:  # Each kind of device raises other errors.
        # The first sentence; the others list devices.
        reason = re.split(r"[.:]\s|\n", str(error))[0].strip(" .,")
        raise ArgumentError(
            f"device {name!r} cannot be used here: {reason}. Use another one, such as cpu"
        ) from error
    return torch.device("cuda", 0) if name == "cuda" else device


def use_threads(device: torch.device, num_threads: int | None) -> None:
    """Use this number of threads on a CPU, where another one adds in another order."""
    if device.type == "cpu" and num_threads is not None and 1 <= num_threads <= 1024:
        torch.set_num_threads(num_threads)


@contextlib.contextmanager
def restoring_threads() -> Iterator[None]:
    """Restore the user's number of threads at the end of the block."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def on_the_host() -> contextlib.AbstractContextManager[Any]:
    """Make the CPU the default device inside, whatever the user has set.

    Some code of PyTorch needs it: data loaders draw with generators of the CPU, and optimizers keep
    the number of steps there.
    """
    if torch.get_default_device().type == "cpu":
        return contextlib.nullcontext()  # A device context would slow down every operation.
    return torch.device("cpu")

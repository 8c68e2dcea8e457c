"""The device that a user has made PyTorch's default, set aside."""

import contextlib
from typing import Any

import torch


def on_the_host() -> contextlib.AbstractContextManager[Any]:
    """Tensors that are made inside without a device are on the CPU, whatever default is set.

    For code of PyTorch that counts on it: data loaders draw with generators of the CPU, and
    optimizers keep the number of steps there.
    """
    if torch.get_default_device().type == "cpu":
        return contextlib.nullcontext()  # Every operation inside would take longer.
    return torch.device("cpu")

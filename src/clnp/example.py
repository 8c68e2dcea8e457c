"""An example input, and random numbers of its own for running it."""

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from .errors import ArgumentError
from .operations import imitate, tensors_in

Inputs = tuple[tuple[Any, ...], Mapping[str, Any]]


def inputs_of(example: Any) -> Inputs:
    """Positional and keyword inputs from a tensor, a tuple or a dict."""
    if isinstance(example, torch.Tensor):
        return (example,), {}
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, (tuple, list)):
        return tuple(example), {}
    raise ArgumentError(
        f"example_input is a {type(example).__name__}; give a tensor, a tuple of positional inputs "
        "or a dict of keyword inputs"
    )


def batch_size(inputs: Inputs) -> int:
    """First dimension of the first tensor."""
    tensors = tensors_in(inputs)
    return tensors[0].shape[0] if tensors and tensors[0].ndim else 1


def two_of(inputs: Inputs) -> Inputs:
    """The inputs with a batch of one repeated: BatchNorm cannot train on a single example."""
    if batch_size(inputs) != 1:
        return inputs

    def twice(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor, tensor]) if tensor.ndim and len(tensor) == 1 else tensor

    args, kwargs = imitate(inputs, twice)
    return args, kwargs


@contextlib.contextmanager
def own_random_numbers(model: nn.Module) -> Iterator[None]:
    """Random numbers drawn inside are the same every time, and leave no trace outside."""
    python, arrays = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=_cuda_devices(model)):
            seed_all(model, 0)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)


def seed(model: nn.Module, number: int) -> None:
    """Seed the generators of the CPU and of the model's devices, and no others."""
    for generator in _generators(model):
        generator.manual_seed(number)


def seed_all(model: nn.Module, number: int) -> None:
    """Seed those, and the generators of Python and NumPy."""
    random.seed(number)
    np.random.seed(number)
    seed(model, number)


def random_state(model: nn.Module) -> tuple[Any, ...]:
    """Where the generators of Python, NumPy, the CPU and the model's devices are, to compare."""
    arrays: Any = np.random.get_state()
    states = [generator.get_state().numpy().tobytes() for generator in _generators(model)]
    return random.getstate(), arrays[1].tobytes(), arrays[2:], *states


def _generators(model: nn.Module) -> list[torch.Generator]:
    devices = _cuda_devices(model)
    return [torch.default_generator, *(torch.cuda.default_generators[index] for index in devices)]


def _cuda_devices(model: nn.Module) -> list[int]:
    tensors = (*model.parameters(), *model.buffers())
    return sorted({tensor.get_device() for tensor in tensors if tensor.is_cuda})

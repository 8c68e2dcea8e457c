"""Read an example input, imitate it, and run it with its own random numbers."""

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import nn

from clnp.errors import ArgumentError

Inputs = tuple[tuple[Any, ...], Mapping[str, Any]]
Structure = TypeVar("Structure")


def inputs_of(example: Any) -> Inputs:
    """Return positional and keyword inputs from a tensor, a tuple or a dict."""
    if isinstance(example, torch.Tensor):
        return (example,), {}
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, (tuple, list)):
        return tuple(example), {}
    raise ArgumentError(
        f"example_input is of type {type(example).__name__}. Give a tensor, a tuple of positional "
        "inputs or a dict of keyword inputs"
    )


def batch_size(inputs: Inputs) -> int:
    """Return the first dimension of the first tensor."""
    tensors = tensors_in(inputs)
    return tensors[0].shape[0] if tensors and tensors[0].ndim else 1


def two_of(inputs: Inputs) -> Inputs:
    """Repeat a batch of one, since BatchNorm cannot train on a single example."""
    if batch_size(inputs) != 1:
        return inputs

    def twice(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor, tensor]) if tensor.ndim and len(tensor) == 1 else tensor

    return imitate(inputs, twice)


@contextlib.contextmanager
def own_random_numbers(model: nn.Module) -> Iterator[None]:
    """Draw the same random numbers inside every time, and leave no trace of it outside."""
    python, arrays = random.getstate(), np.random.get_state()
    states = [(generator, generator.get_state()) for generator in generators_of(model)]
    try:
        seed_all(model, 0)
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        for generator, state in states:
            generator.set_state(state)


def seed_all(model: nn.Module, number: int) -> None:
    """Seed the generators of Python, NumPy, the CPU and the model's devices."""
    random.seed(number)
    np.random.seed(number)
    for generator in generators_of(model):
        generator.manual_seed(number)


def random_state(generators: Sequence[torch.Generator]) -> tuple[Any, ...]:
    """Return the states of the generators of Python, NumPy and PyTorch."""
    arrays: Any = np.random.get_state()
    states = [generator.get_state().numpy().tobytes() for generator in generators]
    return random.getstate(), arrays[1].tobytes(), arrays[2:], *states


def generators_of(model: nn.Module) -> list[torch.Generator]:
    """List PyTorch's generators for the CPU and the model's devices."""
    tensors = (*model.parameters(), *model.buffers())
    devices = sorted({tensor.get_device() for tensor in tensors if tensor.is_cuda})
    return [torch.default_generator, *(torch.cuda.default_generators[index] for index in devices)]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """List every tensor in nested lists, tuples, dicts and dataclasses."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in tensors_in(item)]
    if isinstance(value, (list, tuple, set)):
        return [tensor for item in value for tensor in tensors_in(item)]
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return [t for name in value.__dataclass_fields__ for t in tensors_in(getattr(value, name))]
    return []


def imitate(value: Structure, make: Callable[[torch.Tensor], torch.Tensor]) -> Structure:
    """Return the same structure with `make(tensor)` in place of every tensor."""
    found: Any = value
    if isinstance(value, torch.Tensor):
        found = make(value)
    elif isinstance(value, (list, tuple)):
        items = [imitate(item, make) for item in value]
        found = type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    elif isinstance(value, dict):
        found = {key: imitate(item, make) for key, item in value.items()}
    return cast(Structure, found)


def copied(inputs: Inputs) -> Inputs:
    """Clone the tensors of the inputs, since some forward passes write into theirs."""
    return imitate(inputs, torch.clone)

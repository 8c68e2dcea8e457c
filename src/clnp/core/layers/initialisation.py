"""Initialise the weights of new layers."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from clnp.core.structure.kinds import plain_layer
from clnp.errors import ArgumentError, unknown_name

Initialise = Callable[[nn.Module], object]
"""A function that changes the weights of a new layer in place, after its class has made them."""
Initial = nn.Module | Initialise | None
"""A model whose weights are copied, a function of every new layer, or PyTorch's own way."""


def glorot(layer: nn.Module) -> None:
    """Draw weights with variance 2 / (inputs + outputs), and set biases to 0, as Keras does."""
    weight: Any = getattr(layer, "weight", None)
    if weight is None or weight.ndim < 2:
        return  # A norm, or a PReLU.
    nn.init.xavier_uniform_(weight)
    bias: Any = getattr(layer, "bias", None)
    if bias is not None:
        nn.init.zeros_(bias)


INITIALISATIONS: Mapping[str, Initialise | None] = {"pytorch": None, "glorot": glorot}


def initialisation(chosen: str | Initialise) -> Initialise | None:
    """Return the initialisation of that name, or the given one; None is PyTorch's own."""
    if not isinstance(chosen, str):
        if callable(chosen) and not isinstance(chosen, nn.Module):
            return chosen
        raise ArgumentError(
            f"initialisation is {chosen!r}. It must be a name, or a function of a layer",
            argument="initialisation",
        )
    if chosen not in INITIALISATIONS:
        message = unknown_name("initialisation", chosen, INITIALISATIONS)
        raise ArgumentError(message, argument="initialisation")
    return INITIALISATIONS[chosen]


def starting_layer(initial: Initial, like: nn.Module, *, num_outputs: int, num_inputs: int) -> Any:
    """Return a layer with the initial weights: a given one, or a new one like `like`."""
    if isinstance(initial, nn.Module):
        return initial
    made = plain_layer(like, num_outputs=num_outputs, num_inputs=num_inputs)
    initialise(made, initial)
    return made


@torch.no_grad()
def initialise(module: nn.Module, how: Initialise | None) -> None:
    """Initialise a module as its class does, if it can, and then in that way."""
    reset: Any = getattr(module, "reset_parameters", None)
    if reset is None:
        return
    reset()
    if how is None or not [*module.parameters(recurse=False)]:
        return  # A container only resets its layers.
    before = _shapes(module)
    how(module)
    after = _shapes(module)
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            raise ArgumentError(
                f"the initialisation made {name} of a {type(module).__name__} "
                f"{after.get(name, 'nothing')}; it was {before.get(name, 'nothing')}, and only its "
                "values may change"
            )


def _shapes(module: nn.Module) -> dict[str, str]:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        name: f"{list(tensor.shape)}, {tensor.dtype} on {tensor.device}"
        for name, tensor in tensors.items()
    }

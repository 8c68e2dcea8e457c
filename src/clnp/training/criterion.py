"""Criteria: what the importance of a neuron is, which pruning cuts by.

A criterion has a name, or is a function of one's own:

    def weight(net, batches):
        return {"fc1": net.model.fc2.weight_free.norm(dim=0), "fc2": ...}

It gets the network, whose open task has been trained, and the batches of its training data, pairs
of inputs and targets, which can be iterated over more than once. It returns a number for each free
neuron of each group, 0 or more, where the lowest are pruned first, and leaves the network as it is.
A recipe names the function by its import path, "package.module:function".
"""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from torch import Tensor

from clnp.core.net import ContinualNet
from clnp.errors import ArgumentError

Criterion = Callable[[ContinualNet, Iterable[tuple[Tensor, Tensor]]], Mapping[str, Any]]
CRITERIA = ("activity", "contribution", "taylor")


def importance(argument: str, value: object) -> object:
    """Return the value if it is a criterion. An import path is not imported yet."""
    if callable(value) or (isinstance(value, str) and (value in CRITERIA or _is_path(value))):
        return value
    raise ArgumentError(
        f"{argument} is {value!r}. It must be {', '.join(map(repr, CRITERIA))}, or a function of "
        "the network and its batches, in a recipe its import path, such as "
        "'package.module:function'",
        argument=argument,
    )


def _is_path(text: str) -> bool:
    module, colon, function = text.partition(":")
    return bool(colon) and all(name.isidentifier() for name in [*module.split("."), function])


def criterion_of(value: "str | Criterion") -> "str | Criterion":
    """Return the criterion, imported if it is an import path."""
    if not isinstance(value, str) or value in CRITERIA:
        return value
    module, _, name = value.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ArgumentError(
            f"importance is {value!r}, which cannot be imported: {error}. Install its package, or "
            "put the directory of its module on PYTHONPATH",
            argument="importance",
        ) from error
    if not callable(found):
        raise ArgumentError(
            f"importance is {value!r}, which is of type {type(found).__name__}. It must be a "
            "function of the network and its batches",
            argument="importance",
        )
    criterion: Criterion = found
    return criterion

"""Nested state as JSON and named tensors, so that it can be stored without pickle."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .errors import ArgumentError


def pack(value: Any, tensors: dict[str, Tensor], *, name: str) -> Any:
    """`value` as JSON; its tensors go into `tensors` under names that begin with `name`.

    Dictionaries may have whole numbers for keys, as those of optimizers do.
    """
    if isinstance(value, Tensor):
        while name in tensors:  # {"a.b": x, "a": {"b": y}} come to the same name.
            name += "_"
        tensors[name] = value.detach().clone()
        return {"tensor": name}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, int | str):
                raise ArgumentError(f"{name} has the key {key!r}, which cannot be stored")
        return {
            "keys": list(value),
            "values": [pack(v, tensors, name=f"{name}.{k}") for k, v in value.items()],
        }
    if isinstance(value, list | tuple):
        return [pack(item, tensors, name=f"{name}.{place}") for place, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ArgumentError(f"{name} is of type {type(value).__name__}, which cannot be stored")


def unpack(packed: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `pack` was given; tuples come back as lists."""
    if isinstance(packed, dict) and "tensor" in packed:
        return tensors[packed["tensor"]]
    if isinstance(packed, dict):
        return dict(
            zip(packed["keys"], (unpack(v, tensors) for v in packed["values"]), strict=True)
        )
    if isinstance(packed, list):
        return [unpack(item, tensors) for item in packed]
    return packed

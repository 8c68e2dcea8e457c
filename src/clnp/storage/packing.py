"""Nested state as JSON and named tensors, to store it without pickle."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from clnp.errors import ArgumentError

STORED = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint64, torch.uint32, torch.uint16, torch.uint8),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
}
"""The dtypes that safetensors writes and reads."""


def pack(value: Any, tensors: dict[str, Tensor], *, name: str) -> Any:
    """Return `value` as JSON, and add its tensors to `tensors` under names that begin with `name`.

    Dictionaries may have integers as keys, as those of optimizers do.
    """
    if isinstance(value, Tensor):
        _check_tensor(value, name)
        while name in tensors:  # {"a.b": x, "a": {"b": y}} have the same name.
            name += "_"
        tensors[name] = value.detach()
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
        return [pack(item, tensors, name=f"{name}.{index}") for index, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ArgumentError(f"{name} is of type {type(value).__name__}, which cannot be stored")


def _check_tensor(value: Tensor, name: str) -> None:
    """Raise an `ArgumentError` unless the tensor is dense and can be stored."""
    if value.is_nested or value.layout is not torch.strided:
        kind = "nested" if value.is_nested else "sparse"
        raise ArgumentError(
            f"{name} is a {kind} tensor, which cannot be stored. Store its parts, or a dense one"
        )
    if value.is_meta:
        raise ArgumentError(f"{name} is a tensor on the device meta, which holds no numbers")
    if value.dtype not in STORED:
        raise ArgumentError(f"{name} is a tensor of {value.dtype}, which cannot be stored")


def unpack(packed: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value that was packed, with lists in place of tuples."""
    if isinstance(packed, dict) and "tensor" in packed:
        return tensors[packed["tensor"]]
    if isinstance(packed, dict):
        return dict(
            zip(packed["keys"], (unpack(v, tensors) for v in packed["values"]), strict=True)
        )
    if isinstance(packed, list):
        return [unpack(item, tensors) for item in packed]
    return packed

"""Pickles of plain arrays, read without executing anything that a file may ask for.

A pickle is a program that may call whatever Python can import. Here it can call four functions,
written below, and none of numpy's own: they make arrays of numbers. Beside these a pickle can hold
bytes, text, numbers, lists, tuples and dicts, which need no call.
"""

import io
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .errors import DataError
from .stored import Published, stored

NUMBERS = re.compile(r"b1|[iu][1248]|f[248]")


def read_pickle(path: Path, published: Published | None = None) -> Any:
    """What a pickle holds, of Python 2 or 3 and any numpy; text of Python 2 comes out as bytes."""
    file = io.BytesIO(stored(path, published))
    try:
        found = _Unpickler(file, path).load()
    except DataError:
        raise
    except Exception as error:  # A damaged pickle makes pickle and numpy raise all kinds of errors.
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(
            f"{path} is damaged or not a pickle of plain arrays, get it again: {reason}"
        ) from error
    if file.read(1):
        raise DataError(f"{path} is too long, get it again: bytes follow the end of the pickle")
    return found


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, path: Path) -> None:
        super().__init__(file, encoding="bytes")
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        admitted = ADMITTED.get((module, name))
        if admitted is None:
            raise DataError(
                f"{self.path} asks for {module}.{name}, which could execute code, and was not "
                "used; get the file from its authors"
            )
        return admitted


class _Admitted:
    """A function that a pickle may call, and do nothing else with."""

    # No dataclass: up to Python 3.11.3, one with slots has a `__setstate__` of its own.
    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __setstate__(self, state: Any) -> None:
        # A pickle could otherwise set attributes, which would outlive it.
        raise pickle.UnpicklingError("a function has no state")


class _Dtype:
    """The type of the numbers of an array, as a pickle spells it: without objects or fields."""

    __slots__ = ("numpy",)

    def __init__(self, code: str) -> None:
        self.numpy = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        _version, order, *fields = state
        if any(each is not None for each in fields[:3]):
            raise pickle.UnpicklingError("an array has fields")
        if _text(order) not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"an array has the byte order {order!r}")
        self.numpy = np.dtype(_text(order) + self.numpy.str[1:])


class _Array(np.ndarray):
    """An array that a pickle fills, with numbers only."""

    def __setstate__(self, state: Any) -> None:
        version, shape, dtype, fortran, content = state
        _check(shape, dtype, content)
        checked: Any = (version, shape, dtype.numpy, bool(fortran), bytes(content))
        super().__setstate__(checked)


def _empty(subtype: Any, shape: Any, code: Any) -> _Array:
    """In place of numpy's `_reconstruct`, which would make an array of any class and size."""
    if subtype is not _NDARRAY:
        raise pickle.UnpicklingError("an array is of a class of its own")
    return _Array((0,), dtype=np.uint8)


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    """In place of numpy's `_frombuffer`, which protocol 5 uses."""
    _check(shape, dtype, content)
    flat = np.frombuffer(bytes(content), dtype=dtype.numpy)
    return flat.reshape(shape, order="F" if _text(order) == "F" else "C").view(_Array)


def _dtype(code: Any, *how: Any) -> _Dtype:
    """In place of `numpy.dtype`, which would also make objects and fields."""
    if not NUMBERS.fullmatch(_text(code)):
        raise pickle.UnpicklingError(f"an array of {_text(code)!r} is not one of plain numbers")
    return _Dtype(_text(code))


def _encode(text: Any, encoding: Any) -> bytes:
    """In place of `_codecs.encode`, with which Python 3 spells bytes for Python 2."""
    if not isinstance(text, str) or _text(encoding) != "latin1":
        raise pickle.UnpicklingError("text in another encoding than latin1")
    return text.encode("latin1")


def _refuse(*args: Any) -> None:
    raise pickle.UnpicklingError("an array is made in an unusual way")


def _text(value: Any) -> str:
    """Text, which a pickle of Python 2 has as bytes."""
    if not isinstance(value, str | bytes):
        raise pickle.UnpicklingError(f"{type(value).__name__} where text is needed")
    return value if isinstance(value, str) else value.decode("latin1")


def _check(shape: Any, dtype: Any, content: Any) -> None:
    if not isinstance(dtype, _Dtype) or not isinstance(content, bytes | bytearray):
        raise pickle.UnpicklingError("an array does not hold plain numbers")
    if not isinstance(shape, tuple) or any(not isinstance(n, int) or n < 0 for n in shape):
        raise pickle.UnpicklingError("the shape of an array is not one")
    if math.prod(shape) * dtype.numpy.itemsize != len(content):
        raise pickle.UnpicklingError(
            f"an array of shape {shape} and type {dtype.numpy} has {len(content)} bytes"
        )


_NDARRAY = _Admitted(_refuse)
"""Stands for the class `numpy.ndarray`, which is named and never called."""

ADMITTED = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Admitted(_dtype),
    ("_codecs", "encode"): _Admitted(_encode),
    # numpy 2 renamed numpy.core; pickles of either are read by either.
    ("numpy.core.multiarray", "_reconstruct"): _Admitted(_empty),
    ("numpy._core.multiarray", "_reconstruct"): _Admitted(_empty),
    ("numpy.core.numeric", "_frombuffer"): _Admitted(_from_buffer),
    ("numpy._core.numeric", "_frombuffer"): _Admitted(_from_buffer),
}

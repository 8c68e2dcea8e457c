"""Readers of data files: idx (MNIST), and the binary and pickled files of CIFAR.

A pickle is a program that can call every function that Python can import. Here it can call four
functions, all in this file, which make arrays of numbers. It can also contain bytes, text, numbers,
lists, tuples and dicts, which need no call.
"""

import gzip
import hashlib
import io
import math
import pickle
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clnp.errors import DataError

GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Published:
    """The name of a file, and its size and MD5 when it is not compressed."""

    name: str
    size: int
    md5: str


def stored(path: Path, published: Published | None = None) -> bytes:
    """Return the bytes of the file, decompressed if they are gzipped.

    The file can differ from the published one, for example be a part of it. But if it has the same
    length and another checksum, it is damaged.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    if content.startswith(GZIP):
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise DataError(f"{path} is a damaged gzip file: {error}. Download it again") from error
    if published is not None and len(content) == published.size:
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != published.md5:
            raise DataError(
                f"{path} is damaged or of another data set: its MD5 is {found}, and that of "
                f"{published.name} is {published.md5}. Download it again"
            )
    return content


BYTES = 0x08
KINDS = {
    BYTES: "bytes",
    0x09: "signed bytes",
    0x0B: "short integers",
    0x0C: "integers",
    0x0D: "floats",
    0x0E: "doubles",
}


def read_idx(path: Path, published: Published | None = None) -> Tensor:
    """Return the array of an idx file, uint8.

    The file has two zeros, the type of the numbers, the number of dimensions, the length of each
    dimension, and the numbers.
    """
    content = stored(path, published)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in KINDS or content[3] == 0:
        raise DataError(
            f"{path} is not an idx file: its first bytes are {content[:4].hex(' ') or 'missing'}"
        )
    if content[2] != BYTES:
        raise DataError(f"{path} is an idx file of {KINDS[content[2]]}; it must be one of bytes")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DataError(f"{path} is truncated: it has no data. Download it again")
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    expected = start + math.prod(shape)
    if len(content) != expected:
        wrong = "truncated" if len(content) < expected else "too long"
        raise DataError(
            f"{path} is {wrong}: it has {len(content)} bytes, and its shape {shape} needs "
            f"{expected}. Download it again"
        )
    return torch.tensor(np.frombuffer(content, dtype=np.uint8)[start:], device="cpu").reshape(shape)


SHAPE = (3, 32, 32)
NUM_PIXELS = 3 * 32 * 32


def read_binary(
    path: Path, published: Published | None = None, *, num_labels: int = 1
) -> tuple[Tensor, Tensor]:
    """Return images, uint8 [N, 3, 32, 32], and labels, int64 [N], of a file of binary records.

    A record is its labels, one byte each, and 3072 bytes of pixels. CIFAR-100 has two labels, of
    which the second, finer one is used.
    """
    content = stored(path, published)
    size = num_labels + NUM_PIXELS
    if len(content) % size:
        raise DataError(
            f"{path} is truncated or of another kind: it has {len(content)} bytes, which is not a "
            f"multiple of {size}. Download it again"
        )
    records = torch.tensor(np.frombuffer(content, dtype=np.uint8), device="cpu").reshape(-1, size)
    images = records[:, num_labels:].reshape(-1, *SHAPE)
    return images.contiguous(), records[:, num_labels - 1].to(torch.int64)


def read_python(
    path: Path, published: Published | None = None, *, labels: str = "labels"
) -> tuple[Tensor, Tensor]:
    """Return images, uint8 [N, 3, 32, 32], and labels, int64 [N], of a pickled dict.

    The dict has the pixels, uint8 [N, 3072], as `data`, and the labels under the key `labels`.
    """
    found = read_pickle(path, published)
    if not isinstance(found, dict):
        raise DataError(f"{path} contains {_described(found)}; it must be a dict")
    pixels, numbers = _entry(path, found, "data"), _entry(path, found, labels)
    if not _is_array(pixels, "u") or pixels.itemsize != 1 or pixels.shape[1:] != (NUM_PIXELS,):
        raise DataError(
            f"{path}: data is {_described(pixels)}; it must be uint8 of shape (N, {NUM_PIXELS})"
        )
    if isinstance(numbers, list) and all(type(n) is int and abs(n) < 2**63 for n in numbers):
        numbers = np.array(numbers, dtype=np.int64)
    if not _is_array(numbers, "iu"):
        raise DataError(f"{path}: {labels} is {_described(numbers)}; it must be integers")
    if numbers.shape != pixels.shape[:1]:
        raise DataError(
            f"{path}: {labels} has shape {numbers.shape} and data {pixels.shape}; there must be "
            "one label for each image"
        )
    images = torch.tensor(np.ascontiguousarray(pixels), device="cpu").reshape(-1, *SHAPE)
    return images, torch.tensor(numbers.astype(np.int64), device="cpu")


def _entry(path: Path, found: dict[Any, Any], key: str) -> Any:
    """Return the value of the key, which Python 2 writes as bytes."""
    for each in (key.encode(), key):
        if each in found:
            return found[each]
    raise DataError(f"{path} has no {key}; it is a file of another kind")


def _is_array(value: Any, kinds: str) -> bool:
    """Whether the value is an array with one of these letters as its `dtype.kind`."""
    return isinstance(value, np.ndarray) and value.dtype.kind in kinds


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    return f"a {type(value).__name__}"


NUMBERS = re.compile(r"b1|[iu][1248]|f[248]")


def read_pickle(path: Path, published: Published | None = None) -> Any:
    """Return the data in a pickle of Python 2 or 3; text of Python 2 is read as bytes."""
    file = io.BytesIO(stored(path, published))
    try:
        found = _Unpickler(file, path).load()
    except DataError:
        raise
    except Exception as error:  # A damaged pickle makes pickle and numpy raise all kinds of errors.
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(
            f"{path} is damaged or not a pickle of plain arrays: {reason}. Download it again"
        ) from error
    if file.read(1):
        raise DataError(f"{path} is longer than its pickle. Download it again")
    return found


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, path: Path) -> None:
        super().__init__(file, encoding="bytes")
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        admitted = ADMITTED.get((module, name))
        if admitted is None:
            raise DataError(
                f"{self.path} refers to {module}.{name}, which could execute code, and was not "
                "read. Download the file from its authors"
            )
        return admitted


class _Admitted:
    """A function that a pickle can call, and nothing else."""

    # Not a dataclass: up to Python 3.11.3, one with slots has a `__setstate__`.
    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __setstate__(self, state: Any) -> None:
        # A pickle could otherwise set attributes, which would outlive it.
        raise pickle.UnpicklingError("a function has no state")


class _Dtype:
    """The type of the numbers of an array, without objects or fields."""

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
    """An array of numbers that a pickle fills."""

    def __setstate__(self, state: Any) -> None:
        version, shape, dtype, fortran, content = state
        _check(shape, dtype, content)
        checked: Any = (version, shape, dtype.numpy, bool(fortran), bytes(content))
        super().__setstate__(checked)


def _empty(subtype: Any, shape: Any, code: Any) -> _Array:
    """Replaces numpy's `_reconstruct`, which makes arrays of any class and size."""
    if subtype is not _NDARRAY:
        raise pickle.UnpicklingError("an array is of another class")
    return _Array((0,), dtype=np.uint8)


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    """Replaces numpy's `_frombuffer`, which protocol 5 uses."""
    _check(shape, dtype, content)
    flat = np.frombuffer(bytes(content), dtype=dtype.numpy)
    return flat.reshape(shape, order="F" if _text(order) == "F" else "C").view(_Array)


def _dtype(code: Any, *how: Any) -> _Dtype:
    """Replaces `numpy.dtype`, which also makes objects and fields."""
    if not NUMBERS.fullmatch(_text(code)):
        raise pickle.UnpicklingError(f"an array of {_text(code)!r} is not one of plain numbers")
    return _Dtype(_text(code))


def _encode(text: Any, encoding: Any) -> bytes:
    """Replaces `_codecs.encode`, with which Python 3 writes bytes for Python 2."""
    if not isinstance(text, str) or _text(encoding) != "latin1":
        raise pickle.UnpicklingError("text in another encoding than latin1")
    return text.encode("latin1")


def _refuse(*args: Any) -> None:
    raise pickle.UnpicklingError("an array is made in an unusual way")


def _text(value: Any) -> str:
    """Return text, which a pickle of Python 2 has as bytes."""
    if not isinstance(value, str | bytes):
        raise pickle.UnpicklingError(f"{type(value).__name__} in place of text")
    return value if isinstance(value, str) else value.decode("latin1")


def _check(shape: Any, dtype: Any, content: Any) -> None:
    if not isinstance(dtype, _Dtype) or not isinstance(content, bytes | bytearray):
        raise pickle.UnpicklingError("an array does not have plain numbers")
    if not isinstance(shape, tuple) or any(not isinstance(n, int) or n < 0 for n in shape):
        raise pickle.UnpicklingError("the shape of an array is not a tuple of integers")
    if math.prod(shape) * dtype.numpy.itemsize != len(content):
        raise pickle.UnpicklingError(
            f"an array of shape {shape} and type {dtype.numpy} has {len(content)} bytes"
        )


_NDARRAY = _Admitted(_refuse)
"""Replaces the class `numpy.ndarray`, which a pickle refers to and does not call."""

ADMITTED = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Admitted(_dtype),
    ("_codecs", "encode"): _Admitted(_encode),
    # numpy 2 renamed numpy.core.
    ("numpy.core.multiarray", "_reconstruct"): _Admitted(_empty),
    ("numpy._core.multiarray", "_reconstruct"): _Admitted(_empty),
    ("numpy.core.numeric", "_frombuffer"): _Admitted(_from_buffer),
    ("numpy._core.numeric", "_frombuffer"): _Admitted(_from_buffer),
}

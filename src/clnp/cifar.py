"""The files of CIFAR-10 and CIFAR-100: their authors' binary records, and pickles for Python."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import DataError
from .stored import Published, stored
from .unpickling import read_pickle

SHAPE = (3, 32, 32)
NUM_PIXELS = 3 * 32 * 32


def read_binary(
    path: Path, published: Published | None = None, *, num_labels: int = 1
) -> tuple[Tensor, Tensor]:
    """Images, uint8 [N, 3, 32, 32], and labels, int64 [N], of a file of binary records.

    A record is its labels, one byte each, and 3072 bytes of pixels. CIFAR-100 has two labels, of
    which the last and finest counts.
    """
    content = stored(path, published)
    size = num_labels + NUM_PIXELS
    if len(content) % size:
        raise DataError(
            f"{path} is truncated or of another kind, get it again: it has {len(content)} bytes, "
            f"which is not a whole number of records of {size}"
        )
    records = torch.tensor(np.frombuffer(content, dtype=np.uint8), device="cpu").reshape(-1, size)
    images = records[:, num_labels:].reshape(-1, *SHAPE)
    return images.contiguous(), records[:, num_labels - 1].to(torch.int64)


def read_python(
    path: Path, published: Published | None = None, *, labels: str = "labels"
) -> tuple[Tensor, Tensor]:
    """Images, uint8 [N, 3, 32, 32], and labels, int64 [N], of a pickled dict.

    Its `data` are the pixels, uint8 [N, 3072], and `labels` says under which key the labels are.
    """
    found = read_pickle(path, published)
    if not isinstance(found, dict):
        raise DataError(f"{path} holds {_described(found)}; a dict is needed")
    pixels, numbers = _entry(path, found, "data"), _entry(path, found, labels)
    if not _is_array(pixels, "u") or pixels.itemsize != 1 or pixels.shape[1:] != (NUM_PIXELS,):
        raise DataError(
            f"{path}: data is {_described(pixels)}; uint8 of shape (N, {NUM_PIXELS}) is needed"
        )
    if isinstance(numbers, list) and all(type(n) is int and abs(n) < 2**63 for n in numbers):
        numbers = np.array(numbers, dtype=np.int64)
    if not _is_array(numbers, "iu"):
        raise DataError(f"{path}: {labels} is {_described(numbers)}; whole numbers are needed")
    if numbers.shape != pixels.shape[:1]:
        raise DataError(
            f"{path}: {labels} has shape {numbers.shape} and data {pixels.shape}; one label is "
            "needed for each image"
        )
    images = torch.tensor(np.ascontiguousarray(pixels), device="cpu").reshape(-1, *SHAPE)
    return images, torch.tensor(numbers.astype(np.int64), device="cpu")


def _entry(path: Path, found: dict[Any, Any], key: str) -> Any:
    """What the dict holds under the key, which Python 2 writes as bytes."""
    for each in (key.encode(), key):
        if each in found:
            return found[each]
    raise DataError(f"{path} has no {key}; it is a file of another kind")


def _is_array(value: Any, kinds: str) -> bool:
    """Whether it is an array of one of the kinds, which are letters of numpy's `dtype.kind`."""
    return isinstance(value, np.ndarray) and value.dtype.kind in kinds


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    return f"a {type(value).__name__}"

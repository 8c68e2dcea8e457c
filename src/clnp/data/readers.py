"""Readers of data files: idx (MNIST), and the binary and pickled files of CIFAR.

A pickle is a program that can call every function that Python can import. Here it is not executed:
its numbers and strings are read in the order in which they are written.
"""

import gzip
import hashlib
import math
import pickletools
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

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


def read_idx(path: Path, published: Published | None = None) -> Tensor:
    """Return the array of an idx file, uint8.

    The file has two zeros, the type of the numbers, the number of dimensions, the length of each
    dimension, and the numbers.
    """
    content = stored(path, published)
    if content[:3] != b"\0\0\x08" or content[3:4] in (b"", b"\0"):
        raise DataError(
            f"{path} is not an idx file of bytes: it begins with "
            f"{content[:4].hex(' ') or 'nothing'}. Download it again"
        )
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
    """Return images, uint8 [N, 3, 32, 32], and labels, int64 [N], of a pickled batch.

    A batch is a dict with an array of the pixels, uint8 [N, 3072], and with lists of integers, of
    which `labels` is the key of the one to read.
    """
    key: str | bytes = ""
    pixels, numbers, before = b"", [], ""
    try:
        for opcode, value, _ in pickletools.genops(stored(path, published)):
            if opcode.name.startswith("BININT") and key == labels:
                numbers.append(value)
            if isinstance(value, str | bytes):
                key = value
                if len(value) >= NUM_PIXELS:  # Python 2 has one type for text and bytes.
                    pixels = value.encode("latin1") if isinstance(value, str) else value
                    if before == "NEWTRUE":
                        raise ValueError("its array is in Fortran order")
            before = opcode.name
    except ValueError as error:
        raise DataError(
            f"{path} is damaged or not a pickled batch: {error}. Download it again"
        ) from error
    if len(pixels) != NUM_PIXELS * len(numbers):
        raise DataError(
            f"{path} has {len(numbers)} {labels} and {len(pixels)} bytes of pixels. It must have "
            f"{NUM_PIXELS} for each label. Download it again"
        )
    images = torch.tensor(np.frombuffer(pixels, dtype=np.uint8), device="cpu")
    return images.reshape(-1, *SHAPE), torch.tensor(numbers, dtype=torch.int64, device="cpu")

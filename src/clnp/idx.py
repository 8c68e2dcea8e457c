"""idx files, in which MNIST and Fashion-MNIST are published."""

import math
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .errors import DataError
from .stored import Published, stored

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
    """The bytes in an idx file, gzipped or not, in the shape that it says: uint8.

    Two zeros, the kind of number, how many axes; the length of each; then the numbers.
    """
    content = stored(path, published)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in KINDS or content[3] == 0:
        raise DataError(
            f"{path} is not an idx file: it begins with the bytes {content[:4].hex(' ') or 'none'}"
        )
    if content[2] != BYTES:
        raise DataError(f"{path} is an idx file of {KINDS[content[2]]}; one of bytes is needed")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DataError(f"{path} is truncated, get it again: it ends before its data begin")
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    expected = start + math.prod(shape)
    if len(content) != expected:
        wrong = "truncated" if len(content) < expected else "too long"
        raise DataError(
            f"{path} is {wrong}, get it again: it has {len(content)} bytes, and {expected} are "
            f"needed for the shape {shape} that it says"
        )
    return torch.tensor(np.frombuffer(content, dtype=np.uint8)[start:], device="cpu").reshape(shape)

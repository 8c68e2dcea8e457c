"""Hashes of all that an ended task reads: the proof that it has not changed."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from clnp.core.layers.ledger import Row
from clnp.errors import ForgettingError
from clnp.plain import to_plain


@dataclass(frozen=True)
class Certificate:
    """SHA-256 of every tensor that an ended task reads, and a digest of those and its row."""

    task: str
    digest: str
    tensors: Mapping[str, str]

    def check(self, now: "Certificate") -> None:
        """Raise a `ForgettingError` that names task and tensor unless `now` is the same."""
        changed = [n for n, digest in self.tensors.items() if now.tensors.get(n) != digest]
        if changed or now.digest != self.digest:
            what = changed[0] if changed else "its row of the ledger"
            raise ForgettingError(
                f"task {self.task!r} has changed: {what} is not what it was when the task ended. "
                "Load a checkpoint from before the change"
            )


def certify(row: Row, tensors: Mapping[str, Tensor]) -> Certificate:
    """Return the certificate of a task whose inference reads exactly `tensors`."""
    hashes = {name: digest_of(tensor) for name, tensor in tensors.items()}
    text = json.dumps({**to_plain(row), "tensors": hashes}, sort_keys=True, separators=(",", ":"))
    return Certificate(row.task, hashlib.sha256(text.encode()).hexdigest(), hashes)


def digest_of(tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's dtype, shape and bytes, whatever its device and strides."""
    found = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}\n".encode())
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    found.update(data.data)  # Not a copy: that of a large tensor counts.
    return found.hexdigest()

"""What an ended task reads, hashed: the proof that it cannot have changed."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clnp.core.layers.ledger import Row
from clnp.errors import ForgettingError


@dataclass(frozen=True)
class Certificate:
    """SHA-256 of every tensor that an ended task reads, and one digest over those and its row."""

    task: str
    digest: str
    tensors: Mapping[str, str]

    def check(self, now: "Certificate") -> None:
        """Raise a `ForgettingError` that names task and tensor unless `now` is the same."""
        for name, digest in self.tensors.items():
            if now.tensors.get(name) != digest:
                raise ForgettingError(
                    f"task {self.task!r} has changed: {name} is no longer what was frozen when the "
                    "task ended. Load a checkpoint from before the change"
                )
        if now.digest != self.digest:
            raise ForgettingError(
                f"task {self.task!r} has changed: its row of the ledger is no longer what was "
                "recorded when the task ended. Load a checkpoint from before the change"
            )

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries that `from_json` reads back."""
        return {"task": self.task, "digest": self.digest, "tensors": dict(self.tensors)}

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> "Certificate":
        """The certificate that `to_json` wrote."""
        return Certificate(record["task"], record["digest"], record["tensors"])


def certify(row: Row, tensors: Mapping[str, Tensor]) -> Certificate:
    """The certificate of a task whose inference reads exactly `tensors`."""
    hashes = {name: digest_of(tensor) for name, tensor in tensors.items()}
    record = {
        "task": row.task,
        "widths": dict(row.widths),
        "reused": dict(row.reused),
        "tensors": hashes,
    }
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return Certificate(row.task, hashlib.sha256(text.encode()).hexdigest(), hashes)


def digest_of(tensor: Tensor) -> str:
    """SHA-256 of a tensor's dtype, shape and bytes; device and strides do not matter."""
    found = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}\n".encode())
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    found.update(data.data)  # Not a copy: that of a large tensor counts.
    return found.hexdigest()

"""Everything about a network but its tensors and its model's code.

`Description` says what a model is made of, `OpenState` holds a copy of the open task, and a
`Certificate` proves that what an ended task reads has not changed.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from clnp.core.layers.ledger import Ledger, OpenTask, Row
from clnp.core.structure.graph import Graph
from clnp.errors import CheckpointError, ForgettingError

_LONGEST = 200
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_NORMALISING = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class Description:
    """Class and settings of each module, and the plain attributes of those that are a user's own.

    It is for weights to be put into a network: what drops out may do so at another rate, and dtypes
    may differ. In a run, which `likeness.describe_model` is for, neither may.
    """

    modules: Mapping[str, str]
    attributes: Mapping[str, str]

    @staticmethod
    def of(model: nn.Module) -> "Description":
        """That of the model as it is now."""
        modules = {
            path or "(model)": type(module).__name__
            if "drop" in type(module).__name__.lower()
            else kind_of(module)
            for path, module in model.named_modules()
        }
        attributes = {
            f"{path}.{name}".lstrip("."): repr(value)
            for path, module in model.named_modules()
            if not type(module).__module__.startswith("torch.")
            for name, value in vars(module).items()
            if name not in _OF_EVERY_MODULE and _is_plain(value)
        }
        return Description(modules, attributes)

    def difference(self, model: nn.Module) -> str | None:
        """Where a module of `model` is another, in one sentence."""
        found = Description.of(model).modules
        for path in (*self.modules, *found):
            here, there = found.get(path, "nothing"), self.modules.get(path, "nothing")
            if here != there:
                return f"{path} is {here}, expected {there}"
        return None

    def warn(self, model: nn.Module, where: str) -> None:
        """Tell of attributes of `model` that are others: forward may read them, or never do so."""
        found = Description.of(model).attributes
        for name, there in self.attributes.items():
            here = found.get(name, "nothing")
            if here != there:
                warnings.warn(
                    f"{where} was made from a model whose {name} is {there}, and here it is "
                    f"{here}. If forward reads it, ended tasks answer otherwise",
                    stacklevel=4,  # Of those who call `ContinualNet.load`, which is decorated.
                )

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries that `from_json` reads back."""
        return {"modules": dict(self.modules), "attributes": dict(self.attributes)}

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> "Description":
        """The description that `to_json` wrote."""
        return Description(fields["modules"], fields["attributes"])


def kind_of(module: nn.Module) -> str:
    """Its class and settings: the same words in all versions of PyTorch."""
    told = module.extra_repr()
    if isinstance(module, _NORMALISING):
        # Some versions say whether there is a bias, and some do not.
        told = re.sub(r", bias=\w+", "", told)
        told += ", bias=False" if module.weight is not None and module.bias is None else ""
    return f"{type(module).__name__}({told})"


def _is_plain(value: object) -> bool:
    """Whether it is a number or a text, or a few of them: what a model is often told to be."""
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value)) and len(repr(value)) <= _LONGEST
    return isinstance(value, bool | int | float | str) and len(repr(value)) <= _LONGEST


@dataclass(frozen=True)
class OpenState:
    """A copy of an open task: who it is, how many neurons of each group it has, its tensors.

    `frozen` are the neurons of earlier tasks, by group, which it reads.
    """

    task: OpenTask
    free: Mapping[str, int]
    frozen: Mapping[str, int]
    tensors: Mapping[str, Tensor] = field(repr=False)

    def to_state(self) -> dict[str, Any]:
        """Plain dictionaries and tensors that `from_state` reads back."""
        return {
            "task": asdict(self.task),
            "free": dict(self.free),
            "frozen": dict(self.frozen),
            "tensors": dict(self.tensors),
        }

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> "OpenState":
        """The copy that `to_state` described."""
        return OpenState(**{**state, "task": OpenTask(**state["task"])})


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


FORMAT = "clnp"
VERSION = 1


@dataclass(frozen=True)
class Record:
    """Everything about a network but its tensors and its model's code."""

    graph: Graph
    head: str
    description: Description
    ledger: Ledger
    certificates: tuple[Certificate, ...]
    num_outputs: tuple[int, ...]
    open_task: OpenTask | None
    open_free: Mapping[str, int]
    attached: Any = None
    """What the user stores with the network: nested dictionaries, lists, numbers and tensors."""


def identity(record: Record) -> Tensor:
    """Ledger, open task and certificates as bytes: what two networks with equal tensors share."""
    known = {
        "ledger": record.ledger.to_json(),
        "open": [record.open_task and record.open_task.name, dict(record.open_free)],
        "digests": [certificate.digest for certificate in record.certificates],
    }
    text = json.dumps(known, sort_keys=True).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _metadata(path: str | PathLike[str], data: bytes) -> dict[str, str]:
    """The metadata of a safetensors file, after a check that it is whole and made by clnp."""
    foreign = CheckpointError(f"{path} is not a clnp checkpoint")
    size = int.from_bytes(data[:8], "little")
    if len(data) < 9 or data[8:9] != b"{":
        raise foreign
    if len(data) < 8 + size:
        raise CheckpointError(
            f"{path} is truncated: its header ends after {8 + size} bytes, "
            f"the file after {len(data)}"
        )
    try:
        header = json.loads(data[8 : 8 + size])
        metadata: dict[str, str] = header.pop("__metadata__", {})
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise CheckpointError(f"{path} is corrupted: its header cannot be read") from None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise foreign
    if metadata.get("version") != str(VERSION):
        raise CheckpointError(
            f"{path} has format version {metadata.get('version')}, this clnp reads {VERSION}; "
            "use the clnp that wrote it"
        )
    if len(data) != 8 + size + end:
        what = "truncated" if len(data) < 8 + size + end else "corrupted"
        raise CheckpointError(f"{path} is {what}: {len(data)} bytes, expected {8 + size + end}")
    return metadata


def _graph_to_json(graph: Graph) -> dict[str, Any]:
    return {
        "groups": dict(graph.groups),
        "sites": [
            {
                "path": site.path,
                "kind": site.kind,
                "rows": [[s.group, s.size, s.span] for s in site.rows],
                "columns": [[s.group, s.size, s.span] for s in site.columns],
            }
            for site in graph.sites.values()
        ],
        "classifier": graph.classifier,
        "constants": list(graph.constants),
        "num_inputs": graph.num_inputs,
    }

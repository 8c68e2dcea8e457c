"""Everything about a network but its tensors and its model's code.

`Description` says what a model is made of, `OpenState` holds a copy of the open task, and `Record`
is what a network is rebuilt from.
"""

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from clnp.core.layers.ledger import Ledger, OpenTask
from clnp.core.structure.graph import Graph

from .certificate import Certificate

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
                    stacklevel=3,  # The line that calls `clnp.load`.
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

"""Records of a network.

`Description` says what a model is made of, `OpenState` is a copy of the open task, and `Record` is
all that a network is rebuilt from but its tensors and the code of its model.
"""

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from clnp.core.layers.ledger import Ledger, OpenTask
from clnp.core.structure.graph import Graph
from clnp.plain import to_plain

from .certificate import Certificate

_LONGEST = 200
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_NORMALISING = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class Description:
    """Class and settings of each module, and the plain attributes of a user's own modules.

    It tells whether weights fit a network: rates of dropout and dtypes may differ. In a run they
    may not, see `clnp.runs.fingerprint`.
    """

    modules: Mapping[str, str]
    attributes: Mapping[str, str]

    @staticmethod
    def of(model: nn.Module) -> "Description":
        """Describe the model as it is now."""
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
        """Return the first difference to the modules of `model`, or None."""
        found = Description.of(model).modules
        for path in (*self.modules, *found):
            here, there = found.get(path, "nothing"), self.modules.get(path, "nothing")
            if here != there:
                return f"{path} is {here}, expected {there}"
        return None

    def warn(self, model: nn.Module, where: str) -> None:
        """Warn of attributes of `model` that differ: forward may read them."""
        found = Description.of(model).attributes
        for name, there in self.attributes.items():
            here = found.get(name, "nothing")
            if here != there:
                warnings.warn(
                    f"{where} was made from a model whose {name} is {there}, and here it is "
                    f"{here}. If forward reads it, the outputs of ended tasks differ",
                    stacklevel=3,  # The line that calls `clnp.load`.
                )


def kind_of(module: nn.Module) -> str:
    """Return class and settings of a module, in the same words in all versions of PyTorch."""
    text = module.extra_repr()
    if isinstance(module, _NORMALISING):
        # Some versions say whether there is a bias, and some do not.
        text = re.sub(r", bias=\w+", "", text)
        text += ", bias=False" if module.weight is not None and module.bias is None else ""
    return f"{type(module).__name__}({text})"


def _is_plain(value: object) -> bool:
    """Whether the value is a number or a text, or a few of them."""
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value)) and len(repr(value)) <= _LONGEST
    return isinstance(value, bool | int | float | str) and len(repr(value)) <= _LONGEST


@dataclass(frozen=True)
class OpenState:
    """A copy of an open task.

    Attributes:
        task: Its name and outputs.
        free: The neurons of each group that it has.
        frozen: The neurons of earlier tasks, by group, which it reads.
        tensors: All that it may change, by name.
    """

    task: OpenTask
    free: Mapping[str, int]
    frozen: Mapping[str, int]
    tensors: Mapping[str, Tensor] = field(repr=False)

    def to_state(self) -> dict[str, Any]:
        """Return plain dictionaries and tensors that `from_state` reads."""
        state: dict[str, Any] = to_plain(self)
        return state

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> "OpenState":
        """Return the copy that `to_state` described."""
        return OpenState(**{**state, "task": OpenTask(**state["task"])})


@dataclass(frozen=True)
class Record:
    """All about a network but its tensors and the code of its model."""

    graph: Graph
    head: str
    description: Description
    ledger: Ledger
    certificates: tuple[Certificate, ...]
    num_outputs: tuple[int, ...]
    open_task: OpenTask | None
    open_free: Mapping[str, int]
    attached: Any = None
    """Data of the user: nested dictionaries, lists, numbers and tensors."""


def identity(record: Record) -> Tensor:
    """Return ledger, open task and certificates as bytes, to tell networks apart."""
    known = {
        "ledger": to_plain(record.ledger),
        "open": [record.open_task and record.open_task.name, dict(record.open_free)],
        "digests": [certificate.digest for certificate in record.certificates],
    }
    text = json.dumps(known, sort_keys=True).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)

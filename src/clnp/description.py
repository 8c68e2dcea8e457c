"""What a model is made of, to tell whether another one can take its place."""

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

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

"""Copies of a model that hold other layers, and layers with a class of ours in front of theirs.

The model that is given never changes.
"""

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from .kinds import known_kind, plain_layer


def with_layers(model: nn.Module, layers: Mapping[str, nn.Module]) -> nn.Module:
    """Return a deep copy of `model` with `layers[path]` in place of its own layer at `path`.

    Every reference to a layer follows, from lists and plain attributes too.
    """
    memo: dict[int, Any] = {id(model.get_submodule(path)): layer for path, layer in layers.items()}
    return copy.deepcopy(model, memo)


def in_front_of(mixin: type[nn.Module], layer: nn.Module) -> nn.Module:
    """Return an instance of `mixin` and of the layer's class, with its settings but no tensors.

    It passes every `isinstance` test that the layer passes; attributes of `mixin` come first.
    Attributes that a user set on the layer wait for `give_back`.
    """
    made = rebuilt(mixin, type(layer))
    # Copies of the dictionaries of hooks: a hook that is added to one is not in the other.
    settings = {k: copy.copy(v) if isinstance(v, dict) else v for k, v in vars(layer).items()}
    usual = dir(plain_layer(layer, num_outputs=1, num_inputs=1))
    given = {name: value for name, value in settings.items() if name not in usual}
    made.__dict__.update({n: value for n, value in settings.items() if n in usual}, _given=given)
    made.__dict__.update(_parameters={}, _buffers={}, _non_persistent_buffers_set=set())
    return made


def give_back(made: nn.Module) -> list[str]:
    """Set the user's attributes on a layer that has been set up, unless some names are taken.

    Return the names that are taken.
    """
    mixin, layer_class = type(made).__bases__
    ours = set(dir(mixin)) - set(dir(nn.Module))
    own = {*ours, *vars(made), *made._parameters, *made._buffers}
    given: Mapping[str, Any] = vars(made)["_given"]
    taken = [name for name in given if name in own]
    taken += sorted((set(dir(layer_class)) - set(dir(known_kind(made).layer_class))) & ours)
    if not taken:
        made.__dict__.update(given)
    return taken


def original(made: nn.Module, plain: nn.Module) -> nn.Module:
    """Return `plain` as an instance of the user's class, with the attributes that users set."""
    plain.__class__ = type(made).__bases__[1]
    plain.__dict__.update({name: copy.copy(v) for name, v in vars(made)["_given"].items()})
    return plain


def rebuilt(mixin: type[nn.Module], layer_class: type[nn.Module]) -> nn.Module:
    """Return an empty instance of the class that `in_front_of` makes, for copies and pickles."""
    if (mixin, layer_class) not in _combined:
        name = f"{mixin.__name__}{layer_class.__name__}"
        _combined[mixin, layer_class] = type(name, (mixin, layer_class), {"__module__": __name__})
    made = _combined[mixin, layer_class]
    return made.__new__(made)


_combined: dict[tuple[type[nn.Module], type[nn.Module]], type[nn.Module]] = {}

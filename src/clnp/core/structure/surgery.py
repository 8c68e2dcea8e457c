"""Copies of a model that hold other layers, and layers with a class of ours in front of theirs.

The model that is given is never touched.
"""

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from .kinds import known_kind, plain_layer


def with_layers(model: nn.Module, layers: Mapping[str, nn.Module]) -> nn.Module:
    """A deep copy of `model` that holds `layers[path]` wherever it holds its own layer at `path`.

    Every reference to a layer follows, from lists and plain attributes too.
    """
    memo: dict[int, Any] = {id(model.get_submodule(path)): layer for path, layer in layers.items()}
    return copy.deepcopy(model, memo)


def in_front_of(mixin: type[nn.Module], layer: nn.Module) -> nn.Module:
    """An instance of `mixin` and of the layer's own class, with its settings and without tensors.

    It passes every `isinstance` test that the layer passes; what `mixin` defines comes first. What
    a user gave to the layer waits for `give_back`.
    """
    made = rebuilt(mixin, type(layer))
    # Dictionaries of hooks must not be the layer's own: what is added to one is not in the other.
    settings = {k: copy.copy(v) if isinstance(v, dict) else v for k, v in vars(layer).items()}
    usual = dir(plain_layer(layer, num_outputs=1, num_inputs=1))
    given = {name: value for name, value in settings.items() if name not in usual}
    made.__dict__.update({n: value for n, value in settings.items() if n in usual}, _given=given)
    made.__dict__.update(_parameters={}, _buffers={}, _non_persistent_buffers_set=set())
    return made


def give_back(made: nn.Module) -> list[str]:
    """Give to a layer that has been set up what a user gave to the one that it was made from.

    The names that are taken; then nothing is given.
    """
    mixin, kind = type(made).__bases__
    ours = set(dir(mixin)) - set(dir(nn.Module))
    own = {*ours, *vars(made), *made._parameters, *made._buffers}
    given: Mapping[str, Any] = vars(made)["_given"]
    taken = [name for name in given if name in own]
    taken += sorted((set(dir(kind)) - set(dir(known_kind(made).layer_class))) & ours)
    if not taken:
        made.__dict__.update(given)
    return taken


def original(made: nn.Module, plain: nn.Module) -> nn.Module:
    """`plain` as an instance of the class that `made` stands in front of, with what users gave."""
    plain.__class__ = type(made).__bases__[1]
    plain.__dict__.update({name: copy.copy(v) for name, v in vars(made)["_given"].items()})
    return plain


def rebuilt(mixin: type[nn.Module], kind: type[nn.Module]) -> nn.Module:
    """An empty instance of the class that `in_front_of` makes: where copies and pickles start."""
    if (mixin, kind) not in _combined:
        name = f"{mixin.__name__}{kind.__name__}"
        _combined[mixin, kind] = type(name, (mixin, kind), {"__module__": __name__})
    made = _combined[mixin, kind]
    return made.__new__(made)


_combined: dict[tuple[type[nn.Module], type[nn.Module]], type[nn.Module]] = {}

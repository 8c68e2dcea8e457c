"""Plain PyTorch layers of other widths, and copies of a model that hold them.

The model that is given is never touched.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
SUPPORTED = (nn.Linear, *CONVOLUTIONS, *NORMS, nn.PReLU)


def plain_class(layer: nn.Module) -> type[nn.Module]:
    """The PyTorch class that `layer` is an instance of, of those that can be sliced by neuron."""
    for kind in SUPPORTED:
        if isinstance(layer, kind):
            return kind
    raise TypeError(f"{type(layer).__name__} cannot be sliced by neuron")


def is_mixing(layer: nn.Module) -> bool:
    """Whether the layer computes new neurons from all of its inputs: Linear or full convolution."""
    return isinstance(layer, nn.Linear) or (
        isinstance(layer, CONVOLUTIONS) and not is_depthwise(layer)
    )


def is_depthwise(layer: nn.Module) -> bool:
    """Whether the layer is a convolution with one filter for each channel."""
    return (
        isinstance(layer, CONVOLUTIONS)
        and layer.groups > 1
        and layer.groups == layer.in_channels == layer.out_channels
    )


def plain_layer(layer: nn.Module, *, num_outputs: int, num_inputs: int) -> nn.Module:
    """An uninitialised layer of `layer`'s PyTorch class and settings, of other widths.

    `num_inputs` counts for Linear and full convolutions only: the others have as many inputs as
    outputs. Device and dtype are those of `layer.weight`, or of its running mean.
    """
    kind: Any = plain_class(layer)
    like: torch.Tensor = layer.weight if layer.weight is not None else layer.running_mean  # type: ignore[assignment]
    where: dict[str, Any] = {"device": like.device, "dtype": like.dtype}
    made: nn.Module
    if isinstance(layer, nn.Linear):
        made = _empty(kind, num_inputs, num_outputs, bias=layer.bias is not None, **where)
    elif isinstance(layer, CONVOLUTIONS):
        depthwise = is_depthwise(layer)
        made = _empty(
            kind,
            num_outputs if depthwise else num_inputs,
            num_outputs,
            kernel_size=layer.kernel_size,
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            groups=num_outputs if depthwise else 1,
            bias=layer.bias is not None,
            padding_mode=layer.padding_mode,
            **where,
        )
    elif isinstance(layer, NORMS):
        # Only newer versions of PyTorch know of the word.
        bias: dict[str, Any] = {"bias": False} if layer.affine and layer.bias is None else {}
        settings = {"eps": layer.eps, "momentum": layer.momentum, "affine": layer.affine, **bias}
        made = kind(num_outputs, **settings, **where)
    else:
        made = _empty(kind, num_outputs, **where)
    made.train(layer.training)
    return made


def _empty(kind: Any, *sizes: int, device: Any, dtype: torch.dtype, **options: Any) -> nn.Module:
    """A layer whose tensors hold anything at all.

    That is `torch.nn.utils.skip_init`, which would import a second's worth of PyTorch for it.
    """
    made: nn.Module = kind(*sizes, device="meta", dtype=dtype, **options)
    for name, parameter in made.named_parameters():
        empty = torch.empty(parameter.shape, dtype=dtype, device=device)
        setattr(made, name, nn.Parameter(empty))
    return made


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
    taken += sorted((set(dir(kind)) - set(dir(plain_class(made)))) & ours)
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

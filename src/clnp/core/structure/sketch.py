"""Sketch a model: a copy whose layers give outputs of the right shape, and compute nothing.

To follow the neurons, discovery needs shapes and the path of the forward pass. Layers take most of
the time and memory of a pass, so it runs sketches until nothing but numbers is left to check.
"""

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .inputs import imitate, tensors_in
from .kinds import kind_of, known_kind, plain_layer


@dataclass
class Sketcher:
    """Makes sketches of a model, whose layers at `paths` compute nothing.

    Whatever runs outside of these layers runs as it is, on parameters of zeros.
    """

    model: nn.Module
    paths: Collection[str]
    _known: dict[str, Any] = field(default_factory=dict)

    def sketch(self, layers: Mapping[str, nn.Module] | None = None) -> nn.Module:
        """Return a new sketch; `layers[path]`, if given, takes the place of the layer at `path`."""
        own = {id(self.model.get_submodule(path)): each for path, each in (layers or {}).items()}
        parameters = (p for each in (self.model, *own.values()) for p in each.parameters())
        memo: dict[int, Any] = {id(each): _blank(each) for each in parameters}
        made = copy.deepcopy(self.model, memo | own)
        for path in self.paths:
            layer = made.get_submodule(path)
            if "forward" not in vars(layer) and not isinstance(layer, torch.jit.ScriptModule):
                layer.__dict__["forward"] = partial(self._outline, path, layer)
        return made

    def _outline(self, path: str, layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of a layer with one value everywhere, which depends on its input."""

        def filled(like: Tensor) -> Tensor:
            if not like.is_floating_point():
                return torch.ones(like.shape, dtype=like.dtype, device=x.device)
            value = 1 + float(x.detach().mean()) if x.is_floating_point() else 1.0
            full = torch.full(like.shape, value, dtype=like.dtype, device=x.device)
            return full.requires_grad_().clone() if torch.is_grad_enabled() else full

        try:
            x = tensors_in((args, kwargs))[0]
            forms = imitate((args, dict(kwargs)), _form)
            key = repr((path, layer.training, forms, list(map(_form, layer.parameters()))))
            if key not in self._known:
                run = _shape if kind_of(layer) else _shapes
                self._known[key] = run(layer, args, kwargs)
            outputs = imitate(self._known[key], filled)
            if all(each.device == x.device for each in tensors_in(outputs)):
                return outputs
        except Exception:
            pass
        # The layer itself raises the error to report, or returns what cannot be imitated.
        return type(layer).forward(layer, *args, **kwargs)


def _form(tensor: Tensor) -> Any:
    return tuple(tensor.shape), tensor.dtype, tensor.device


def _blank(parameter: Tensor) -> nn.Parameter:
    """Return zeros of the same form, which take no memory of the host until they are read."""
    if parameter.device.type == "cpu":
        stored = np.zeros(parameter.numel() * parameter.element_size(), np.uint8)
        zeros = torch.from_numpy(stored).view(parameter.dtype).view(parameter.shape)
    else:
        zeros = torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)
    return nn.Parameter(zeros, requires_grad=parameter.requires_grad)


@torch.no_grad()
def _shape(layer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Return the shape of a known layer's output, from a layer of one neuron on one column."""
    kind = known_kind(layer)
    dim, num_rows = kind.neuron_dim, len(getattr(layer, kind.slots_of(layer)[0].name))
    [x] = tensors_in((args, kwargs))
    if x.shape[dim] != (layer.weight.shape[1] if kind.mixes else num_rows):
        raise ValueError(f"{num_rows} neurons do not fit {x.shape}")
    small = plain_layer(layer, num_outputs=1, num_inputs=1)
    args, kwargs = imitate((args, dict(kwargs)), lambda t: t.narrow(dim, 0, 1))
    result: Tensor = small(*args, **kwargs)
    shape = list(result.shape)
    shape[dim] = num_rows
    return torch.empty(shape, dtype=result.dtype, device="meta")


@torch.no_grad()
def _shapes(layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the shapes of any layer's outputs, from a copy without storage."""

    def meta(tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    memo: dict[int, Any] = {id(each): meta(each) for each in layer.buffers()}
    memo |= {id(each): nn.Parameter(meta(each), False) for each in layer.parameters()}
    memo[id(vars(layer)["forward"])] = None  # It would be copied with the whole model.
    twin = copy.deepcopy(layer, memo)
    args, kwargs = imitate((args, dict(kwargs)), meta)
    return type(layer).forward(twin, *args, **kwargs)

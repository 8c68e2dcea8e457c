"""The kinds of layers that can be sliced by neuron: one table, read by discovery and every pass.

An entry says which tensors a layer has and along which dimensions their rows (the neurons that the
layer makes) and columns (those that it reads) lie, the operation that uses them, how a layer of
another width is built, and what rules a layer out. A new kind is one entry in `KINDS` and its test.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Fault = tuple[str, str]
"""What rules a layer out, and what to do about it."""


@dataclass(frozen=True)
class Slot:
    """One tensor of a layer; its rows lie along dimension 0.

    Attributes:
        name: The attribute of the layer.
        has_columns: Whether dimension 1 has an entry for each neuron that the layer reads.
        trained: Whether it is a Parameter, and not a running statistic.
        dead: Its value in a row that stands in for no neuron.
        spread, middle: The range of random values that keep signals alive, to test a model with;
            a spread of None depends on the number of inputs.
    """

    name: str
    has_columns: bool = False
    trained: bool = True
    dead: float = 0.0
    spread: float | None = 0.1
    middle: float = 0.0


@dataclass(frozen=True)
class Kind:
    """How the layers of one PyTorch class are sliced by neuron.

    Attributes:
        name: The name of the kind, which checkpoints store.
        layer_class: The PyTorch class.
        slots: The tensors of a layer. A layer may lack some, its bias for example.
        run: The operation: `run(layer, x, tensors)` in evaluation mode.
        build: `build(layer, num_outputs, num_inputs, where)` makes a layer with the same settings
            and other widths, on a device and in a dtype, whose tensors hold anything.
        sizes: The attributes that hold its widths.
        mixes: Whether it computes new neurons from all that it reads, and does not act on each
            neuron by itself.
        neuron_dim: The dimension of its input along which neurons lie.
        matches: Which layers of the class are of this kind.
        fault: What rules out a layer of this kind, if anything does.
        penalised: Whether L1 penalises its weight, and methods that prune single weights prune it.
        keeps_statistics: Whether it normalises with running statistics.
    """

    name: str
    layer_class: type[nn.Module]
    slots: tuple[Slot, ...]
    run: Callable[[Any, Tensor, Mapping[str, Tensor]], Tensor]
    build: Callable[[Any, int, int, dict[str, Any]], nn.Module]
    sizes: tuple[str, ...]
    mixes: bool = True
    neuron_dim: int = 1
    matches: Callable[[Any], bool] = lambda layer: True
    fault: Callable[[Any], Fault | None] = lambda layer: None
    penalised: bool = True
    keeps_statistics: bool = False

    def slots_of(self, layer: nn.Module) -> tuple[Slot, ...]:
        """Return the slots whose tensors the layer has."""
        return tuple(slot for slot in self.slots if getattr(layer, slot.name, None) is not None)

    def num_spatial_dims(self, layer: nn.Module) -> int | None:
        """Return how many dimensions follow the channels, or None for any number."""
        kernel = getattr(layer, "kernel_size", None)
        return None if kernel is None else len(kernel)


def kind_of(layer: nn.Module) -> Kind | None:
    """Return the kind of a layer, or None for a module that is not in the table."""
    for kind in KINDS.values():
        if isinstance(layer, kind.layer_class) and kind.matches(layer):
            return kind
    return None


def known_kind(layer: nn.Module) -> Kind:
    """Return the kind of a layer that is in the table."""
    kind = kind_of(layer)
    if kind is None:
        raise TypeError(f"{type(layer).__name__} cannot be sliced by neuron")
    return kind


def is_mixing(module: nn.Module) -> bool:
    """Whether a module is a layer that computes new neurons from all that it reads."""
    kind = kind_of(module)
    return kind is not None and kind.mixes


def keeps_statistics(module: nn.Module) -> bool:
    """Whether a module is a layer that normalises with running statistics."""
    kind = kind_of(module)
    return kind is not None and kind.keeps_statistics


def plain_layer(layer: nn.Module, *, num_outputs: int, num_inputs: int) -> nn.Module:
    """Build an uninitialised layer of `layer`'s PyTorch class and settings, of other widths.

    `num_inputs` counts for mixing layers only: the others have as many inputs as outputs. Device
    and dtype are those of `layer.weight`, or of its running mean.
    """
    like: Any = layer.weight if layer.weight is not None else layer.running_mean
    where = {"device": like.device, "dtype": like.dtype}
    made = known_kind(layer).build(layer, num_outputs, num_inputs, where)
    made.train(layer.training)
    return made


def _empty(layer_class: Any, *sizes: int, device: Any, dtype: Any, **options: Any) -> nn.Module:
    """Build a layer whose tensors hold anything.

    That is `torch.nn.utils.skip_init`, which would import a second's worth of PyTorch for it.
    """
    made: nn.Module = layer_class(*sizes, device="meta", dtype=dtype, **options)
    for name, parameter in made.named_parameters():
        empty = torch.empty(parameter.shape, dtype=dtype, device=device)
        setattr(made, name, nn.Parameter(empty))
    return made


def _run_linear(layer: Any, x: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    return F.linear(x, tensors["weight"], tensors.get("bias"))


def _build_linear(layer: Any, outputs: int, inputs: int, where: dict[str, Any]) -> nn.Module:
    return _empty(nn.Linear, inputs, outputs, bias=layer.bias is not None, **where)


LINEAR = Kind(
    "Linear",
    nn.Linear,
    slots=(Slot("weight", has_columns=True, spread=None), Slot("bias")),
    run=_run_linear,
    build=_build_linear,
    sizes=("in_features", "out_features"),
    neuron_dim=-1,
)


def is_depthwise(layer: Any) -> bool:
    """Whether a convolution has one filter for each channel."""
    return bool(layer.groups > 1 and layer.groups == layer.in_channels == layer.out_channels)


def _convolution(layer_class: Any, function: Callable[..., Tensor]) -> tuple[Kind, Kind]:
    """The full convolutions of a class, which mix channels, and the depthwise ones."""

    def run(layer: Any, x: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        padding = layer.padding
        if layer.padding_mode != "zeros":
            x = F.pad(x, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
            padding = 0
        weight, bias = tensors["weight"], tensors.get("bias")
        groups = 1 if layer.groups == 1 else len(weight)
        return function(x, weight, bias, layer.stride, padding, layer.dilation, groups)

    def build(layer: Any, outputs: int, inputs: int, where: dict[str, Any]) -> nn.Module:
        depthwise = is_depthwise(layer)
        return _empty(
            layer_class,
            outputs if depthwise else inputs,
            outputs,
            kernel_size=layer.kernel_size,
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            groups=outputs if depthwise else 1,
            bias=layer.bias is not None,
            padding_mode=layer.padding_mode,
            **where,
        )

    def fault(layer: Any) -> Fault | None:
        if layer.groups == 1:
            return None
        return (
            f"is a grouped convolution ({layer.in_channels} to {layer.out_channels} channels in "
            f"{layer.groups} groups)",
            "Use groups=1, or groups equal to both the input and the output channels",
        )

    name, sizes = layer_class.__name__, ("in_channels", "out_channels")
    full = Kind(
        name,
        layer_class,
        slots=(Slot("weight", has_columns=True, spread=None), Slot("bias")),
        run=run,
        build=build,
        sizes=sizes,
        matches=lambda layer: not is_depthwise(layer),
        fault=fault,
    )
    depthwise = Kind(
        f"Depthwise{name}",
        layer_class,
        slots=(Slot("weight", spread=None), Slot("bias")),
        run=run,
        build=build,
        sizes=sizes,
        mixes=False,
        matches=is_depthwise,
    )
    return full, depthwise


def _batch_norm(layer_class: Any) -> Kind:
    def run(layer: Any, x: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        mean, variance = tensors["running_mean"], tensors["running_var"]
        weight, bias = tensors.get("weight"), tensors.get("bias")
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, layer.eps)

    def build(layer: Any, outputs: int, inputs: int, where: dict[str, Any]) -> nn.Module:
        # Only newer versions of PyTorch know of the word.
        bias = {"bias": False} if layer.affine and layer.bias is None else {}
        settings = {"eps": layer.eps, "momentum": layer.momentum, "affine": layer.affine, **bias}
        made: nn.Module = layer_class(outputs, **settings, **where)
        return made

    def fault(layer: Any) -> Fault | None:
        if layer.running_mean is not None:
            return None
        return (
            "has track_running_stats=False: an ended task would depend on its batch",
            "Use track_running_stats=True",
        )

    return Kind(
        layer_class.__name__,
        layer_class,
        slots=(
            Slot("weight", spread=0.3, middle=1.0),
            Slot("bias", spread=0.3),
            Slot("running_mean", trained=False, spread=0.3),
            Slot("running_var", trained=False, dead=1.0, spread=0.3, middle=1.0),
        ),
        run=run,
        build=build,
        sizes=("num_features",),
        mixes=False,
        penalised=False,
        fault=fault,
        keeps_statistics=True,
    )


def _run_prelu(layer: Any, x: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    return F.prelu(x, tensors["weight"])


def _build_prelu(layer: Any, outputs: int, inputs: int, where: dict[str, Any]) -> nn.Module:
    return _empty(nn.PReLU, outputs, **where)


def _prelu_fault(layer: Any) -> Fault | None:
    if layer.num_parameters > 1:
        return None
    return (
        "has one slope for all neurons, which no task could own",
        "Use nn.PReLU(num_parameters) with one slope for each neuron, or LeakyReLU",
    )


PRELU = Kind(
    "PReLU",
    nn.PReLU,
    slots=(Slot("weight", middle=0.25),),
    run=_run_prelu,
    build=_build_prelu,
    sizes=("num_parameters",),
    mixes=False,
    penalised=False,
    fault=_prelu_fault,
)

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        LINEAR,
        *_convolution(nn.Conv1d, F.conv1d),
        *_convolution(nn.Conv2d, F.conv2d),
        *_convolution(nn.Conv3d, F.conv3d),
        _batch_norm(nn.BatchNorm1d),
        _batch_norm(nn.BatchNorm2d),
        _batch_norm(nn.BatchNorm3d),
        PRELU,
    )
}

"""The kinds of layers that can be sliced by neuron: one table, which everything reads.

Discovery, the passes and the baselines know a layer by its entry in `KINDS` alone. To add a kind,
write an entry and a test; `Kind` has the instructions.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clnp.checks import check_memory
from clnp.errors import ArgumentError

Fault = tuple[str, str]
"""The reason why a layer is refused, and what to do about it."""


@dataclass(frozen=True)
class Slot:
    """One tensor of a layer, with a row for each neuron that the layer makes along dimension 0.

    Attributes:
        name: The attribute of the layer that holds it.
        has_columns: Whether dimension 1 has an entry for each neuron that the layer reads.
        trained: Whether it is a Parameter, and not a running statistic.
        dead: Its value in the row of a stand-in, a channel that is there for the shape alone.
        spread, middle: Discovery tests a model with random values in middle ± spread, which should
            keep signals alive; a spread of None depends on the number of inputs.
    """

    name: str
    has_columns: bool = False
    trained: bool = True
    dead: float = 0.0
    spread: float | None = 0.1
    middle: float = 0.0


@dataclass(frozen=True)
class Kind:
    """How the layers of one class are sliced by neuron.

    To add a kind, `register` an entry before you build a network. A layer that mixes computes each
    neuron from all that it reads, like Linear. It has the slot `weight`, with columns, and may have
    `bias`. Its output must be a sum over the columns plus the bias, since clnp computes the columns
    of frozen and of free neurons apart and adds them up. A layer that does not mix, like BatchNorm
    and PReLU, computes each neuron from itself alone, in the same way whichever others there are.
    Both do the same in training and in evaluation mode, except for running statistics.

    Discovery compares `run` with the layer and slices of a model with the whole, and refuses layers
    that differ.

    Example:
        A class that multiplies each channel of a feature map by its own `scale`::

            register(Kind(
                "ChannelScale",
                ChannelScale,
                slots=(Slot("scale", middle=1.0),),
                run=lambda layer, x, tensors: x * tensors["scale"].view(-1, 1, 1),
                build=lambda layer, num_outputs, num_inputs: ChannelScale(num_outputs),
                sizes=("num_channels",),
                mixes=False,
                penalised=False,
            ))

        Test that `run(layer, x, tensors)` and `layer(x)` are equal, and that a network with such
        a layer learns two tasks and verifies.

    Attributes:
        name: The name of the kind, which checkpoints store.
        layer_class: The class, subclasses with the same `forward` included. It needs the method
            `reset_parameters`, with which every task begins.
        slots: The tensors of a layer. A layer may lack some, its bias for example.
        run: The operation in evaluation mode, `run(layer, x, tensors)`, with slices of the tensors
            by name: any rows and, in a layer that mixes, any columns. So take sizes from the
            tensors; `layer` is there for its settings.
        build: `build(layer, num_outputs, num_inputs)` makes a layer with the same settings and
            other widths, on whatever device and in whatever dtype.
        sizes: The attributes of a layer that hold its widths, but not those that its `forward`
            reads (such as `groups` of a depthwise convolution).
        mixes: Whether it computes new neurons from all that it reads.
        neuron_dim: The dimension of its input along which neurons lie.
        matches: Which layers of the class are of this kind.
        fault: The reason to refuse a layer of this kind, or None.
        penalised: Whether L1 penalises its weight, and methods that prune single weights prune it.
        keeps_statistics: Whether it has all attributes of BatchNorm (`running_mean`, `eps` and so
            on), and is trained as `torch.nn.functional.batch_norm` does.
    """

    name: str
    layer_class: type[nn.Module]
    slots: tuple[Slot, ...]
    run: Callable[[Any, Tensor, Mapping[str, Tensor]], Tensor]
    build: Callable[[Any, int, int], nn.Module]
    sizes: tuple[str, ...] = ()
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
        return len(kernel) if isinstance(kernel, tuple) else None


def register(kind: Kind) -> None:
    """Add a kind of layer to the table; of those that match a layer, the newest counts.

    Args:
        kind: The entry. Register it in every program that loads networks with such layers.

    Raises:
        ArgumentError: The name is taken, or the entry contradicts itself.
    """
    cls, slots = kind.layer_class, {slot.name: slot.has_columns for slot in kind.slots}
    found = f"{kind.name} {'mixes' if kind.mixes else 'does not mix'} and has the slots {slots}"
    statistics = {"running_mean", "running_var"}
    if kind.name in KINDS:
        message = f"a kind of layer is called {kind.name!r} already. Choose another name"
    elif not callable(getattr(cls, "reset_parameters", None)):
        message = (
            f"{cls.__name__} has no method reset_parameters, with which every task begins. Add one "
            "that initialises its tensors"
        )
    elif kind.mixes and slots not in ({"weight": True}, {"weight": True, "bias": False}):
        message = f"{found}. Give it 'weight' with columns, and if need be 'bias' without"
    elif not kind.mixes and (not slots or any(slots.values())):
        message = f"{found}. Give it at least one, and none with columns"
    elif kind.penalised and "weight" not in slots:
        message = f"{kind.name} has no slot 'weight' to penalise. Set penalised=False"
    elif kind.keeps_statistics and not statistics <= set(slots):
        message = f"{found}, and keeps statistics. Add 'running_mean' and 'running_var'"
    else:
        KINDS[kind.name] = kind
        return
    raise ArgumentError(message)


def kind_of(layer: nn.Module) -> Kind | None:
    """Return the kind of a layer, or None for a module that is not in the table."""
    for kind in reversed(KINDS.values()):
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


def slot_names(layer_class: type[nn.Module]) -> set[str]:
    """Return the names of the tensors that layers of a class may have."""
    kinds = (kind for kind in KINDS.values() if issubclass(layer_class, kind.layer_class))
    return {slot.name for kind in kinds for slot in kind.slots}


def plain_layer(layer: nn.Module, *, num_outputs: int, num_inputs: int) -> nn.Module:
    """Build an uninitialised layer of `layer`'s PyTorch class and settings, of other widths.

    Parameters hold anything and buffers 0, with the device and dtype of the tensors of `layer`.
    `num_inputs` counts for mixing layers only: the others have as many inputs as outputs.
    """
    kind = known_kind(layer)
    like: Tensor = getattr(layer, kind.slots_of(layer)[0].name)
    num_weights = num_outputs * (num_inputs if kind.mixes else 1) * math.prod(like.shape[2:])
    made_of = f"a {kind.name} of {num_inputs} inputs and {num_outputs} outputs"
    check_memory(made_of, num_weights * like.itemsize, like.device, "Use fewer")
    # On the meta device, nothing is allocated and no random number drawn.
    with torch.device("meta"):
        made = kind.build(layer, num_outputs, num_inputs)

    def real(tensor: Tensor) -> Tensor:
        # `to_empty` would import half of PyTorch, to lay out the tensor as the one without storage.
        dtype = like.dtype if tensor.is_floating_point() else tensor.dtype
        return torch.empty(tensor.shape, dtype=dtype, device=like.device)

    made._apply(real)  # type: ignore[no-untyped-call]
    for buffer in made.buffers():
        buffer.zero_()
    return made.train(layer.training)


def refusal_of(module: nn.Module) -> Fault | None:
    """Return why a module outside of the table is refused, if it has its own tensors."""
    names = ", ".join(name for name, _ in module.named_parameters(recurse=False))
    is_norm = isinstance(module, nn.modules.batchnorm._NormBase)
    if not names and not (is_norm and module.track_running_stats):
        return None
    for classes, found, remedy in _REFUSED:
        if isinstance(module, classes):
            return found, remedy
    if type(module).__module__.startswith("torch.nn."):
        return (
            f"has weights ({names}) that cannot be sliced by neuron",
            "Use Linear, Conv1d/2d/3d, BatchNorm1d/2d/3d or PReLU",
        )
    return (
        f"owns weights ({names}) outside a layer",
        "Put them into a Linear, convolution, BatchNorm or PReLU, into a class whose kind you "
        "register, or into a buffer if they are not trained",
    )


_REFUSED: tuple[tuple[type[nn.Module] | tuple[type[nn.Module], ...], str, str], ...] = (
    (nn.SyncBatchNorm, "is not supported", "Use nn.BatchNorm1d, nn.BatchNorm2d or nn.BatchNorm3d"),
    (
        (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
        "normalises over several neurons at once, which mixes them without weights",
        "Use BatchNorm, or no normalisation",
    ),
    (
        nn.modules.batchnorm._NormBase,
        "has a scale or statistics for each channel that cannot be sliced",
        "Use BatchNorm, or affine=False and track_running_stats=False",
    ),
    (
        nn.MultiheadAttention,
        "is attention, which mixes neurons by their values",
        "Use Linear or convolutions",
    ),
    (
        (nn.RNNBase, nn.RNNCellBase),
        "is recurrent: its weights are used at every step",
        "Use convolutions over time",
    ),
)
"""Modules with tensors that are often met and not in the table, and what to say of them."""


LINEAR = Kind(
    "Linear",
    nn.Linear,
    slots=(Slot("weight", has_columns=True, spread=None), Slot("bias")),
    run=lambda layer, x, tensors: F.linear(x, tensors["weight"], tensors.get("bias")),
    build=lambda layer, num_outputs, num_inputs: nn.Linear(
        num_inputs, num_outputs, bias=layer.bias is not None
    ),
    sizes=("in_features", "out_features"),
    neuron_dim=-1,
)


def _is_depthwise(layer: Any) -> bool:
    """Whether a convolution has one filter for each channel."""
    return bool(layer.groups > 1 and layer.groups == layer.in_channels == layer.out_channels)


def _convolution(layer_class: Any, function: Callable[..., Tensor]) -> tuple[Kind, Kind]:
    """Return the kinds of a class: full convolutions, which mix channels, and depthwise ones."""

    def run(layer: Any, x: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        padding = layer.padding
        if layer.padding_mode != "zeros":
            x = F.pad(x, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
            padding = 0
        weight, bias = tensors["weight"], tensors.get("bias")
        groups = 1 if layer.groups == 1 else len(weight)
        return function(x, weight, bias, layer.stride, padding, layer.dilation, groups)

    def build(layer: Any, num_outputs: int, num_inputs: int) -> nn.Module:
        kept = ("kernel_size", "stride", "padding", "dilation", "padding_mode")
        settings = {name: getattr(layer, name) for name in kept} | {"bias": layer.bias is not None}
        if _is_depthwise(layer):
            num_inputs, settings["groups"] = num_outputs, num_outputs
        made: nn.Module = layer_class(num_inputs, num_outputs, **settings)
        return made

    def fault(layer: Any) -> Fault | None:
        sizes = f"{layer.in_channels} to {layer.out_channels} channels in {layer.groups} groups"
        remedy = "Use groups=1, or groups equal to both the input and the output channels"
        return None if layer.groups == 1 else (f"is a grouped convolution ({sizes})", remedy)

    full = Kind(
        layer_class.__name__,
        layer_class,
        slots=(Slot("weight", has_columns=True, spread=None), Slot("bias")),
        run=run,
        build=build,
        sizes=("in_channels", "out_channels"),
        matches=lambda layer: not _is_depthwise(layer),
        fault=fault,
    )
    depthwise = replace(
        full,
        name=f"Depthwise{full.name}",
        slots=(Slot("weight", spread=None), Slot("bias")),
        mixes=False,
        matches=_is_depthwise,
        fault=lambda layer: None,
    )
    return full, depthwise


def _batch_norm(layer_class: Any) -> Kind:
    def run(layer: Any, x: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        mean, variance = tensors["running_mean"], tensors["running_var"]
        weight, bias = tensors.get("weight"), tensors.get("bias")
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, layer.eps)

    def build(layer: Any, num_outputs: int, num_inputs: int) -> nn.Module:
        # Only newer versions of PyTorch have the argument.
        bias = {"bias": False} if layer.affine and layer.bias is None else {}
        settings = {"eps": layer.eps, "momentum": layer.momentum, "affine": layer.affine, **bias}
        made: nn.Module = layer_class(num_outputs, **settings)
        return made

    def fault(layer: Any) -> Fault | None:
        found = "has track_running_stats=False: an ended task would depend on its batch"
        return None if layer.running_mean is not None else (found, "Use track_running_stats=True")

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


def _prelu_fault(layer: Any) -> Fault | None:
    found = "has one slope for all neurons, which no task could own"
    remedy = "Use nn.PReLU(num_parameters) with one slope for each neuron, or LeakyReLU"
    return None if layer.num_parameters > 1 else (found, remedy)


PRELU = Kind(
    "PReLU",
    nn.PReLU,
    slots=(Slot("weight", middle=0.25),),
    run=lambda layer, x, tensors: F.prelu(x, tensors["weight"]),
    build=lambda layer, num_outputs, num_inputs: nn.PReLU(num_outputs),
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
"""The table, by name."""

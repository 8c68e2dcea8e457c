"""Weights in blocks, and the passes in which the layers of a network run on them.

With neurons sorted by owner, a weight falls into blocks:

                 in: frozen      free
    out frozen   [   frozen   |   none   ]   a buffer; what is not there cannot interfere
    out free     [   reuse    |   free   ]   two Parameters, there only while a task is open

Frozen neurons depend on frozen neurons only, so a training step runs the model twice: a *frozen*
pass on the frozen neurons, without gradients, in which every layer also computes what the frozen
neurons give to its free ones (the *carry*), and a *free* pass on the free neurons, to which the
carry is added. Ended tasks, and everything that is not being trained, take one *plain* pass; all
ended tasks together take a pass each, on the *portion* that it added (see portions.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .axis import STAND_IN, Index
from .errors import TaskError
from .graph import Site
from .surgery import CONVOLUTIONS, NORMS, is_depthwise, rebuilt

Tensors = dict[str, Tensor]
Stretches = list[tuple[int, int]] | None

ONE_PATH = (
    "{} {} when the frozen neurons did: from the second task on, forward runs twice in a step and "
    "must take the same path both times"
)

CHANGES = (
    "{} is frozen, and the state dict would change it. Averages of whole state dicts round what is "
    "frozen: average net.parameters() alone, as torch.optim.swa_utils.AveragedModel does"
)


class Pass(Enum):
    """Which neurons the layers run on: those shown, the frozen, the free, or one ended task's own.

    IDLE is between passes, when no layer may run.
    """

    IDLE = "idle"
    PLAIN = "plain"
    FROZEN = "frozen"
    FREE = "free"
    PORTION = "portion"


class Stage:
    """What the layers of one network run on at the moment; one object, known to all of them.

    `frozen` and `free` count the neurons of each group that are claimed and that the open task
    trains. `showing` names what the layers have laid out for the plain and frozen passes. It is
    `sealed` once a task has ended, and what is frozen may no longer change. While all ended tasks
    run, it is the `turn` of one of them, and `kept` has, by layer, how many ran and their inputs.
    `on_input`, if it is there, is shown what each layer of the open task reads.
    """

    def __init__(self, groups: Iterable[str]) -> None:
        self.running = Pass.IDLE
        self.frozen: dict[str, int] = dict.fromkeys(groups, 0)
        self.free: dict[str, int] = dict.fromkeys(groups, 0)
        self.showing: object = None
        self.with_grad = False
        self.sealed = False
        self.turn = 0
        self.kept: dict[str, tuple[int, Tensor | None]] = {}
        self.on_input: Callable[[Any, Tensor], None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What a copy has, whose layers show nothing yet."""
        return {**self.__dict__, "showing": None}

    def check_conversion(self, like: Tensor, fn: Callable[[Tensor], Tensor]) -> None:
        """Raise a `TaskError` if `fn` would change the dtype of what ended tasks read."""
        self.check_dtype(like.dtype, fn(like.new_empty(0)).dtype)

    def check_dtype(self, here: torch.dtype, there: torch.dtype) -> None:
        """Raise a `TaskError` if what ended tasks read in one dtype would be in another."""
        if self.sealed and here != there:
            raise TaskError(
                f"the network has ended tasks in {here}; in {there} their outputs would change. "
                "Convert it before a task ends, or convert net.subnetwork(task)"
            )


@dataclass(frozen=True)
class Portion:
    """What one ended task added to a layer: the tensors of its rows.

    In the input of its pass, `own` are the stretches that the layer has not read before. With
    `keeps`, they go behind those that it has kept of earlier tasks; the weight's columns follow.
    """

    tensors: Tensors
    own: Stretches = None
    keeps: bool = False


class Staged(nn.Module):
    """What layers and head have in common: they run on what is shown, and know the stage."""

    site: Site
    stage: Stage
    _shown: Tensors
    _portions: Sequence[Portion]
    _carry: Tensor | None

    def show(self, tensors: Tensors) -> None:
        """Run on these tensors in the plain pass, and a layer in the frozen pass too."""
        self._shown, self._portions = tensors, ()

    def show_nothing(self) -> None:
        """Let go of what was shown: it holds on to memory, and is not true any more."""
        self.show({})
        self.stage.showing = None

    def show_portions(self, portions: Sequence[Portion]) -> None:
        """Run on these, one for each ended task, in the passes of all ended tasks."""
        self._shown, self._portions = {}, portions

    @property
    def portion(self) -> Portion:
        """What the task added whose turn it is."""
        return self._portions[self.stage.turn]

    def forget_carry(self) -> None:
        """Drop what a pass that did not come to its end may have left."""
        self._carry = None

    def check_carry(self) -> None:
        """Raise a `TaskError` if what was carried has not been used in the free pass."""
        if self._carry is not None:
            raise TaskError(ONE_PATH.format(self.site.path, "ran only"))

    def running(self, x: Tensor) -> Pass:
        """The pass that is under way, in which the layer reads `x`; outside of one is an error."""
        if self.stage.running is Pass.IDLE:
            raise TaskError(
                f"{self.site.path} runs outside of a forward pass of its network. Call the "
                "network, net(x) or net(x, task=...), not net.model; gradient checkpointing, "
                "which runs layers again in the backward pass, is not possible"
            )
        if self.stage.on_input is not None:
            self.stage.on_input(self, x)
        return self.stage.running

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        frozen = self._frozen()
        for tensor in frozen.values():
            self.stage.check_conversion(tensor, fn)
        self.show_nothing()
        nn.Module._apply(self, fn, recurse)  # type: ignore[no-untyped-call]
        for name, tensor in self._frozen().items():
            self._buffers[name] = with_plain_strides(tensor)
        return self

    def _frozen(self) -> dict[str, Tensor]:
        """What ended tasks read, by name."""
        buffers = self._buffers.items()
        return {
            n: tensor for n, tensor in buffers if tensor is not None and not n.endswith("_free")
        }

    def changed_by(self, state: Mapping[str, Any], prefix: str) -> list[str]:
        """What ended tasks read that this state dict would change, if loaded under `prefix`."""
        frozen = self._frozen() if self.stage.sealed else {}
        given = {name: state[prefix + name] for name in frozen if prefix + name in state}
        return [prefix + name for name, tensor in given.items() if not same(tensor, frozen[name])]

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, *args: Any
    ) -> None:
        *_, errors = args
        self.show_nothing()
        if self.stage.sealed:
            errors.extend(map(CHANGES.format, self.changed_by(state_dict, prefix)))
            own = {prefix + name: tensor for name, tensor in self._frozen().items()}
            state_dict = {name: own.get(name, given) for name, given in state_dict.items()}
        nn.Module._load_from_state_dict(self, state_dict, prefix, metadata, *args)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pass that was interrupted leaves a carry, which is part of a graph and cannot be copied.
        state = {**self.__dict__, "_carry": None, "_shown": {}, "_portions": ()}
        return rebuilt, type(self).__bases__, state


@dataclass(frozen=True)
class Slot:
    """One tensor of a layer: whether it has columns, is trained, and its value in a dead neuron."""

    name: str
    has_columns: bool = False
    trained: bool = True
    dead: float = 0.0


def with_plain_strides(tensor: Tensor) -> Tensor:
    """The tensor in the memory format of its shape: in another, ended tasks would round otherwise.

    `contiguous` leaves the strides of a dimension of size 1 as they are, by which PyTorch tells
    formats.
    """
    if tensor.stride() == torch.empty(tensor.shape, device="meta").stride():
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def same(given: Any, own: Tensor) -> bool:
    """Whether `given` would leave the tensor `own` as it is."""
    if not isinstance(given, Tensor) or given.shape != own.shape:
        return False
    return torch.equal(given.detach().to(own.device, own.dtype), own)


def slots_of(layer: nn.Module) -> tuple[Slot, ...]:
    """The tensors of a plain layer that are there, one row for each neuron."""
    slots: tuple[Slot, ...]
    if isinstance(layer, NORMS):
        slots = (
            Slot("weight"),
            Slot("bias"),
            Slot("running_mean", trained=False),
            Slot("running_var", trained=False, dead=1.0),
        )
    else:
        mixes = not isinstance(layer, nn.PReLU) and not is_depthwise(layer)
        slots = (Slot("weight", has_columns=mixes), Slot("bias"))
    return tuple(slot for slot in slots if getattr(layer, slot.name, None) is not None)


def run(layer: nn.Module, x: Tensor, tensors: Tensors) -> Tensor:
    """What the class of `layer` computes from `x` with these tensors, in evaluation mode."""
    weight, bias = tensors.get("weight"), tensors.get("bias")
    if isinstance(layer, nn.Linear):
        assert weight is not None
        return F.linear(x, weight, bias)
    if isinstance(layer, CONVOLUTIONS):
        assert weight is not None
        return _convolve(layer, x, weight, bias)
    if isinstance(layer, nn.PReLU):
        assert weight is not None
        return F.prelu(x, weight)
    mean, variance = tensors["running_mean"], tensors["running_var"]
    return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, layer.eps)  # type: ignore[arg-type]


def _convolve(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    groups = weight.shape[0] if is_depthwise(layer) else 1
    padding = layer.padding
    if layer.padding_mode != "zeros":
        x = F.pad(x, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        padding = 0
    convolution = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[weight.ndim]
    return convolution(x, weight, bias, layer.stride, padding, layer.dilation, groups)


def neuron_dim(layer: nn.Module) -> int:
    """The dimension of the layer's input along which its neurons lie."""
    return -1 if isinstance(layer, nn.Linear) else 1


def real_part(x: Tensor, dim: int, stretches: Stretches) -> Tensor:
    """`x` without the entries that stand in for groups that have no neuron."""
    if stretches is None:
        return x
    parts = [x.narrow(dim, start, length) for start, length in stretches]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def with_stand_ins(y: Tensor, total: int, stretches: list[tuple[int, int]]) -> Tensor:
    """`y`, made from the real part of `total` channels, with zeros where the stand-ins go."""
    parts, end, used = [], 0, 0
    for start, length in [*stretches, (total, 0)]:
        if start > end:
            parts.append(y.new_zeros(y.shape[0], start - end, *y.shape[2:]))
        parts.append(y.narrow(1, used, length))
        used, end = used + length, start + length
    return torch.cat(parts, 1)


def dead_weight(layer: nn.Module, x: Tensor, *, num_rows: int, kernel: Iterable[int]) -> Tensors:
    """A weight of zeros from all that `x` holds to `num_rows` outputs: for the shape alone."""
    return {"weight": x.new_zeros(num_rows, x.shape[neuron_dim(layer)], *kernel)}


def carry(layer: nn.Module, x: Tensor, *, stretches: Stretches, free: Tensors) -> Tensor | None:
    """What the frozen neurons `x` give to the layer's free rows; None when they give nothing."""
    if "reuse" not in free:
        return None
    tensors = {"weight": free["reuse"]}
    if "weight" not in free and "bias" in free:
        tensors["bias"] = free["bias"]  # Without free inputs nobody else adds it.
    return run(layer, real_part(x, neuron_dim(layer), stretches), tensors)


def complete(
    layer: Any,
    x: Tensor,
    *,
    stretches: Stretches,
    free: Tensors,
    carried: Tensor | None,
    num_rows: int,
) -> Tensor:
    """The layer's free rows: what the free neurons `x` give to them, and what was carried."""
    if "reuse" in free and carried is None:
        raise TaskError(ONE_PATH.format(layer.site.path, "did not run"))
    if "weight" not in free:
        if carried is not None:
            return carried
        # All that it read has been pruned: what is left of its rows is the bias.
        return run(
            layer, x, {**free, **dead_weight(layer, x, num_rows=num_rows, kernel=layer.kernel)}
        )
    y = run(layer, real_part(x, neuron_dim(layer), stretches), free)
    return y if carried is None else y.add_(carried)


def select(tensor: Tensor, dim: int, index: Index, *, fill: float = 0.0) -> Tensor:
    """The entries `index` of `tensor` along `dim`, contiguous, with `fill` for stand-ins.

    The tensor itself, not a copy, where the index is all of it.
    """
    size = tensor.shape[dim]
    if len(index) == size and np.array_equal(index, np.arange(size)):
        return tensor
    missing = index == STAND_IN
    if missing.all():
        shape = list(tensor.shape)
        shape[dim] = len(index)
        return tensor.new_full(shape, fill)
    chosen = tensor.index_select(dim, _on(tensor, np.where(missing, index.max(), index)))
    if missing.any():
        chosen = chosen.index_fill(dim, _on(tensor, np.flatnonzero(missing)), fill)
    return chosen


def place(target: Tensor, rows: Index, columns: Index, block: Tensor) -> None:
    """Write `block` into the given rows and columns of `target`."""
    if not block.numel():
        return
    if _is_stretch(rows) and _is_stretch(columns):
        corner = target[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        corner.copy_(block)
    else:
        target[_on(target, rows)[:, None], _on(target, columns)] = block


def _is_stretch(index: Index) -> bool:
    """Whether the index is one number after the other."""
    return np.array_equal(index, np.arange(index[0], index[-1] + 1))


def _on(tensor: Tensor, index: Index) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(index)).to(tensor.device)

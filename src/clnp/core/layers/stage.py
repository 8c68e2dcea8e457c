"""The state that all layers of one network share: which pass is running, and on what.

`Stage` counts the frozen and free neurons of each group; `Staged` is what layers and the head have
in common.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from clnp.core.structure.graph import Site
from clnp.core.structure.surgery import rebuilt
from clnp.errors import TaskError

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
    kernel: tuple[int, ...]
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


@dataclass
class Averaging:
    """Statistics of BatchNorm that are averaged anew, all else in evaluation mode.

    `num_values` counts what `statistics`, means and variances, are over so far. In the plain pass,
    `channels` marks those of the open task among the shown; the others keep what they have.
    """

    channels: Tensor | None = None
    num_values: int = 0
    statistics: tuple[Tensor, ...] = ()

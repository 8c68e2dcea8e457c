"""The passes of a network on its layers, and the state that all layers of one network share.

With neurons sorted by owner, a weight falls into blocks:

                 in: frozen      free
    out frozen   [   frozen   |   none   ]   a buffer; what is not there cannot interfere
    out free     [   reuse    |   free   ]   two Parameters, there only while a task is open

Frozen neurons depend on frozen neurons only, so a training step runs the model twice: a *frozen*
pass on the frozen neurons, without gradients, in which every layer also computes what the frozen
neurons contribute to its free ones (the *carry*), and a *free* pass on the free neurons, to which
the carry is added. Ended tasks, and everything that is not being trained, take one *plain* pass.

`predict_all` takes a pass for each ended task, on the *portion* that it added. Of the prefix that
task t reads, all but the last stretch is what the tasks before it read. So layers that mix neurons
keep their inputs for the tasks to come:

            in:  task 1 | task 2 | task 3
 out task 1 [   portion |    -   |   -    ]
 out task 2 [       portion      |   -    ]   reads the inputs kept of task 1, and its own
 out task 3 [           portion           ]

A portion has no entry for a later task, so nothing of one is read, not even times zero. Its shape
is settled when its task ends, so it rounds in the same way whatever is learned later.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clnp.core.structure.axis import Index, Layout, View, num_entries, occupied, positions
from clnp.core.structure.graph import Site
from clnp.core.structure.kinds import Kind, Slot
from clnp.core.structure.surgery import rebuilt
from clnp.errors import TaskError

from .blocks import (
    Stretches,
    Tensors,
    old_and_new,
    place,
    real_part,
    same,
    select,
    with_plain_strides,
    with_stand_ins,
)
from .initialisation import Initial, starting_layer

OTHER_PATH = (
    "{} {} when the frozen neurons did. From the second task on, forward runs twice in a step and "
    "must take the same path both times"
)
FROZEN_CHANGES = (
    "{} is frozen, and the state dict would change it. Averages of whole state dicts round what is "
    "frozen: average net.parameters() alone, as torch.optim.swa_utils.AveragedModel does"
)


class Pass(Enum):
    """The neurons that the layers run on: those shown, the frozen, the free, or one portion.

    IDLE is between passes, when no layer may run.
    """

    IDLE = "idle"
    PLAIN = "plain"
    FROZEN = "frozen"
    FREE = "free"
    PORTION = "portion"


class Stage:
    """The state of the passes; one object, which all layers of a network share.

    Attributes:
        running: The pass under way.
        frozen, free: The neurons of each group that are claimed, and that the open task trains.
        showing: A name for the tensors that the layers show in the plain and frozen passes.
        carried: The carry of each layer, by path, from the frozen pass to the free pass.
        with_grad: Whether the free pass will record gradients.
        sealed: Whether a task has ended, so that frozen tensors may no longer change.
        turn: The index of the task whose portion runs.
        kept: The number of portions that each layer has run, and their inputs, by path.
        on_input: Called with each layer and its input, to measure activity. The layer reads what
            it returns.
    """

    def __init__(self, groups: Iterable[str]) -> None:
        self.running = Pass.IDLE
        self.frozen: dict[str, int] = dict.fromkeys(groups, 0)
        self.free: dict[str, int] = dict.fromkeys(groups, 0)
        self.showing: object = None
        self.carried: dict[str, Tensor] = {}
        self.with_grad = False
        self.sealed = False
        self.turn = 0
        self.kept: dict[str, tuple[int, Tensor | None]] = {}
        self.on_input: Callable[[Any, Tensor], Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The layers of a copy show nothing yet, and a carry is part of a graph.
        return {**self.__dict__, "showing": None, "carried": {}, "kept": {}}

    def check_conversion(self, like: Tensor, fn: Callable[[Tensor], Tensor]) -> None:
        """Raise a `TaskError` if `fn` would change the dtype of ended tasks."""
        self.check_dtype(like.dtype, fn(like.new_empty(0)).dtype)

    def check_dtype(self, here: torch.dtype, there: torch.dtype) -> None:
        """Raise a `TaskError` if another dtype would change the outputs of ended tasks."""
        if self.sealed and here != there:
            raise TaskError(
                f"the network has ended tasks in {here}; in {there} their outputs would change. "
                "Convert it before a task ends, or convert net.subnetwork(task)"
            )


@dataclass(frozen=True)
class Portion:
    """The tensors that one ended task added to a layer.

    Attributes:
        tensors: Its rows.
        own: The stretches, in the input of its pass, that the layer has not read before.
        keeps: Whether they are appended to the inputs kept of earlier tasks, in the order of the
            weight's columns.
    """

    tensors: Tensors
    own: Stretches = None
    keeps: bool = False


@dataclass
class Averaging:
    """Statistics of BatchNorm that are being averaged, all else in evaluation mode.

    Attributes:
        channels: In the plain pass, the channels of the open task among those shown; the others
            keep their statistics.
        num_values: The number of values averaged so far.
        statistics: The means and variances.
    """

    channels: Tensor | None = None
    num_values: int = 0
    statistics: tuple[Tensor, ...] = ()


class Staged(nn.Module):
    """A layer whose weights are stored in blocks: the passes on it.

    `PrefixLayer` and `Head` say how the blocks are made and stored.
    """

    site: Site
    stage: Stage
    layer_kind: Kind
    kernel: tuple[int, ...]
    shared: bool = False
    """Whether it is a single head, which reads no neurons of earlier tasks."""
    makes_outputs: bool = False
    """Whether it is the head."""
    has_bias: bool
    slots: tuple[Slot, ...]
    num_free_rows: int
    averaging: Averaging | None = None
    """Set while BatchNorm is recalibrated."""
    like: Tensor
    weight_reuse: nn.Parameter | None
    weight_free: nn.Parameter | None
    bias_free: nn.Parameter | None
    bias_frozen: Tensor
    num_batches_free: Tensor | None
    _shown: Tensors
    _portions: Sequence[Portion]
    free_real: Stretches
    frozen_real: Stretches

    def attach(self, layer: nn.Module, site: Site, stage: Stage) -> None:
        """Replace `layer` in a network without frozen neurons and without an open task."""
        self.site, self.stage, self.layer_kind = site, stage, site.layer_kind
        self.slots = self.layer_kind.slots_of(layer)
        weight: Any = getattr(layer, "weight", None)
        first = 2 if self.layer_kind.mixes else 1
        self.kernel = () if weight is None else tuple(weight.shape[first:])
        self.register_parameter("weight_reuse", None)
        for slot in self.layer_kind.slots:
            if slot.trained:
                self.register_parameter(f"{slot.name}_free", None)

    def forward(self, input: Tensor) -> Tensor:
        stage, kind = self.stage, self.layer_kind
        running = stage.running
        if running is Pass.IDLE:
            raise TaskError(
                f"{self.site.path} runs outside of a forward pass of its network. Call the "
                "network, net(x) or net(x, task=...), not net.model. Gradient checkpointing, "
                "which runs layers again in the backward pass, is not possible"
            )
        if stage.on_input is not None:
            input = stage.on_input(self, input)
        if running is Pass.FREE:
            return self._mix(input) if kind.mixes else self._act(input)
        if running is Pass.PORTION:
            return self._run_portion(input)
        if running is Pass.FROZEN and kind.mixes:
            carried = self._carry(input)
            if self.makes_outputs:
                if carried is not None:
                    return carried.detach().clone()  # The model may go on in place.
                return kind.run(self, input, self._dead(input, num_rows=self.num_free_rows))
        elif self.averaging is not None and running is Pass.PLAIN:
            return self._act_and_average(input, self.averaging)
        return kind.run(self, input, self._shown)

    def _carry(self, x: Tensor) -> Tensor | None:
        """Keep what the frozen neurons `x` contribute to the free rows, for the free pass."""
        reuse = self.weight_reuse
        if reuse is None:
            return None
        with torch.set_grad_enabled(self.stage.with_grad):
            if self.frozen_real is not None:
                x = real_part(x, self.layer_kind.neuron_dim, self.frozen_real)
            # Without free inputs, the free pass adds no bias.
            bias = self._bias() if self.weight_free is None else {}
            carried = self.layer_kind.run(self, x, {"weight": reuse, **bias})
        self.stage.carried[self.site.path] = carried
        return carried

    def _mix(self, x: Tensor) -> Tensor:
        """Run the free rows: what the free neurons `x` give to them, plus the carry."""
        kind, free = self.layer_kind, self.weight_free
        carried = self.stage.carried.pop(self.site.path, None)
        if not self.num_free_rows:
            return kind.run(self, x, self._dead(x, num_rows=1))
        if carried is None and self.weight_reuse is not None:
            raise TaskError(OTHER_PATH.format(self.site.path, "did not run"))
        if free is None:
            if carried is not None:
                return carried
            # All neurons that it read have been pruned, so that the bias is left.
            dead = self._dead(x, num_rows=self.num_free_rows)
            return kind.run(self, x, {**dead, **self._bias()})
        if self.free_real is not None:
            x = real_part(x, kind.neuron_dim, self.free_real)
        y = kind.run(self, x, {"weight": free, **self._bias()})
        return y if carried is None else y.add_(carried)

    def _bias(self) -> Tensors:
        """Return the bias of the free rows, if any. That of a single head may be frozen in part."""
        bias = self.bias_free
        if self.shared and self.has_bias and self.bias_frozen.numel():
            learned = self.bias_frozen[: self.num_free_rows]
            return {"bias": learned if bias is None else torch.cat([learned, bias])}
        return {} if bias is None else {"bias": bias}

    def _dead(self, x: Tensor, *, num_rows: int) -> Tensors:
        """Return a weight of zeros from all entries of `x`, for the shape of the output alone."""
        num_columns = x.shape[self.layer_kind.neuron_dim]
        return {"weight": x.new_zeros(num_rows, num_columns, *self.kernel)}

    def _act(self, x: Tensor) -> Tensor:
        """Run a layer that acts on each free neuron by itself."""
        if self.free_real is None:
            return self._act_on_real(x, self.free())
        if not self.free_real:
            if not self.kernel:
                return torch.zeros_like(x)
            return self.layer_kind.run(self, x, {"weight": x.new_zeros(x.shape[1], *self.kernel)})
        y = self._act_on_real(real_part(x, 1, self.free_real), self.free())
        return with_stand_ins(y, x.shape[1], self.free_real)

    def _act_on_real(self, x: Tensor, tensors: Tensors) -> Tensor:
        averaging = self.averaging
        if not self.layer_kind.keeps_statistics or not (self.training or averaging is not None):
            return self.layer_kind.run(self, x, tensors)
        momentum: float | None = self.momentum  # type: ignore[assignment]
        if averaging is not None:
            num_values = x.numel() // x.shape[1]
            if num_values <= 1:  # A single value has no variance.
                return self.layer_kind.run(self, x, tensors)
            if not averaging.num_values:  # NaN would stay NaN, however little it counts.
                mean, variance = tensors["running_mean"].zero_(), tensors["running_var"].fill_(1)
                averaging.statistics = mean, variance
            averaging.num_values += num_values
            momentum = num_values / averaging.num_values
        elif momentum is None:
            assert self.num_batches_free is not None
            self.num_batches_free = self.num_batches_free + 1
            momentum = 1.0 / int(self.num_batches_free)  # Fails in a step that is captured.
        return F.batch_norm(
            x,
            tensors["running_mean"],
            tensors["running_var"],
            tensors.get("weight"),
            tensors.get("bias"),
            True,
            momentum,
            self.eps,  # type: ignore[arg-type]
        )

    def _act_and_average(self, x: Tensor, averaging: Averaging) -> Tensor:
        """Run on the shown tensors, and average the statistics of the open task's channels."""
        shown, channels = self._shown, averaging.channels
        assert channels is not None
        before = {name: shown[name].clone() for name in ("running_mean", "running_var")}
        y = self._act_on_real(x, shown)
        for name, tensor in before.items():
            shown[name].copy_(torch.where(channels, shown[name], tensor))
        stored = self.layer_kind.run(self, x, {**shown, **before})
        return torch.where(channels.view(-1, *[1] * (x.ndim - 2)), y, stored)

    def _run_portion(self, x: Tensor) -> Tensor:
        """Run the portion of the task whose turn it is on its own neurons `x`."""
        portion, kind = self._portions[self.stage.turn], self.layer_kind
        if not kind.mixes:
            return kind.run(self, x, portion.tensors)
        parts = [] if portion.own == [] else [real_part(x, kind.neuron_dim, portion.own)]
        inputs = self._keep(parts) if portion.keeps else parts[0] if parts else None
        weight = portion.tensors["weight"]
        if inputs is None or not weight.shape[1]:
            # Only the bias is left; the stand-ins in `x` may have any value.
            dead = self._dead(x, num_rows=len(weight))
            return kind.run(self, torch.zeros_like(x), {**portion.tensors, **dead})
        return kind.run(self, inputs, portion.tensors)

    def _keep(self, parts: list[Tensor]) -> Tensor | None:
        """Return all inputs of the layer so far, those of the present task included."""
        stage, path = self.stage, self.site.path
        num_passes, inputs = stage.kept.get(path, (0, None))
        if num_passes != stage.turn:
            raise not_once(path)
        if parts:
            # A copy even of a single part: the model may write into its own tensor.
            before = [] if inputs is None else [inputs]
            inputs = torch.cat([*before, *parts], self.layer_kind.neuron_dim)
        stage.kept[path] = num_passes + 1, inputs
        return inputs

    def open(self, initial: Initial) -> None:
        """Make the tensors of a new task as the layer's class does, or as `initial` does."""
        self.lay_out()
        sizes, old, new = old_and_new(self.frozen_layout(), self.stage.free)
        columns, num_rows = self.site.columns, self.num_free_rows
        if not num_rows:
            return
        # No input at all where a task is loaded that was pruned to nothing.
        num_inputs = max(num_entries(columns, sizes), 1)
        made = starting_layer(initial, self, num_outputs=num_rows, num_inputs=num_inputs)
        for slot in self.slots:
            tensor, like = getattr(made, slot.name).detach(), self.like_of(slot)
            if slot.has_columns:
                reuse = positions(columns, sizes, old, wants_input=False)
                self.store("weight_reuse", select(tensor, 1, reuse), like)
                tensor = select(tensor, 1, positions(columns, sizes, new))
            self.store(f"{slot.name}_free", tensor, like, trained=slot.trained)

    def like_of(self, slot: Slot) -> Tensor:
        """Return a tensor of the dtype and on the device of the layer's own."""
        like: Tensor = self.like if self.makes_outputs else getattr(self, f"{slot.name}_frozen")
        return like

    def restrict(self, keep: View) -> None:
        """Keep only `keep[g]` of the free neurons of each group, in new Parameters."""
        rows = positions(self.site.rows, self.stage.free, keep)
        columns = positions(self.site.columns, self.stage.free, keep)
        for name in self.changing():
            block: Tensor | None = getattr(self, name)
            if block is None or name == "num_batches_free":
                continue
            kept = block.detach() if self.makes_outputs else select(block.detach(), 0, rows)
            if name == "weight_free" and self.layer_kind.mixes:
                kept = select(kept, 1, columns)
            self.store(name, kept, kept, trained=name in self._parameters)

    def free(self) -> Tensors:
        """Return the open task's tensors by slot, without the weights from frozen neurons."""
        blocks = {slot.name: getattr(self, f"{slot.name}_free") for slot in self.slots}
        return {name: block for name, block in blocks.items() if block is not None}

    def changing(self) -> list[str]:
        """Return the names of the Parameters and buffers that the open task may change."""
        names = (*self._parameters, *self._buffers)
        return [name for name in names if name.endswith(("_free", "_reuse"))]

    def store(self, block: str, values: Tensor, like: Tensor, *, trained: bool = True) -> None:
        """Store a copy of the values, as a Parameter if it is trained; None if there are none."""
        made = values.to(like.device, like.dtype).clone(memory_format=torch.contiguous_format)
        self.put(block, made if made.numel() else None, trained=trained)

    def put(self, block: str, values: Tensor | None, *, trained: bool) -> None:
        """Store these values; a Parameter asks for gradients as the one before it did."""
        if values is not None and trained:
            before: nn.Parameter | None = getattr(self, block)
            values = nn.Parameter(values, before is None or before.requires_grad)
        setattr(self, block, values)

    def place_free(self, weight: Tensor, rows: Index) -> None:
        """Write the weights that the open task trains into the given rows of a whole weight."""
        after, old, new = old_and_new(self.frozen_layout(), self.stage.free)
        columns = self.site.columns
        if self.weight_reuse is not None:
            reuse = positions(columns, after, old, wants_input=False)
            place(weight, rows, reuse, self.weight_reuse.detach())
        if self.weight_free is not None:
            place(weight, rows, positions(columns, after, new), self.weight_free.detach())

    def frozen_layout(self) -> Layout:
        """Return the neurons of each group that the free rows read of earlier tasks."""
        return dict.fromkeys(self.stage.frozen, 0) if self.shared else self.stage.frozen

    def lay_out(self) -> None:
        """Note where real neurons lie in the inputs of the two passes, after the stage changed."""
        self.num_free_rows = num_entries(self.site.rows, self.stage.free)
        self.free_real = occupied(self.site.columns, self.stage.free)
        self.frozen_real = occupied(self.site.columns, self.stage.frozen, counts_input=False)

    def show(self, tensors: Tensors, portions: Sequence[Portion] = ()) -> None:
        """Run on the tensors in the plain and the frozen pass, and on the portions in theirs."""
        self._shown, self._portions = tensors, portions

    def show_nothing(self) -> None:
        """Drop the shown tensors, which take memory and are no longer those of the network."""
        self.show({})
        self.stage.showing = None

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        for tensor in self._frozen_buffers().values():
            self.stage.check_conversion(tensor, fn)
        self.show_nothing()
        nn.Module._apply(self, fn, recurse)  # type: ignore[no-untyped-call]
        for name, tensor in self._frozen_buffers().items():
            self._buffers[name] = with_plain_strides(tensor)
        return self

    def _frozen_buffers(self) -> Tensors:
        frozen = self._buffers.keys() - self.changing()
        return {n: t for n, t in self._buffers.items() if n in frozen and t is not None}

    def changed_by(self, state: Mapping[str, Any], prefix: str) -> list[str]:
        """Return the names of frozen tensors that this state dict would change under `prefix`."""
        frozen = self._frozen_buffers() if self.stage.sealed else {}
        given = {name: state[prefix + name] for name in frozen if prefix + name in state}
        return [prefix + name for name, tensor in given.items() if not same(tensor, frozen[name])]

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, *args: Any
    ) -> None:
        *_, errors = args
        self.show_nothing()
        if self.stage.sealed:
            errors.extend(map(FROZEN_CHANGES.format, self.changed_by(state_dict, prefix)))
            own = {prefix + name: tensor for name, tensor in self._frozen_buffers().items()}
            state_dict = {name: own.get(name, given) for name, given in state_dict.items()}
        nn.Module._load_from_state_dict(self, state_dict, prefix, metadata, *args)

    def __reduce__(self) -> tuple[Any, ...]:
        # A kind has functions, which cannot be pickled.
        state = {**self.__dict__, "layer_kind": None, "_shown": {}, "_portions": ()}
        return rebuilt, type(self).__bases__, state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, layer_kind=state["site"].layer_kind)


def not_once(path: str) -> TaskError:
    """Return the error for a layer that did not run once in the pass of every task."""
    return TaskError(
        f"{path} did not run exactly once for every task: predict_all runs forward on the neurons "
        "of one task after the other, and it must take the same path for all. Use "
        "net(x, task=...) for each task"
    )

"""Layers that run on a prefix of their neurons, frozen blocks apart from free ones.

A prefix layer is an instance of the user's own layer class, with the same settings, that stores
its tensors in blocks (see blocks.py): `weight_frozen` is a buffer, `weight_reuse` and
`weight_free` are Parameters that exist while a task is open.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clnp.core.structure.axis import View, num_entries, occupied, positions
from clnp.core.structure.graph import Site
from clnp.core.structure.kinds import Slot, slot_names

from .blocks import carry, complete, dead_weight, place, real_part, select, with_stand_ins
from .initialisation import Initial, starting_layer
from .portions import Widths, in_order, own_entries, own_neurons, run_portion
from .stage import Averaging, Pass, Portion, Stage, Staged, Tensors


class PrefixLayer(Staged):
    """Put in front of a layer class: the same layer, on a prefix of its neurons."""

    weight_reuse: nn.Parameter | None
    weight_free: nn.Parameter | None
    slots: tuple[Slot, ...]
    num_batches_free: Tensor | None
    """Batches in the running statistics of the open task; counted while `momentum` is None."""
    averaging: Averaging | None = None
    """There while BatchNorm is recalibrated."""

    def __init_subclass__(cls) -> None:
        """Offer the tensors that only some kinds of layers have, as `weight`."""
        for name in slot_names(cls) - set(dir(PrefixLayer)):
            setattr(cls, name, property(partial(PrefixLayer._own, name=name)))

    def set_up(self, layer: nn.Module, site: Site, stage: Stage) -> None:
        """Take over the settings of `layer`; no neuron is frozen and no task is open."""
        self.site, self.stage = site, stage
        self.slots = site.layer_kind.slots_of(layer)
        self.kernel = ()
        for slot in self.slots:
            tensor = getattr(layer, slot.name)
            tail = tensor.shape[2 if slot.has_columns else 1 :]
            columns = (num_entries(site.columns, stage.frozen),) if slot.has_columns else ()
            if slot.name == "weight":
                self.kernel = tuple(tail)
            self.register_buffer(
                f"{slot.name}_frozen", tensor.new_empty(0, *columns, *tail).detach()
            )
            for block in self._free_blocks(slot):
                register: Any = self.register_parameter if slot.trained else self.register_buffer
                register(block, None)
        self.register_buffer("num_batches_free", None)
        self.lay_out()

    def forward(self, input: Tensor) -> Tensor:
        running = self.running(input)
        if running is Pass.PORTION:
            return run_portion(self, input)
        if running is Pass.FREE:
            return self._mix(input) if self.site.mixes else self._act(input)
        if running is Pass.FROZEN and self.site.mixes:
            with torch.set_grad_enabled(self.stage.with_grad):
                self._carry = carry(self, input, stretches=self._frozen_real, free=self.free())
        if running is Pass.PLAIN and self.averaging is not None:
            return self._act_and_average(input, self.averaging)
        return self.site.layer_kind.run(self, input, self._shown)

    def _mix(self, x: Tensor) -> Tensor:
        if not self.num_free_rows:
            return self.site.layer_kind.run(
                self, x, dead_weight(self, x, num_rows=1, kernel=self.kernel)
            )
        carried, self._carry = self._carry, None
        return complete(
            self,
            x,
            stretches=self._free_real,
            free=self.free(),
            carried=carried,
            num_rows=self.num_free_rows,
        )

    def _act(self, x: Tensor) -> Tensor:
        if self._free_real is None:
            return self._act_on_real(x, self.free())
        if not self._free_real:
            if not self.kernel:
                return torch.zeros_like(x)
            dead = {"weight": x.new_zeros(x.shape[1], *self.kernel)}
            return self.site.layer_kind.run(self, x, dead)
        y = self._act_on_real(real_part(x, 1, self._free_real), self.free())
        return with_stand_ins(y, x.shape[1], self._free_real)

    def _act_on_real(self, x: Tensor, tensors: Tensors) -> Tensor:
        averaging = self.averaging
        if not self.site.layer_kind.keeps_statistics or not (
            self.training or averaging is not None
        ):
            return self.site.layer_kind.run(self, x, tensors)
        momentum: float | None = self.momentum  # type: ignore[assignment]
        if averaging is not None:
            num_values = x.numel() // x.shape[1]
            if num_values <= 1:  # A lone value has no variance.
                return self.site.layer_kind.run(self, x, tensors)
            if not averaging.num_values:  # NaN would stay NaN, however little it counts.
                mean, variance = tensors["running_mean"].zero_(), tensors["running_var"].fill_(1)
                averaging.statistics = mean, variance
            averaging.num_values += num_values
            momentum = num_values / averaging.num_values
        elif momentum is None:
            num_batches = self._need("num_batches_free") + 1
            momentum = 1.0 / int(num_batches)  # Fails in a step that is captured.
            self.num_batches_free = num_batches
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
        """Run on what is shown, and average the statistics of the open task's channels in it."""
        shown, channels = self._shown, averaging.channels
        assert channels is not None
        before = {name: shown[name].clone() for name in ("running_mean", "running_var")}
        y = self._act_on_real(x, shown)
        for name, tensor in before.items():
            shown[name].copy_(torch.where(channels, shown[name], tensor))
        stored = {**shown, **before}
        return torch.where(
            channels.view(-1, *[1] * (x.ndim - 2)), y, self.site.layer_kind.run(self, x, stored)
        )

    @property
    def weight(self) -> Tensor | None:
        """The block that the open task trains; without one an empty tensor, never what is frozen.

        Code that asks a layer for its dtype or device, or initialises it, finds what it may change.
        """
        return self._own("weight")

    @property
    def bias(self) -> Tensor | None:
        """As `weight`; None for a layer without bias."""
        return self._own("bias")

    @property
    def running_mean(self) -> Tensor | None:
        """As `weight`; None for a layer without running statistics."""
        return self._own("running_mean")

    @property
    def running_var(self) -> Tensor | None:
        """As `weight`; None for a layer without running statistics."""
        return self._own("running_var")

    def reset_running_stats(self) -> None:
        """Forget the statistics of the open task's channels, those that may change."""
        for name, value in (("running_mean", 0), ("running_var", 1), ("num_batches", 0)):
            block = self._block(f"{name}_free")
            if block is not None:
                block.fill_(value)

    def _own(self, name: str) -> Tensor | None:
        for block in (self._block(f"{name}_free"), self._block(f"{name}_reuse")):
            if block is not None:
                return block
        frozen = self._block(f"{name}_frozen")
        if frozen is None:
            return None
        # One input at least, for those who divide by their number.
        return frozen.new_empty(0, *(max(size, 1) for size in frozen.shape[1:]))

    def frozen(self) -> Tensors:
        """The frozen tensors by name."""
        return {slot.name: self._need(f"{slot.name}_frozen") for slot in self.slots}

    def free(self) -> Tensors:
        """The open task's tensors by name; "reuse" is its weight from the frozen neurons."""
        blocks = {slot.name: self._block(f"{slot.name}_free") for slot in self.slots}
        blocks["reuse"] = self._block("weight_reuse")
        return {name: block for name, block in blocks.items() if block is not None}

    def open(self, initial: Initial) -> None:
        """Make the tensors of a new task as the layer's class does, or as `initial` does."""
        free, frozen = self.stage.free, self.stage.frozen
        sizes = {group: frozen[group] + free[group] for group in frozen}
        num_free = num_entries(self.site.rows, free)
        if num_free:
            # None at all where a task is loaded that was pruned to nothing.
            num_inputs = max(num_entries(self.site.columns, sizes), 1)
            made = starting_layer(initial, self, num_outputs=num_free, num_inputs=num_inputs)
            reuse = positions(
                self.site.columns,
                sizes,
                {g: range(n) for g, n in frozen.items()},
                wants_input=False,
            )
            own = positions(
                self.site.columns, sizes, {g: range(frozen[g], sizes[g]) for g in sizes}
            )
            for slot in self.slots:
                tensor = getattr(made, slot.name).detach()
                if slot.has_columns:
                    self._set(f"{slot.name}_reuse", select(tensor, 1, reuse), slot)
                    self._set(f"{slot.name}_free", select(tensor, 1, own), slot)
                else:
                    self._set(f"{slot.name}_free", tensor, slot)
        if self.site.layer_kind.keeps_statistics:
            # Whatever the momentum: `update_bn` sets it to None for a while.
            like = self._need("running_mean_frozen")
            self.num_batches_free = like.new_zeros((), dtype=torch.int64)
        self.lay_out()

    def restrict(self, keep: View) -> None:
        """Keep only some of the open task's neurons: `keep[g]` of the free ones of each group."""
        rows = positions(self.site.rows, self.stage.free, keep)
        columns = positions(self.site.columns, self.stage.free, keep)
        for slot in self.slots:
            for block in self._free_blocks(slot):
                tensor = self._block(block)
                if tensor is None:
                    continue
                tensor = select(tensor.detach(), 0, rows)
                if slot.has_columns and block.endswith("_free"):
                    tensor = select(tensor, 1, columns)
                self._set(block, tensor, slot)

    def extended(self) -> Tensors:
        """The frozen tensors as they are once the open task has claimed its neurons.

        The interference block, from new columns to rows that were frozen before, is zero.
        """
        free, frozen = self.stage.free, self.stage.frozen
        after = {group: frozen[group] + free[group] for group in frozen}
        old = {group: range(n) for group, n in frozen.items()}
        new = {group: range(frozen[group], after[group]) for group in frozen}
        axis, columns = self.site.rows, self.site.columns
        old_rows, new_rows = positions(axis, after, old), positions(axis, after, new)
        num_rows = len(old_rows) + len(new_rows)
        tensors = self.frozen()
        for slot in self.slots:
            before, block = tensors[slot.name], self._block(f"{slot.name}_free")
            if not slot.has_columns:
                tensor = before.new_empty(num_rows, *before.shape[1:])
                tensor[torch.from_numpy(old_rows).to(tensor.device)] = before
                if block is not None:
                    tensor[torch.from_numpy(new_rows).to(tensor.device)] = block.detach()
            else:
                tensor = before.new_zeros(num_rows, num_entries(columns, after), *before.shape[2:])
                place(tensor, old_rows, positions(columns, after, old), before)
                reuse = self._block(f"{slot.name}_reuse")
                if reuse is not None:
                    carried = positions(columns, after, old, wants_input=False)
                    place(tensor, new_rows, carried, reuse.detach())
                if block is not None:
                    place(tensor, new_rows, positions(columns, after, new), block.detach())
            tensors[slot.name] = tensor
        return tensors

    def close(self, tensors: Tensors | None) -> None:
        """Drop the free tensors; with `tensors`, those are frozen from now on."""
        self.num_batches_free = None
        for slot in self.slots:
            for block in self._free_blocks(slot):
                setattr(self, block, None)
            if tensors is not None:
                setattr(self, f"{slot.name}_frozen", tensors[slot.name])
        self.lay_out()

    def allocate(self) -> None:
        """Make the frozen tensors as large as the stage says, to be loaded into."""
        num_rows = num_entries(self.site.rows, self.stage.frozen)
        num_columns = num_entries(self.site.columns, self.stage.frozen)
        for slot in self.slots:
            tensor = self._need(f"{slot.name}_frozen")
            shape = (num_columns, *tensor.shape[2:]) if slot.has_columns else tensor.shape[1:]
            setattr(self, f"{slot.name}_frozen", tensor.new_zeros(num_rows, *shape))
        self.lay_out()

    def narrowed(
        self,
        tensors: Tensors,
        layout: Widths,
        view: View,
        *,
        stand_in: bool,
        read: View | None = None,
    ) -> Tensors:
        """The part of `tensors`, which store `layout`, that the neurons of `view` read.

        They read all that is in view, or what is in `read`.
        """
        rows = positions(self.site.rows, layout, view, stand_in=stand_in)
        columns = positions(self.site.columns, layout, read or view, stand_in=stand_in)
        narrow = {}
        for slot in self.slots:
            tensor = select(tensors[slot.name], 0, rows, fill=slot.dead)
            narrow[slot.name] = select(tensor, 1, columns) if slot.has_columns else tensor
        return narrow

    def as_candidate(
        self, whole: Tensors, before: Widths, after: Widths, *, run: View, read: View
    ) -> Tensors:
        """The part of `whole`, the open task with all neurons, with which `run` reads `read`."""
        return self.narrowed(whole, after, run, stand_in=True, read=read)

    def portion_of(self, widths: Sequence[Widths]) -> Portion:
        """What the last of some ended tasks added; `widths` are those before and after each."""
        layout, columns = self.stage.frozen, self.site.columns
        rows = positions(self.site.rows, layout, own_neurons(widths), stand_in=True)
        tensors = {
            slot.name: select(self._need(f"{slot.name}_frozen"), 0, rows, fill=slot.dead)
            for slot in self.slots
        }
        if not self.site.mixes:
            return Portion(tensors)
        # Rows that only stand in read nothing.
        read = in_order(columns, layout, widths) if (rows >= 0).any() else np.empty(0, np.int64)
        tensors["weight"] = select(tensors["weight"], 1, read)
        return Portion(tensors, own_entries(columns, widths), keeps=True)

    def lay_out(self) -> None:
        """Note where real neurons lie in the inputs of the two passes, after the stage changed."""
        free, frozen = self.stage.free, self.stage.frozen
        self.num_free_rows = num_entries(self.site.rows, free)
        self._free_real = occupied(self.site.columns, free)
        self._frozen_real = occupied(self.site.columns, frozen, counts_input=False)
        self._carry = None

    @staticmethod
    def _free_blocks(slot: Slot) -> list[str]:
        return (
            [f"{slot.name}_reuse", f"{slot.name}_free"]
            if slot.has_columns
            else [f"{slot.name}_free"]
        )

    def _set(self, block: str, tensor: Tensor, slot: Slot) -> None:
        if not tensor.numel():
            setattr(self, block, None)
            return
        like = self._need(f"{slot.name}_frozen")
        made = tensor.to(like.device, like.dtype).clone(memory_format=torch.contiguous_format)
        if slot.trained:
            before = self._block(block)
            made = nn.Parameter(made, before is None or before.requires_grad)
        setattr(self, block, made)

    def _block(self, name: str) -> Tensor | None:
        return getattr(self, name, None)

    def _need(self, name: str) -> Tensor:
        tensor: Tensor = getattr(self, name)
        return tensor

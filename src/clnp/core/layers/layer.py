"""Layers that run on a prefix of their neurons.

A prefix layer is an instance of the user's own layer class, with the same settings, that stores
its tensors in blocks (see `stage`): `weight_frozen` is a buffer, `weight_reuse` and `weight_free`
are Parameters that exist while a task is open.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from clnp.core.structure.axis import View, num_entries, positions
from clnp.core.structure.graph import Site
from clnp.core.structure.kinds import slot_names

from .blocks import Tensors, Widths, in_order, old_and_new, own_entries, own_neurons, place, select
from .initialisation import Initial
from .stage import Portion, Stage, Staged


def _trained(name: str) -> property:
    """Make a property of the block that the open task trains.

    Without a block it is an empty tensor, never a frozen one: code that asks a layer for its dtype
    or device, or initialises it, finds only what it may change. It is None if the layer has no such
    tensor.
    """

    def block(layer: nn.Module) -> Tensor | None:
        for own in (f"{name}_free", f"{name}_reuse"):
            found: Tensor | None = getattr(layer, own, None)
            if found is not None:
                return found
        frozen: Tensor | None = getattr(layer, f"{name}_frozen", None)
        if frozen is None:
            return None
        # One input at least, for code that divides by their number.
        return frozen.new_empty(0, *(max(size, 1) for size in frozen.shape[1:]))

    return property(block)


class PrefixLayer(Staged):
    """Put in front of a layer class: the same layer, on a prefix of its neurons."""

    def __init_subclass__(cls) -> None:
        """Offer the tensors that only some kinds of layers have, as `weight`."""
        for name in slot_names(cls) - set(dir(PrefixLayer)):
            setattr(cls, name, _trained(name))

    def set_up(self, layer: nn.Module, site: Site, stage: Stage) -> None:
        """Take over the settings of `layer`; no neuron is frozen and no task is open."""
        self.attach(layer, site, stage)
        for slot in self.slots:
            like = getattr(layer, slot.name).detach()
            tail = like.shape[2 if slot.has_columns else 1 :]
            columns = (num_entries(site.columns, stage.frozen),) if slot.has_columns else ()
            self.register_buffer(f"{slot.name}_frozen", like.new_empty(0, *columns, *tail))
            if not slot.trained:
                self.register_buffer(f"{slot.name}_free", None)
        self.register_buffer("num_batches_free", None)
        self.lay_out()

    weight, bias = _trained("weight"), _trained("bias")
    running_mean, running_var = _trained("running_mean"), _trained("running_var")

    def reset_running_stats(self) -> None:
        """Reset the statistics of the open task's channels, the only ones that may change."""
        blocks = {**self.free(), "num_batches": self.num_batches_free}
        for name, value in (("running_mean", 0), ("running_var", 1), ("num_batches", 0)):
            block = blocks.get(name)
            if block is not None:
                block.fill_(value)

    def frozen(self) -> Tensors:
        """Return the frozen tensors by slot."""
        return {slot.name: getattr(self, f"{slot.name}_frozen") for slot in self.slots}

    def open(self, initial: Initial) -> None:
        """Make the tensors of a new task as the layer's class does, or as `initial` does."""
        super().open(initial)
        if self.layer_kind.keeps_statistics:
            # Whatever the momentum: `update_bn` sets it to None for a while.
            like: Tensor = self.running_mean_frozen  # type: ignore[assignment]
            self.num_batches_free = like.new_zeros((), dtype=torch.int64)

    def extended(self) -> Tensors:
        """Return the frozen tensors as they are once the open task has claimed its neurons.

        The interference block, from new columns to rows that were frozen before, is zero.
        """
        after, old, new = old_and_new(self.stage.frozen, self.stage.free)
        axis, columns = self.site.rows, self.site.columns
        old_rows, new_rows = positions(axis, after, old), positions(axis, after, new)
        num_rows = len(old_rows) + len(new_rows)
        tensors, free = self.frozen(), self.free()
        for slot in self.slots:
            before, block = tensors[slot.name], free.get(slot.name)
            if not slot.has_columns:
                tensor = before.new_empty(num_rows, *before.shape[1:])
                tensor[torch.from_numpy(old_rows).to(tensor.device)] = before
                if block is not None:
                    tensor[torch.from_numpy(new_rows).to(tensor.device)] = block.detach()
            else:
                tensor = before.new_zeros(num_rows, num_entries(columns, after), *self.kernel)
                place(tensor, old_rows, positions(columns, after, old), before)
                self.place_free(tensor, new_rows)
            tensors[slot.name] = tensor
        return tensors

    def close(self, tensors: Tensors, *, index: int) -> None:
        """Drop the free tensors, and freeze `tensors` if there are any."""
        for block in self.changing():
            setattr(self, block, None)
        for name, tensor in tensors.items():
            setattr(self, f"{name}_frozen", tensor)
        self.lay_out()

    def allocate(self) -> None:
        """Make the frozen tensors as large as the stage says, to be loaded into."""
        num_rows = num_entries(self.site.rows, self.stage.frozen)
        num_columns = num_entries(self.site.columns, self.stage.frozen)
        for slot in self.slots:
            tensor: Tensor = getattr(self, f"{slot.name}_frozen")
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
        """Return the rows of `view` in `tensors`, which store `layout`.

        They read all that is in view, or what is in `read`.
        """
        rows = positions(self.site.rows, layout, view, stand_in=stand_in)
        columns = positions(self.site.columns, layout, read or view, stand_in=stand_in)
        narrow = {}
        for slot in self.slots:
            tensor = select(tensors[slot.name], 0, rows, fill=slot.dead)
            narrow[slot.name] = select(tensor, 1, columns) if slot.has_columns else tensor
        return narrow

    def subset_of(
        self, whole: Tensors, before: Widths, after: Widths, *, run: View, read: View
    ) -> Tensors:
        """Return the part of `whole`, the open task with all neurons, that runs `run`."""
        return self.narrowed(whole, after, run, stand_in=True, read=read)

    def portion_of(self, widths: Sequence[Widths]) -> Portion:
        """Return the portion of the last task, from the widths before and after each task."""
        layout, columns = self.stage.frozen, self.site.columns
        rows = positions(self.site.rows, layout, own_neurons(widths), stand_in=True)
        tensors = self.frozen()
        for slot in self.slots:
            tensors[slot.name] = select(tensors[slot.name], 0, rows, fill=slot.dead)
        if not self.layer_kind.mixes:
            return Portion(tensors)
        # Rows that only stand in read nothing.
        read = in_order(columns, layout, widths) if (rows >= 0).any() else np.empty(0, np.int64)
        tensors["weight"] = select(tensors["weight"], 1, read)
        return Portion(tensors, own_entries(columns, widths), keeps=True)

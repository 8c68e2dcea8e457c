"""The classifier, which turns the neurons of the last layers into the outputs of a task.

*Multi-head*: every task has separate outputs, which read all neurons that are frozen when it
ends. *Single-head*: all tasks share the outputs. A task reads only the neurons that it added
itself, and the bias of an output is learned by the first task that uses it and frozen from then on.

Ended tasks keep their tensors as `weight_0`, `bias_0`, `weight_1`, ... With a single head, the
weights side by side are the one output layer of fixed size, and the bias is `bias_frozen`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from clnp.core.structure.axis import View, as_index, num_entries, positions
from clnp.core.structure.graph import Site

from .blocks import Tensors, Widths, in_order, old_and_new, own_entries, select
from .initialisation import Initial
from .stage import Portion, Stage, Staged


class Head(Staged):
    """Put in front of the classifier's class: the outputs of every task."""

    makes_outputs = True
    like: nn.Parameter
    num_outputs: int
    """Outputs of the open task, or of the classifier while none is open."""

    def set_up(self, layer: Any, site: Site, stage: Stage, *, shared: bool) -> None:
        """Take over the settings of the classifier; no task is known."""
        self.attach(layer, site, stage)
        self.shared, self.has_bias = shared, layer.bias is not None
        self.most_outputs = self.num_outputs = int(layer.weight.shape[0])
        if self.has_bias:
            self.register_buffer("bias_frozen", layer.weight.new_empty(0).detach())
        # Nothing may be stored: this keeps dtype and device, for forward too, which may look for
        # them in the first of its parameters.
        empty = layer.weight.new_empty(0).detach()
        self.register_parameter("like", nn.Parameter(empty, requires_grad=False))
        self.lay_out()

    @property
    def weight(self) -> Tensor:
        """The block that the open task trains, or an empty tensor, never a frozen one."""
        for block in (self.weight_free, self.weight_reuse):
            if block is not None:
                return block
        return self.like.new_empty(0, 1, *self.kernel)

    @property
    def bias(self) -> Tensor | None:
        """As `weight`; None for a classifier without bias."""
        if self.bias_free is not None:
            return self.bias_free
        return self.like.clone() if self.has_bias else None

    def open(self, initial: Initial) -> None:
        """Make the tensors of a new task as the classifier's class does, or as `initial` does."""
        super().open(initial)
        if self.shared and self.bias_free is not None:
            learned = self.bias_free.detach()[self.bias_frozen.numel() :]
            self.store("bias_free", learned, self.like)

    def extended(self) -> Tensors:
        """Return the open task's tensors once it has claimed its neurons, in one piece."""
        after, _, _ = old_and_new(self.frozen_layout(), self.stage.free)
        num_columns = num_entries(self.site.columns, after)
        weight = self.like.new_zeros(self.num_outputs, num_columns, *self.kernel)
        self.place_free(weight, np.arange(self.num_outputs))
        bias = {name: tensor.detach().clone() for name, tensor in self._bias().items()}
        return {"weight": weight, **bias}

    def close(self, tensors: Tensors, *, index: int) -> None:
        """Drop the trained tensors, and freeze `tensors`, if any, as those of task `index`."""
        self.weight_reuse = self.weight_free = self.bias_free = None
        if tensors:
            self._freeze(index, tensors)
        self.num_outputs = self.most_outputs
        self.lay_out()

    def allocate(self, index: int, num_outputs: int, *, before: Widths, after: Widths) -> None:
        """Make room for the ended task number `index`, to be loaded into."""
        columns = num_entries(self.site.columns, self._columns_of(before, after))
        tensors = {"weight": self.like.new_zeros(num_outputs, columns, *self.kernel)}
        self._freeze(index, {**tensors, "bias": self.like.new_zeros(num_outputs)})
        self.lay_out()

    def _columns_of(self, before: Widths, after: Widths) -> Widths:
        """Return the neurons that a task reads which claimed `before[g]` to `after[g]`."""
        return {g: after[g] - before[g] for g in after} if self.shared else after

    def outputs(self, num_tasks: int) -> tuple[int, ...]:
        """Return the number of outputs of each of the ended tasks."""
        return tuple(len(getattr(self, f"weight_{index}")) for index in range(num_tasks))

    def _freeze(self, index: int, tensors: Tensors) -> None:
        self.register_buffer(f"weight_{index}", tensors["weight"])
        if self.has_bias and self.shared:
            if tensors["bias"].numel() > self.bias_frozen.numel():
                self.bias_frozen = tensors["bias"]
            self.register_buffer(f"bias_{index}", None)
        elif self.has_bias:
            self.register_buffer(f"bias_{index}", tensors["bias"])

    def frozen(self, index: int) -> Tensors:
        """Return the tensors that the ended task number `index` reads."""
        weight: Tensor = getattr(self, f"weight_{index}")
        if not self.has_bias:
            return {"weight": weight}
        bias: Tensor | None = getattr(self, f"bias_{index}")
        return {"weight": weight, "bias": self.bias_frozen[: len(weight)] if bias is None else bias}

    def narrowed(self, tensors: Tensors, *, before: Widths, after: Widths, view: View) -> Tensors:
        """Return the tensors of a task that claimed `before[g]` to `after[g]`, to read `view`.

        A single head has columns of zeros for the neurons in view that it does not read.
        """
        wanted = {g: as_index(view[g]) - (before[g] if self.shared else 0) for g in view}
        stored = self._columns_of(before, after)
        columns = positions(self.site.columns, stored, wanted, stand_in=True)
        return {**tensors, "weight": select(tensors["weight"], 1, columns)}

    def subset_of(
        self, whole: Tensors, before: Widths, after: Widths, *, run: View, read: View
    ) -> Tensors:
        """Return the part of `whole`, the open task with all neurons, that reads `read`."""
        return self.narrowed(whole, before=before, after=after, view=read)

    def portion_of(self, widths: Sequence[Widths]) -> Portion:
        """Return the portion of the last task, from the widths before and after each task."""
        tensors, columns = self.frozen(len(widths) - 2), self.site.columns
        if not self.shared:
            order = in_order(columns, widths[-1], widths)
            tensors = {**tensors, "weight": select(tensors["weight"], 1, order)}
        return Portion(tensors, own_entries(columns, widths), keeps=not self.shared)

    def lay_out(self) -> None:
        """Note where real neurons lie in the inputs of the two passes, after the stage changed."""
        super().lay_out()
        self.num_free_rows = self.num_outputs

"""The classifier: what turns the neurons of the last layers into a task's outputs.

*Multi-head*: every task has outputs of its own, which read all neurons that are frozen when it
ends. *Single-head*: all tasks share the outputs; a task reads only the neurons that it added
itself, and an output's bias is learnt by the first task that uses it and frozen from then on.

Ended tasks keep their tensors as `weight_0`, `bias_0`, `weight_1`, ...; with a single head, the
weights side by side are the one output layer of fixed size and the bias is `bias_frozen`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clnp.core.structure.axis import View, as_index, num_entries, occupied, positions
from clnp.core.structure.graph import Site

from .blocks import carry, complete, dead_weight, place, select
from .initialisation import Initial, starting_layer
from .portions import Widths, in_order, own_entries, run_portion
from .stage import Pass, Portion, Stage, Staged, Tensors


class Head(Staged):
    """Put in front of the classifier's class: the outputs of every task."""

    shared: bool
    weight_reuse: nn.Parameter | None
    weight_free: nn.Parameter | None
    bias_free: nn.Parameter | None
    bias_frozen: Tensor
    like: nn.Parameter
    num_outputs: int
    """Outputs of the open task, or of the classifier while none is open."""

    def set_up(self, layer: Any, site: Site, stage: Stage, *, shared: bool) -> None:
        """Take over the settings of the classifier; no task is known."""
        self.site, self.stage, self.shared = site, stage, shared
        self.has_bias = layer.bias is not None
        self.most_outputs = self.num_outputs = int(layer.weight.shape[0])
        self.kernel = tuple(layer.weight.shape[2:])
        for block in ("weight_reuse", "weight_free", "bias_free"):
            self.register_parameter(block, None)
        if self.has_bias:
            self.register_buffer("bias_frozen", layer.weight.new_empty(0).detach())
        # Nothing may be stored: this keeps dtype and device, for forward too, which may look for
        # them in the first of its parameters.
        empty = layer.weight.new_empty(0).detach()
        self.register_parameter("like", nn.Parameter(empty, requires_grad=False))
        self.lay_out()

    def forward(self, input: Tensor) -> Tensor:
        running = self.running(input)
        if running is Pass.PORTION:
            return run_portion(self, input)
        if running is Pass.PLAIN:
            return self.site.layer_kind.run(self, input, self._shown)
        if running is Pass.FROZEN:
            with torch.set_grad_enabled(self.stage.with_grad):
                self._carry = carry(self, input, stretches=self._frozen_real, free=self._free())
            if self._carry is not None:
                return self._carry.detach().clone()  # Forward may go on in place.
            dead = dead_weight(self, input, num_rows=self.num_outputs, kernel=self.kernel)
            return self.site.layer_kind.run(self, input, dead)
        carried, self._carry = self._carry, None
        return complete(
            self,
            input,
            stretches=self._free_real,
            free=self._free(),
            carried=carried,
            num_rows=self.num_outputs,
        )

    @property
    def weight(self) -> Tensor:
        """The block that the open task trains, or an empty tensor, never what is frozen."""
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

    def open(self, num_outputs: int, initial: Initial) -> None:
        """Make the tensors of a new task as the classifier's class does, or as `initial` does."""
        self.num_outputs = num_outputs
        free = self.stage.free
        frozen = dict.fromkeys(free, 0) if self.shared else self.stage.frozen
        sizes = {group: frozen[group] + free[group] for group in free}
        num_inputs = max(num_entries(self.site.columns, sizes), 1)
        made = starting_layer(initial, self, num_outputs=num_outputs, num_inputs=num_inputs)
        columns = self.site.columns
        old = {group: range(n) for group, n in frozen.items()}
        own = {group: range(frozen[group], sizes[group]) for group in sizes}
        weight = made.weight.detach()[:num_outputs]
        reuse = select(weight, 1, positions(columns, sizes, old, wants_input=False))
        self.weight_reuse = self._parameter(reuse)
        self.weight_free = self._parameter(select(weight, 1, positions(columns, sizes, own)))
        if self.has_bias:
            learnt = self.bias_frozen.numel() if self.shared else 0
            self.bias_free = self._parameter(made.bias.detach()[learnt:num_outputs])
        self.lay_out()

    def restrict(self, keep: View) -> None:
        """Keep only some of the open task's neurons: `keep[g]` of the free ones of each group."""
        columns = positions(self.site.columns, self.stage.free, keep)
        for block in ("weight_reuse", "weight_free", "bias_free"):
            before: nn.Parameter | None = getattr(self, block)
            if before is not None:
                tensor = before.detach()
                kept = select(tensor, 1, columns) if block == "weight_free" else tensor
                setattr(self, block, self._parameter(kept, before.requires_grad))

    def extended(self) -> Tensors:
        """The open task's tensors once it has claimed its neurons, in one piece."""
        free = self.stage.free
        frozen = dict.fromkeys(free, 0) if self.shared else self.stage.frozen
        after = {group: frozen[group] + free[group] for group in free}
        columns, rows = self.site.columns, np.arange(self.num_outputs)
        weight = self.weight.new_zeros(
            self.num_outputs, num_entries(columns, after), *self.kernel
        ).detach()
        if self.weight_reuse is not None:
            old = {group: range(n) for group, n in frozen.items()}
            place(
                weight,
                rows,
                positions(columns, after, old, wants_input=False),
                self.weight_reuse.detach(),
            )
        if self.weight_free is not None:
            new = {group: range(frozen[group], after[group]) for group in free}
            place(weight, rows, positions(columns, after, new), self.weight_free.detach())
        bias = self._bias()
        return (
            {"weight": weight}
            if bias is None
            else {"weight": weight, "bias": bias.detach().clone()}
        )

    def close(self, tensors: Tensors | None, *, index: int) -> None:
        """Drop the trained tensors; with `tensors`, those are frozen as the task number `index`."""
        self.weight_reuse = self.weight_free = self.bias_free = None
        if tensors is not None:
            self._store(index, tensors)
        self.num_outputs = self.most_outputs
        self.lay_out()

    def allocate(
        self, index: int, num_outputs: int, *, before: Mapping[str, int], after: Mapping[str, int]
    ) -> None:
        """Make room for the ended task number `index`, to be loaded into."""
        first = before if self.shared else dict.fromkeys(before, 0)
        stored = {group: after[group] - first[group] for group in after}
        columns = num_entries(self.site.columns, stored)
        tensors = {"weight": self.like.new_zeros(num_outputs, columns, *self.kernel)}
        self._store(index, {**tensors, "bias": self.like.new_zeros(num_outputs)})
        self.lay_out()

    def outputs(self, num_tasks: int) -> tuple[int, ...]:
        """The number of outputs of each of the ended tasks."""
        return tuple(len(getattr(self, f"weight_{index}")) for index in range(num_tasks))

    def _store(self, index: int, tensors: Tensors) -> None:
        self.register_buffer(f"weight_{index}", tensors["weight"])
        if self.has_bias and self.shared:
            if tensors["bias"].numel() > self.bias_frozen.numel():
                self.bias_frozen = tensors["bias"]
            self.register_buffer(f"bias_{index}", None)
        elif self.has_bias:
            self.register_buffer(f"bias_{index}", tensors["bias"])

    def frozen(self, index: int) -> Tensors:
        """What the ended task number `index` reads."""
        weight: Tensor = getattr(self, f"weight_{index}")
        if not self.has_bias:
            return {"weight": weight}
        bias: Tensor | None = getattr(self, f"bias_{index}")
        return {"weight": weight, "bias": self.bias_frozen[: len(weight)] if bias is None else bias}

    def narrowed(self, tensors: Tensors, *, before: Widths, after: Widths, view: View) -> Tensors:
        """The tensors of a task that claimed `before[g]` to `after[g]`, for an input of `view`.

        A single head has columns of zeros for the neurons in view that it does not read.
        """
        first = dict(before) if self.shared else dict.fromkeys(before, 0)
        stored = {group: after[group] - first[group] for group in after}
        wanted = {group: as_index(view[group]) - first[group] for group in view}
        columns = positions(self.site.columns, stored, wanted, stand_in=True)
        return {**tensors, "weight": select(tensors["weight"], 1, columns)}

    def as_candidate(
        self, whole: Tensors, before: Widths, after: Widths, *, run: View, read: View
    ) -> Tensors:
        """The part of `whole`, the open task with all neurons, that reads `read`."""
        return self.narrowed(whole, before=before, after=after, view=read)

    def portion_of(self, widths: Sequence[Widths]) -> Portion:
        """What the last of some ended tasks added; `widths` are those before and after each."""
        tensors, columns = self.frozen(len(widths) - 2), self.site.columns
        if not self.shared:
            order = in_order(columns, widths[-1], widths)
            tensors = {**tensors, "weight": select(tensors["weight"], 1, order)}
        return Portion(tensors, own_entries(columns, widths), keeps=not self.shared)

    def _bias(self) -> Tensor | None:
        if not self.has_bias:
            return None
        if not self.shared or self.bias_frozen.numel() == 0:
            return self.bias_free if self.bias_free is not None else self.bias_frozen
        known = self.bias_frozen[: self.num_outputs]
        return known if self.bias_free is None else torch.cat([known, self.bias_free])

    def _free(self) -> Tensors:
        blocks = {"weight": self.weight_free, "bias": self._bias(), "reuse": self.weight_reuse}
        return {name: block for name, block in blocks.items() if block is not None}

    def lay_out(self) -> None:
        """Note where real neurons lie in the inputs of the two passes, after the stage changed."""
        self._free_real = occupied(self.site.columns, self.stage.free)
        self._frozen_real = occupied(self.site.columns, self.stage.frozen, counts_input=False)
        self._carry = None

    def _parameter(self, tensor: Tensor, requires_grad: bool = True) -> nn.Parameter | None:
        if not tensor.numel():
            return None
        made = tensor.to(self.like.device, self.like.dtype)
        return nn.Parameter(made.clone(memory_format=torch.contiguous_format), requires_grad)

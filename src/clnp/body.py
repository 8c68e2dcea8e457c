"""The user's model with its layers in blocks: opens, shows and runs tasks, knows no names.

`ContinualNet` decides what may happen; the body does it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from .axis import View, groups_of
from .blocks import Pass, Stage, Tensors
from .graph import Graph
from .heads import Head
from .layers import PrefixLayer
from .surgery import NORMS, in_front_of, with_layers

Widths = Mapping[str, int]


class Body:
    """A copy of `model` whose layers store frozen and free neurons apart.

    `stage.frozen` and `stage.free` count the neurons of each group that are claimed and that the
    open task trains.
    """

    def __init__(self, model: nn.Module, graph: Graph, *, shared_head: bool) -> None:
        self.graph = graph
        self.stage = Stage(graph.groups)
        self.layers: dict[str, PrefixLayer] = {}
        for path, site in graph.sites.items():
            layer = model.get_submodule(path)
            if path == graph.classifier:
                self.head = cast(Head, in_front_of(Head, layer))
                self.head.set_up(layer, site, self.stage, shared=shared_head)
            else:
                made = cast(PrefixLayer, in_front_of(PrefixLayer, layer))
                made.set_up(layer, site, self.stage)
                self.layers[path] = made
        self.model = with_layers(model, {**self.layers, graph.classifier: self.head})
        self._modules = list(self.model.modules())
        # With a single head, what only the head reads is never read by a later task.
        self._head_only = {
            group
            for group in graph.groups
            if shared_head and [site.path for site in graph.readers(group)] == [graph.classifier]
        }

    @property
    def head_groups(self) -> list[str]:
        """The groups that the classifier reads."""
        return groups_of(self.head.site.columns)

    def mixing(self) -> list[tuple[str, PrefixLayer | Head]]:
        """The layers that mix neurons, the classifier among them, by path."""
        layers = [(path, layer) for path, layer in self.layers.items() if layer.site.mixes]
        return [*layers, (self.graph.classifier, self.head)]

    def norms(self) -> list[PrefixLayer]:
        """The BatchNorm layers."""
        return [layer for layer in self.layers.values() if isinstance(layer, NORMS)]

    def open(self, free: Widths, num_outputs: int, *, initial: nn.Module | None) -> None:
        """Make the Parameters of a new task in the free neurons of each group."""
        self.stage.free = dict(free)
        self.stage.showing = None
        for path, layer in self.layers.items():
            layer.open(initial.get_submodule(path) if initial is not None else None)
        source = initial.get_submodule(self.graph.classifier) if initial is not None else None
        self.head.open(num_outputs, source)

    def restrict(self, keep: View) -> None:
        """Keep of the open task's neurons only `keep[g]`, in new Parameters."""
        for layer in self.layers.values():
            layer.restrict(keep)
        self.head.restrict(keep)
        self.stage.free = {group: len(neurons) for group, neurons in keep.items()}
        for part in (*self.layers.values(), self.head):
            part.lay_out()

    def close(self, *, claim: bool, index: int) -> None:
        """End the open task, number `index`: claim its neurons, or drop them."""
        layers = {
            p: layer.extended(self._all()) if claim else None for p, layer in self.layers.items()
        }
        head = self.head.extended(self._all()) if claim else None
        if claim:
            frozen, free = self.stage.frozen, self.stage.free
            self.stage.frozen = {group: frozen[group] + free[group] for group in frozen}
        self.stage.free = dict.fromkeys(self.stage.free, 0)
        self.stage.showing = None
        for path, layer in self.layers.items():
            layer.close(layers[path])
        self.head.close(head, index=index)

    def allocate(self, frozen: Widths, heads: list[tuple[int, Widths, Widths]]) -> None:
        """Make room for frozen neurons and for heads (outputs, widths before and after the task)."""
        self.stage.frozen = dict(frozen)
        for layer in self.layers.values():
            layer.allocate()
        for index, (num_outputs, before, after) in enumerate(heads):
            self.head.allocate(index, num_outputs, before=before, after=after)

    def free_part(self) -> dict[str, Tensor]:
        """All that the open task may change, by name: Parameters and running statistics."""
        return {
            f"{path}.{name}": tensor
            for path, part in {**self.layers, self.graph.classifier: self.head}.items()
            for name, tensor in (*part.named_parameters(), *part.named_buffers())
            if name.endswith(("_free", "_reuse"))
        }

    def weights(self) -> list[tuple[str, Tensor]]:
        """The weights that the open task trains, with the path of their layer; biases and BatchNorm
        are none, nor is the slope of a PReLU."""
        return [
            (path, block)
            for path, part in {**self.layers, self.graph.classifier: self.head}.items()
            if not isinstance(part, (*NORMS, nn.PReLU))
            for block in (getattr(part, "weight_reuse", None), part.weight_free)
            if block is not None
        ]

    def reads(self, index: int, *, before: Widths, after: Widths) -> dict[str, Tensor]:
        """Exactly what the inference of the ended task number `index` reads, by name."""
        tensors: dict[str, Tensor] = {}
        view = self._view(before, after)
        for path, layer in self.layers.items():
            narrow = layer.narrowed(layer.frozen(), self.stage.frozen, view, stand_in=False)
            tensors.update({f"{path}.{name}": tensor for name, tensor in narrow.items()})
        for name, tensor in self.head.frozen(index).items():
            tensors[f"{self.graph.classifier}.{name}"] = tensor
        for name in self.graph.constants:
            tensors[name] = self.model.get_buffer(name)
        return tensors

    def narrow(self, index: int, *, before: Widths, after: Widths) -> dict[str, Tensors]:
        """The tensors of each layer for the ended task number `index`, dead stand-ins included."""
        view = self._view(before, after)
        narrow = {
            path: layer.narrowed(layer.frozen(), self.stage.frozen, view, stand_in=True)
            for path, layer in self.layers.items()
        }
        head = self.head.narrowed(self.head.frozen(index), before=before, after=after, view=view)
        return {**narrow, self.graph.classifier: head}

    def show_task(self, index: int, *, before: Widths, after: Widths) -> None:
        """Lay out the ended task number `index` for the plain pass."""
        if self.stage.showing != index:
            self._show(self.narrow(index, before=before, after=after))
            self.stage.showing = index

    def show_candidate(self, keep: View) -> None:
        """Lay out the open task for the plain pass, as it would be with only the neurons `keep`."""
        before = self.stage.frozen
        after = {group: before[group] + len(keep[group]) for group in before}
        view = self._view(before, after)
        narrow = {
            path: layer.narrowed(layer.extended(keep), after, view, stand_in=True)
            for path, layer in self.layers.items()
        }
        head = self.head.narrowed(self.head.extended(keep), before=before, after=after, view=view)
        self._show({**narrow, self.graph.classifier: head})
        self.stage.showing = "candidate"

    def _show_frozen(self) -> None:
        frozen = self.stage.frozen
        view = self._view(frozen, frozen)
        self._show(
            {
                path: layer.narrowed(layer.frozen(), frozen, view, stand_in=True)
                for path, layer in self.layers.items()
            }
        )
        self.stage.showing = "frozen"

    def _show(self, tensors: Mapping[str, Tensors]) -> None:
        for path, layer in self.layers.items():
            layer.show(tensors[path])
        self.head.show(tensors.get(self.graph.classifier, {}))

    def run_shown(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The outputs of what is shown, in evaluation mode whatever the model's mode is."""
        with self.evaluating():
            return self.model(*args, **kwargs)

    def run_open(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The outputs of the open task: a frozen pass where something is frozen, then a free one."""
        stage = self.stage
        try:
            if any(stage.frozen.values()):
                if stage.showing != "frozen":
                    self._show_frozen()
                stage.with_grad = torch.is_grad_enabled()
                values = (*args, *kwargs.values())
                wanted = any(isinstance(v, Tensor) and v.requires_grad for v in values)
                stage.running = Pass.FROZEN
                with torch.set_grad_enabled(stage.with_grad and wanted):
                    self.model(*args, **kwargs)
            stage.running = Pass.FREE
            return self.model(*args, **kwargs)
        finally:
            stage.running = Pass.PLAIN

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode for every module; their own modes come back at the end."""
        training = [module for module in self._modules if module.training]
        for module in training:
            module.training = False
        try:
            yield
        finally:
            for module in training:
                module.training = True

    @contextmanager
    def recalibrating(self) -> Iterator[None]:
        """Evaluation mode, but the free channels of BatchNorm average their statistics anew."""
        with self.evaluating():
            for norm in self.norms():
                norm.training, norm.num_averaged = True, 0
            try:
                yield
            finally:
                for norm in self.norms():
                    norm.training, norm.num_averaged = False, None

    def snapshot(self) -> Callable[[], None]:
        """A function that puts the open task back to where it is now."""
        stage = self.stage
        parts = [*self.layers.values(), self.head]
        free, frozen = stage.free, stage.frozen
        stored = [(dict(part._parameters), dict(part._buffers)) for part in parts]

        def restore() -> None:
            stage.free, stage.frozen, stage.showing = free, frozen, None
            for part, (parameters, buffers) in zip(parts, stored, strict=True):
                part._parameters, part._buffers = dict(parameters), dict(buffers)
                part.lay_out()

        return restore

    def _view(self, before: Widths, after: Widths) -> dict[str, range]:
        """The neurons that a task computes which claimed `before[g]` to `after[g]`."""
        return {g: range(before[g] if g in self._head_only else 0, after[g]) for g in after}

    def _all(self) -> dict[str, range]:
        return {group: range(count) for group, count in self.stage.free.items()}

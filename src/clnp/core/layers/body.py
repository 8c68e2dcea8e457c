"""The user's model with its layers in blocks: opens, shows and runs tasks, knows no names.

`ContinualNet` decides what may happen; the body does it.
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn

from clnp.core.structure.axis import View, groups_of
from clnp.core.structure.graph import Graph
from clnp.core.structure.inputs import tensors_in
from clnp.core.structure.surgery import give_back, in_front_of, with_layers
from clnp.errors import GraphError, Problem

from .head import Head
from .initialisation import Initial, initial_at
from .layer import PrefixLayer
from .ledger import Ledger
from .portions import other_path
from .stage import Pass, Stage, Tensors, same

Widths = Mapping[str, int]
Inputs = tuple[Any, ...]
Named = Mapping[str, Any]
Result = TypeVar("Result")
Given = ParamSpec("Given")
RENAME = "Give the attribute another name"


def alone(
    method: Callable[Concatenate["Body", Given], Result],
) -> Callable[Concatenate["Body", Given], Result]:
    """A method that no other thread may run beside, and whose tensors outlive inference mode."""

    @wraps(method)
    def run(body: "Body", /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        with body.lock, torch.inference_mode(False):
            return method(body, *args, **kwargs)

    return run


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
        problems = [
            Problem(path, f"has an attribute {name!r}, which clnp has a use of its own for", RENAME)
            for path, part in self.parts.items()
            for name in give_back(part)
        ]
        if problems:
            raise GraphError(problems)
        self.model = with_layers(model, {**self.layers, graph.classifier: self.head})
        self.lock = threading.RLock()
        # With a single head, what only the head reads is never read by a later task.
        self._head_only = {
            group
            for group in graph.groups
            if shared_head and [site.path for site in graph.readers(group)] == [graph.classifier]
        }

    @property
    def parts(self) -> dict[str, PrefixLayer | Head]:
        """The layers and the head, by path."""
        return {**self.layers, self.graph.classifier: self.head}

    @property
    def head_groups(self) -> list[str]:
        """The groups that the classifier reads."""
        return groups_of(self.head.site.columns)

    @alone
    def open(self, free: Widths, num_outputs: int, *, initial: Initial = None) -> None:
        """Make the Parameters of a new task in the free neurons of each group."""
        self.stage.free = dict(free)
        self.show_nothing()
        for path, layer in self.layers.items():
            layer.open(initial_at(initial, path))
        self.head.open(num_outputs, initial_at(initial, self.graph.classifier))

    @alone
    def restrict(self, keep: View) -> None:
        """Keep of the open task's neurons only `keep[g]`, in new Parameters."""
        for layer in self.layers.values():
            layer.restrict(keep)
        self.head.restrict(keep)
        self.stage.free = {group: len(neurons) for group, neurons in keep.items()}
        for part in self.parts.values():
            part.lay_out()

    @alone
    def close(self, *, claim: bool, index: int) -> None:
        """End the open task, number `index`: claim its neurons, or drop them."""
        tensors = self.whole() if claim else dict.fromkeys(self.parts)
        if claim:
            frozen, free = self.stage.frozen, self.stage.free
            self.stage.frozen = {group: frozen[group] + free[group] for group in frozen}
            self.stage.sealed = True
        self.stage.free = dict.fromkeys(self.stage.free, 0)
        self.show_nothing()
        for path, layer in self.layers.items():
            layer.close(tensors[path])
        self.head.close(tensors[self.graph.classifier], index=index)

    def whole(self) -> dict[str, Tensors]:
        """The tensors of each layer and of the head once the open task has claimed its neurons."""
        return {path: part.extended() for path, part in self.parts.items()}

    def allocate(self, ledger: Ledger, num_outputs: Sequence[int]) -> None:
        """Make room for all ended tasks of the ledger, to be loaded into."""
        self.stage.frozen = ledger.claimed()
        for layer in self.layers.values():
            layer.allocate()
        for index, (task, count) in enumerate(zip(ledger.tasks, num_outputs, strict=True)):
            before, after = ledger.widths(task)
            self.head.allocate(index, count, before=before, after=after)

    def free_part(self) -> dict[str, Tensor]:
        """All that the open task may change, by name: Parameters and running statistics."""
        return {
            f"{path}.{name}": tensor
            for path, part in self.parts.items()
            for name, tensor in (*part.named_parameters(), *part.named_buffers())
            if name.endswith(("_free", "_reuse")) and tensor.is_floating_point()
        }

    def weights(self) -> list[tuple[str, Tensor]]:
        """The weights that the open task trains and that L1 penalises, by path."""
        found: list[tuple[str, Tensor]] = []
        for path, part in self.parts.items():
            if part.site.layer_kind.penalised:
                blocks = (part.weight_reuse if part.site.mixes else None, part.weight_free)
                found.extend((path, block) for block in blocks if block is not None)
        return found

    def reads(self, index: int, before: Widths, after: Widths) -> dict[str, Tensor]:
        """Exactly what the inference of the ended task number `index` reads, by name."""
        tensors: dict[str, Tensor] = {}
        for path, narrow in self._narrowed(self.view(before, after), stand_in=False).items():
            tensors.update({f"{path}.{name}": tensor for name, tensor in narrow.items()})
        for name, tensor in self.head.frozen(index).items():
            tensors[f"{self.graph.classifier}.{name}"] = tensor
        for name in self.graph.constants:
            tensors[name] = self.constant(name)
        return tensors

    def changed_by(self, state: Mapping[str, Any], prefix: str) -> list[str]:
        """What ended tasks read that this state dict would change, if loaded under `prefix`."""
        parts = (part.changed_by(state, f"{prefix}{p}.") for p, part in self.parts.items())
        return [*itertools.chain.from_iterable(parts), *self.changed_constants(state, prefix)]

    def constant(self, name: str) -> Tensor:
        """A buffer outside of layers."""
        return self.model.get_buffer(name)

    def changed_constants(self, state: Mapping[str, Any], prefix: str) -> list[str]:
        """Of that, the constants."""
        constants = [n for n in self.graph.constants if self.stage.sealed and prefix + n in state]
        buffers = {prefix + name: self.constant(name) for name in constants}
        return [name for name, buffer in buffers.items() if not same(state[name], buffer)]

    def narrow(self, index: int, before: Widths, after: Widths) -> dict[str, Tensors]:
        """The tensors of each layer for the ended task number `index`, dead stand-ins included."""
        view = self.view(before, after)
        head = self.head.narrowed(self.head.frozen(index), before=before, after=after, view=view)
        return {**self._narrowed(view, stand_in=True), self.graph.classifier: head}

    def _narrowed(self, view: View, *, stand_in: bool) -> dict[str, Tensors]:
        """The part of each layer's frozen tensors that the neurons of `view` read."""
        return {
            path: layer.narrowed(layer.frozen(), self.stage.frozen, view, stand_in=stand_in)
            for path, layer in self.layers.items()
        }

    def run_task(
        self, index: int, before: Widths, after: Widths, *, args: Inputs, kwargs: Named
    ) -> Any:
        """The outputs of the ended task number `index`.

        Never compiled: a graph that is compiled anew, for other tasks' widths, rounds otherwise.
        """
        with self.lock:
            self.show_task(index, before, after)
            return self.run_shown(args, kwargs)

    def show_task(self, index: int, before: Widths, after: Widths) -> None:
        """Lay out the ended task number `index` for the plain pass."""
        if self.stage.showing != index:
            with torch.inference_mode(False):  # What is shown outlives the caller's mode.
                self.show(self.narrow(index, before, after), index)

    def _show_frozen(self) -> None:
        view = self.view(self.stage.frozen, self.stage.frozen)
        with torch.inference_mode(False):
            self.show(self._narrowed(view, stand_in=True), "frozen")

    def show_nothing(self) -> None:
        """Let go of all that is laid out."""
        for part in self.parts.values():
            part.show_nothing()

    def show(self, tensors: Mapping[str, Tensors], what: object) -> None:
        """Lay out these tensors of each layer and of the head for the plain pass."""
        for path, layer in self.layers.items():
            layer.show(tensors[path])
        self.head.show(tensors.get(self.graph.classifier, {}))
        self.stage.showing = what

    def run_shown(self, args: Inputs, kwargs: Named) -> Any:
        """The outputs of what is shown, in evaluation mode whatever the model's mode is."""
        with self.evaluating():
            self.stage.running = Pass.PLAIN
            try:
                return self.model(*args, **kwargs)
            finally:
                self.stage.running = Pass.IDLE

    def run_open(self, args: Inputs, kwargs: Named) -> Any:
        """The outputs of the open task: a frozen pass if anything is frozen, then a free one."""
        if torch.compiler.is_compiling():  # A lock cannot be part of a graph.
            return self._run_open(args, kwargs)
        with self.lock:
            return self._run_open(args, kwargs)

    def _run_open(self, args: Inputs, kwargs: Named) -> Any:
        stage = self.stage
        try:
            if any(stage.frozen.values()):
                if stage.showing != "frozen":
                    eagerly(self._show_frozen)
                for part in self.parts.values():
                    part.forget_carry()
                stage.with_grad = torch.is_grad_enabled()
                wanted = any(tensor.requires_grad for tensor in tensors_in((args, kwargs)))
                stage.running = Pass.FROZEN
                with torch.set_grad_enabled(stage.with_grad and wanted):
                    self.model(*args, **kwargs)
            stage.running = Pass.FREE
            outputs = self.model(*args, **kwargs)
        finally:
            stage.running = Pass.IDLE
        for part in self.parts.values():
            part.check_carry()
        return outputs

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode for every module; their own modes come back at the end.

        No other thread runs a task meanwhile: it would find, or bring back, the wrong modes.
        """
        with self.lock:
            training = [module for module in self.model.modules() if module.training]
            own = [module for module in training if type(module).train is not nn.Module.train]
            try:
                _set_mode(training, False)
                for module in own:
                    module.train(False)
                yield
            finally:
                for module in own:
                    module.train(True)
                if own:
                    _set_mode(self.model.modules(), False)
                _set_mode(training, True)

    def take(self) -> dict[str, Tensor]:
        """Copies of all that the open task may change, by name."""
        with self.lock:
            return {
                f"{path}.{name}": tensor.detach().clone()
                for path, part in self.parts.items()
                for name, tensor in (*part._parameters.items(), *part._buffers.items())
                if tensor is not None and name.endswith(("_free", "_reuse"))
            }

    def put(self, free: Widths, tensors: Mapping[str, Tensor]) -> None:
        """Make the open task one with `free` neurons and copies of these tensors."""
        with self.lock, torch.inference_mode(False):
            self.stage.free = dict(free)
            for path, part in self.parts.items():
                for store in (part._parameters, part._buffers):
                    for name in [n for n in store if n.endswith(("_free", "_reuse"))]:
                        tensor = tensors.get(f"{path}.{name}")
                        if tensor is not None:
                            tensor = tensor.to(self.head.like.device, copy=True)
                            if store is part._parameters:
                                before = part._parameters[name]
                                trains = before is None or before.requires_grad
                                tensor = nn.Parameter(tensor, trains)
                        setattr(part, name, tensor)
                part.lay_out()

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Put the open task back to where it is now if what follows breaks off."""
        restore = self._snapshot()
        try:
            yield
        except BaseException:
            restore()
            raise

    def _snapshot(self) -> Callable[[], None]:
        """A function that puts the open task back to where it is now."""
        stage = self.stage
        parts = list(self.parts.values())
        free, frozen, num_outputs = stage.free, stage.frozen, self.head.num_outputs
        sealed = stage.sealed
        stored = [(dict(part._parameters), dict(part._buffers)) for part in parts]

        def restore() -> None:
            with self.lock:
                stage.free, stage.frozen, stage.sealed = free, frozen, sealed
                self.show_nothing()
                self.head.num_outputs = num_outputs
                for part, (parameters, buffers) in zip(parts, stored, strict=True):
                    part._parameters, part._buffers = dict(parameters), dict(buffers)
                    part.lay_out()

        return restore

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=threading.RLock())

    def view(self, before: Widths, after: Widths) -> dict[str, range]:
        """The neurons that a task computes which claimed `before[g]` to `after[g]`."""
        return {g: range(before[g] if g in self._head_only else 0, after[g]) for g in after}


def eagerly(function: Callable[[], Result]) -> Result:
    """What the function returns, run outside of the graph when the network is being compiled."""
    if torch.compiler.is_compiling():
        function = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return function()


def _set_mode(modules: Iterable[nn.Module], training: bool) -> None:
    for module in modules:
        if "training" in vars(module):  # PyTorch takes several times as long to set it.
            vars(module)["training"] = training
        else:
            module.training = training


SHOWN = "portions"


def run_all(
    body: Body, ledger: Ledger, *, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The outputs of every ended task, by name, in evaluation mode."""
    stage, outputs = body.stage, {}
    with body.lock, body.evaluating():
        if stage.showing != SHOWN:
            with torch.inference_mode(False):  # What is shown outlives the caller's mode.
                _show(body, ledger)
        stage.running = Pass.PORTION
        try:
            for number, task in enumerate(ledger.tasks):
                stage.turn = number
                outputs[task] = body.model(*args, **kwargs)
                for path, (num_passes, _) in stage.kept.items():
                    if num_passes != number + 1:
                        raise other_path(path)
        finally:
            stage.running, stage.kept = Pass.IDLE, {}
    return outputs


def _show(body: Body, ledger: Ledger) -> None:
    """Lay out what every ended task added to every layer."""
    widths = [dict.fromkeys(ledger.sizes, 0), *(row.widths for row in ledger.rows)]
    until = [widths[: number + 2] for number in range(len(ledger.rows))]
    body.show_nothing()
    for part in body.parts.values():
        part.show_portions([part.portion_of(widths) for widths in until])
    body.stage.showing = SHOWN

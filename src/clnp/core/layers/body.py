"""The user's model with its layers in blocks: it opens, shows and runs tasks.

`ContinualNet` decides what may happen, and the body does it.
"""

import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from clnp.core.structure.axis import View, groups_of, num_entries
from clnp.core.structure.graph import Graph
from clnp.core.structure.inputs import tensors_in
from clnp.core.structure.kinds import plain_layer
from clnp.core.structure.surgery import give_back, in_front_of, original, with_layers
from clnp.errors import GraphError, Problem, TaskError

from .blocks import Tensors, Widths, same
from .head import Head
from .initialisation import Initial
from .layer import PrefixLayer
from .ledger import Ledger
from .stage import OTHER_PATH, Pass, Stage, not_once

Inputs = tuple[Any, ...]
Named = Mapping[str, Any]
Result = TypeVar("Result")


class Body:
    """A copy of `model` whose layers store frozen and free neurons apart.

    Attributes:
        model: The copy.
        layers: Its layers, by path, and `head`, its classifier; `parts` has all of them.
        stage: The state of the passes, and the neurons of each group that are frozen and free.
        lock: Held while the model runs or changes.
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
        self.parts: dict[str, PrefixLayer | Head] = {**self.layers, graph.classifier: self.head}
        problems = [
            Problem(
                path,
                f"has an attribute {name!r}, which clnp needs itself",
                "Give the attribute another name",
            )
            for path, part in self.parts.items()
            for name in give_back(part)
        ]
        if problems:
            raise GraphError(problems)
        self.model = with_layers(model, self.parts)
        self.lock = threading.RLock()
        self.alphas: tuple[object, dict[str, float]] = (None, {})
        """The last alpha of `l1_penalty`, and that of each layer."""
        # With a single head, groups that only the head reads are never read by a later task.
        self._head_only = {
            group
            for group in graph.groups
            if shared_head and [site.path for site in graph.readers(group)] == [graph.classifier]
        }

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.head.like.device

    @property
    def head_groups(self) -> list[str]:
        """The groups that the classifier reads."""
        return groups_of(self.head.site.columns)

    def num_bytes(self, sizes: Widths) -> int:
        """Count the bytes of all weights if the groups have these sizes."""
        num_weights = self.head.most_outputs * self._num_columns(self.head, sizes)
        for layer in self.layers.values():
            num_weights += num_entries(layer.site.rows, sizes) * self._num_columns(layer, sizes)
        return num_weights * self.head.like.itemsize

    def _num_columns(self, part: Any, sizes: Widths) -> int:
        mixes = part.layer_kind.mixes
        return math.prod(part.kernel) * (num_entries(part.site.columns, sizes) if mixes else 1)

    def open(self, free: Widths, num_outputs: int, *, initial: Initial = None) -> None:
        """Make the Parameters of a new task in the free neurons of each group."""
        self.stage.free, self.head.num_outputs = dict(free), num_outputs
        self.show({}, None)
        for path, part in self.parts.items():
            part.open(initial.get_submodule(path) if isinstance(initial, nn.Module) else initial)

    def restrict(self, keep: View) -> None:
        """Keep of the open task's neurons only `keep[g]`, in new Parameters."""
        for part in self.parts.values():
            part.restrict(keep)
        self.stage.free = {group: len(neurons) for group, neurons in keep.items()}
        for part in self.parts.values():
            part.lay_out()

    def close(self, *, claim: bool, index: int) -> None:
        """End the open task, number `index`: claim its neurons, or drop them."""
        tensors = self.whole() if claim else {}
        if claim:
            frozen, free = self.stage.frozen, self.stage.free
            self.stage.frozen = {group: frozen[group] + free[group] for group in frozen}
            self.stage.sealed = True
        self.stage.free = dict.fromkeys(self.stage.free, 0)
        self.show({}, None)
        for path, part in self.parts.items():
            part.close(tensors.get(path, {}), index=index)

    def whole(self) -> dict[str, Tensors]:
        """Return the tensors of each part once the open task has claimed its neurons."""
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
        """Return all that the open task may change: Parameters, statistics and counts."""
        return {
            f"{path}.{name}": getattr(part, name)
            for path, part in self.parts.items()
            for name in part.changing()
            if getattr(part, name) is not None
        }

    def weights(self) -> list[tuple[str, Tensor]]:
        """Return the weights that the open task trains and that L1 penalises, by path."""
        return [
            (path, block)
            for path, part in self.parts.items()
            if part.layer_kind.penalised
            for block in (part.weight_reuse, part.weight_free)
            if block is not None
        ]

    def view(self, before: Widths, after: Widths) -> dict[str, range]:
        """Return the neurons that a task computes which claimed `before[g]` to `after[g]`."""
        return {g: range(before[g] if g in self._head_only else 0, after[g]) for g in after}

    def reads(self, ledger: Ledger, task: str) -> dict[str, Tensor]:
        """Return exactly the tensors that an ended task reads, by name."""
        parts = self._narrowed(self.view(*ledger.widths(task)), stand_in=False)
        parts[self.graph.classifier] = self.head.frozen(ledger.index(task))
        tensors = {f"{path}.{n}": part[n] for path, part in parts.items() for n in part}
        return tensors | {name: self.model.get_buffer(name) for name in self.graph.constants}

    def narrow(self, ledger: Ledger, task: str) -> dict[str, Tensors]:
        """Return the tensors of each part for an ended task, dead stand-ins included."""
        before, after = ledger.widths(task)
        view, whole = self.view(before, after), self.head.frozen(ledger.index(task))
        head = self.head.narrowed(whole, before=before, after=after, view=view)
        return {**self._narrowed(view, stand_in=True), self.graph.classifier: head}

    def _narrowed(self, view: View, *, stand_in: bool) -> dict[str, Tensors]:
        """Return the part of each layer's frozen tensors that the neurons of `view` read."""
        return {
            path: layer.narrowed(layer.frozen(), self.stage.frozen, view, stand_in=stand_in)
            for path, layer in self.layers.items()
        }

    def subnetwork(self, ledger: Ledger, task: str) -> nn.Module:
        """Return a copy of the model whose layers are plain, as narrow as the ended task.

        It is in evaluation mode, as the ended task is, and asks for no gradients: PyTorch may
        compute a layer that does in another way, whose last bits differ.
        """
        plain = {}
        for path, tensors in self.narrow(ledger, task).items():
            part = self.parts[path]
            like = next(iter(tensors.values()))
            num_inputs = like.shape[1] if part.layer_kind.mixes else len(like)
            made = plain_layer(part, num_outputs=len(like), num_inputs=num_inputs)
            filled = {name: tensor.detach() for name, tensor in tensors.items()}
            made.load_state_dict({**made.state_dict(), **filled})
            plain[path] = original(part, made)
        narrow = with_layers(self.model, plain).requires_grad_(False)
        narrow.eval()
        return narrow

    def show(self, tensors: Mapping[str, Tensors], what: object) -> None:
        """Show these tensors of each part in the plain pass, and drop those shown before."""
        for path, part in self.parts.items():
            part.show(tensors.get(path, {}))
        self.stage.showing = what

    def run_task(self, ledger: Ledger, task: str, args: Inputs, kwargs: Named) -> Any:
        """Return the outputs of an ended task."""
        index = ledger.index(task)
        with self.lock:
            if self.stage.showing != index:
                with torch.inference_mode(False):  # What is shown outlives the caller's mode.
                    self.show(self.narrow(ledger, task), index)
            return self.run_shown(args, kwargs)

    def run_shown(self, args: Inputs, kwargs: Named) -> Any:
        """Return the outputs of what is shown, in evaluation mode whatever the model's mode is."""
        with self.evaluating():
            self.stage.running = Pass.PLAIN
            try:
                return self.model(*args, **kwargs)
            finally:
                self.stage.running = Pass.IDLE

    def run_open(self, args: Inputs, kwargs: Named) -> Any:
        """Run the open task: a frozen pass if anything is frozen, then a free one."""
        if torch.compiler.is_compiling():  # A lock cannot be part of a graph.
            return self._run_open(args, kwargs)
        with self.lock:
            return self._run_open(args, kwargs)

    def _run_open(self, args: Inputs, kwargs: Named) -> Any:
        stage = self.stage
        stage.carried.clear()  # A pass that was interrupted may have left some.
        try:
            if any(stage.frozen.values()):
                if stage.showing != "frozen":
                    eagerly(self._show_frozen)
                stage.with_grad = torch.is_grad_enabled()
                inputs = tensors_in([*args, *kwargs.values()])
                wanted = any([tensor.requires_grad for tensor in inputs])
                stage.running = Pass.FROZEN
                with torch.set_grad_enabled(stage.with_grad and wanted):
                    self.model(*args, **kwargs)
            stage.running = Pass.FREE
            outputs = self.model(*args, **kwargs)
        finally:
            stage.running = Pass.IDLE
        for path in stage.carried:
            raise TaskError(OTHER_PATH.format(path, "ran only"))
        return outputs

    def _show_frozen(self) -> None:
        view = self.view(self.stage.frozen, self.stage.frozen)
        with torch.inference_mode(False):
            self.show(self._narrowed(view, stand_in=True), "frozen")

    def run_all(self, ledger: Ledger, args: Inputs, kwargs: Named) -> dict[str, Any]:
        """Return the outputs of every ended task, by name, in evaluation mode."""
        stage, outputs = self.stage, {}
        with self.evaluating():
            if stage.showing != "portions":
                with torch.inference_mode(False):  # What is shown outlives the caller's mode.
                    self._show_portions(ledger)
            stage.running = Pass.PORTION
            try:
                for index, task in enumerate(ledger.tasks):
                    stage.turn = index
                    outputs[task] = self.model(*args, **kwargs)
                    for path, (num_passes, _) in stage.kept.items():
                        if num_passes != index + 1:
                            raise not_once(path)
            finally:
                stage.running, stage.kept = Pass.IDLE, {}
        return outputs

    def _show_portions(self, ledger: Ledger) -> None:
        widths = [dict.fromkeys(ledger.sizes, 0), *(row.widths for row in ledger.rows)]
        until = [widths[: index + 2] for index in range(len(ledger.rows))]
        self.show({}, None)
        for part in self.parts.values():
            part.show({}, [part.portion_of(each) for each in until])
        self.stage.showing = "portions"

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Put every module in evaluation mode; their own modes come back at the end.

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
        """Return copies of all that the open task may change, by name."""
        return {name: tensor.detach().clone() for name, tensor in self.free_part().items()}

    def put(self, free: Widths, tensors: Mapping[str, Tensor]) -> None:
        """Make the open task one with `free` neurons and copies of these tensors."""
        self.stage.free = dict(free)
        for path, part in self.parts.items():
            for name in part.changing():
                tensor = tensors.get(f"{path}.{name}")
                copied = None if tensor is None else tensor.to(self.device, copy=True)
                part.put(name, copied, trained=name in part._parameters)
            part.lay_out()

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Put the open task back to where it is now if an error follows."""
        stage, head, parts = self.stage, self.head, self.parts.values()
        free, frozen, sealed, num_outputs = stage.free, stage.frozen, stage.sealed, head.num_outputs
        stored = [(dict(part._parameters), dict(part._buffers)) for part in parts]
        try:
            yield
        except BaseException:
            stage.free, stage.frozen, stage.sealed = free, frozen, sealed
            head.num_outputs = num_outputs
            self.show({}, None)
            for part, (parameters, buffers) in zip(parts, stored, strict=True):
                part._parameters, part._buffers = parameters, buffers
                part.lay_out()
            raise

    def changed_by(self, state: Mapping[str, Any], prefix: str) -> list[str]:
        """Return the names of frozen tensors that this state dict would change under `prefix`."""
        parts = (part.changed_by(state, f"{prefix}{p}.") for p, part in self.parts.items())
        return [*itertools.chain.from_iterable(parts), *self.changed_constants(state, prefix)]

    def changed_constants(self, state: Mapping[str, Any], prefix: str) -> list[str]:
        """Return the names of constants, buffers outside of layers, that it would change."""
        names = self.graph.constants if self.stage.sealed else ()
        return [
            prefix + name
            for name in names
            if prefix + name in state
            and not same(state[prefix + name], self.model.get_buffer(name))
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=threading.RLock())


def eagerly(function: Callable[[], Result]) -> Result:
    """Return what the function returns, run outside of the graph while compiling."""
    if torch.compiler.is_compiling():
        function = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return function()


def _set_mode(modules: Iterable[nn.Module], training: bool) -> None:
    for module in modules:
        if "training" in vars(module):  # PyTorch takes several times as long to set it.
            vars(module)["training"] = training
        else:
            module.training = training

"""Which layers of a model share neurons: found out by running one example.

The model is copied first and never changes: not its weights, buffers or mode, and no random
number is drawn from the user's generators.
"""

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from clnp.errors import ArgumentError, GraphError, Problem, unknown_name

from .axis import Axis, Segment, groups_of
from .declared import ROOT, Validation, held_tensors, takes_task, validate
from .graph import Graph, Site
from .inputs import Inputs, batch_size, imitate, inputs_of, own_random_numbers, tensors_in, two_of
from .kinds import is_mixing, kind_of, known_kind
from .layouts import Groups, Mark, Neurons, spell
from .observe import Moment, Observer, failure_of, observe
from .purity import Checkpointed, chances, differences
from .replay import Plan, Replay, agrees, halved, narrow, single
from .trace import Event, Recorder


def discover(model: nn.Module, example_input: Any, *, classifier: str | None = None) -> Graph:
    """Find the neuron groups of a model by running an example through a copy of it.

    Args:
        model: Any module. It is copied and stays as it is.
        example_input: One batch that `model` accepts: a tensor, a tuple of positional inputs or a
            dictionary of keyword inputs.
        classifier: The path of the layer that makes the outputs. By default the last Linear layer
            or convolution that runs.

    Returns:
        The graph; print it for a table of the groups and of the layers that make and read them.

    Raises:
        GraphError: The model has layers or operations that cannot be sliced by neuron. The error
            lists every one of them.

    Example:
        >>> print(clnp.discover(torchvision.models.resnet18(), torch.randn(2, 3, 64, 64)))
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model is a {type(model).__name__}, not a torch.nn.Module")
    inputs = inputs_of(example_input)
    validation = validate(model)
    mixing = [path for path in validation.layers if is_mixing(model.get_submodule(path))]
    if classifier is not None and classifier not in mixing:
        raise ArgumentError(
            f"{unknown_name('classifier', classifier, mixing)}. It is the path of the Linear layer "
            "or convolution that makes the outputs"
        )
    search = _Search(model, validation, classifier=classifier, problems=list(validation.problems))
    if takes_task(model) or "task" in inputs[1]:
        search.add(
            ROOT,
            "forward has an argument 'task', and net(x, task=...) says which task is to answer",
            "Give the argument another name",
        )
    if validation.runnable:
        # What PyTorch warns of, it warns of again when the user runs the model.
        with own_random_numbers(model), warnings.catch_warnings(action="ignore"):
            search.run(inputs)
    if search.problems:
        order = {path or ROOT: number for number, (path, _) in enumerate(model.named_modules())}
        unique = dict.fromkeys(search.problems)
        raise GraphError(sorted(unique, key=lambda problem: order[problem.where]))
    return search.graph(num_inputs=sum(map(len, inputs)))


@dataclass
class _Calls:
    """Notes the layer calls of a pass, and follows nothing."""

    paths: list[str] = field(default_factory=list)
    batched: bool = True

    def on_operation(self, moment: Moment) -> Any:
        return moment.run()

    def on_layer(self, moment: Moment, layer: nn.Module) -> Any:
        self.paths.append(moment.path)
        for tensor in tensors_in((moment.args, moment.kwargs))[:1]:
            kind = kind_of(layer)
            if kind and kind.num_spatial_dims(layer) not in (None, tensor.ndim - 2):
                self.batched = False
        return moment.run()


@dataclass
class _Search:
    """What is known about a model so far, and the problems found on the way."""

    model: nn.Module
    validation: Validation
    classifier: str | None
    problems: list[Problem]
    groups: Groups = field(default_factory=Groups)
    passes: dict[bool, Recorder] = field(default_factory=dict)

    def run(self, inputs: Inputs) -> None:
        """Watch the model in evaluation and in training mode, at full width and narrower."""
        try:
            model = copy.deepcopy(self.model)
            model.eval()
        except Exception as error:
            found = f"copy.deepcopy cannot copy the model, with {failure_of(error)}"
            self.add(ROOT, found, "Hold nothing in the model that cannot be copied")
            return
        calls = _Calls()
        remedy = "Give an example input that the model accepts, with a batch dimension"
        when = "on the example input"
        if not self._watch(calls, inputs, model=model, when=when, remedy=remedy):
            return
        self._choose_classifier(calls.paths)
        if self.classifier is None:
            return
        if calls.batched:
            inputs = two_of(inputs)
        by_chance = chances(self.model, inputs, layers=list(self.validation.layers))
        self.problems.extend(by_chance)
        for training in (False, True):
            if by_chance or not self._record(inputs, training=training):
                return
        self._check_calls()
        self._check_columns()
        self._check_conduct(inputs)
        sizes = self._sizes()
        half, one = halved(sizes), single(sizes)
        for training in (False, True):
            self._replay(inputs, half, training=training)
        if not self.problems and one != half:
            self._replay(inputs, one, training=False)
        for kept in (half, one):
            if not self.problems and not agrees(self.model, inputs, plan=self._plan(kept)):
                self.add(
                    ROOT,
                    "with fewer neurons the outputs differ from those of the full model that "
                    "reads only these: something in forward mixes neurons in a way that was not "
                    "recognised, such as a factor that depends on their number",
                    "Let neurons meet only through the weights of Linear layers and convolutions",
                )

    def graph(self, *, num_inputs: int) -> Graph:
        """What was found."""
        rows, columns = (self._resolved(axes) for axes in self._axes(training=False))
        sites = {}
        for path in rows:
            layer = self.model.get_submodule(path)
            sites[path] = Site(path, known_kind(layer).name, rows[path], columns[path])
        # Forward may read one on a path that the example did not take.
        constants = [
            name
            for path, module in self.model.named_modules()
            if path not in self.validation.layers
            for name, _ in module.named_buffers(path, recurse=False)
        ]
        assert self.classifier is not None
        return Graph(self._sizes(), sites, self.classifier, tuple(constants), num_inputs)

    def _watch(
        self,
        observer: Observer,
        inputs: Inputs,
        *,
        model: nn.Module,
        when: str,
        remedy: str,
        with_grad: bool = False,
    ) -> list[Any]:
        """A list of what the model returns; an empty one if it fails, which is a problem."""
        try:
            # Some forward passes write into their inputs: each gets its own.
            given = imitate(inputs, torch.clone)
            if isinstance(observer, Recorder):
                observer.begin(model, given)
            observed = observe(
                model, given, observer=observer, opaque=self._opaque, with_grad=with_grad
            )
            return [observed]
        except Exception as error:
            # What was found before may well be the reason.
            known = observer.problems if isinstance(observer, Replay) else self.problems * with_grad
            if not known:
                self.add(ROOT, f"the forward pass fails {when}, with {failure_of(error)}", remedy)
            return []

    def _record(self, inputs: Inputs, *, training: bool) -> bool:
        """Follow the neurons in one mode; false if the model does not run."""
        assert self.classifier is not None
        model = copy.deepcopy(self.model)
        model.train(training)
        recorder = Recorder(
            self.validation.layers,
            self.validation.refused,
            classifier=self.classifier,
            groups=self.groups,
        )
        buffers = self._buffer_versions(model)
        mode = "training" if training else "evaluation"
        when = f"in {mode} mode on a batch of {batch_size(inputs)}"
        remedy = "Give an example input that the model accepts in both modes"
        for outputs in self._watch(recorder, inputs, model=model, when=when, remedy=remedy):
            self.passes[training] = recorder
            self._check_outputs(recorder, outputs)
            self._check_left(recorder, model)
            recorder.forget()
        self.problems.extend(recorder.problems)
        for name, version in self._buffer_versions(model).items():
            if buffers.get(name) != version:
                self.add(
                    name.rpartition(".")[0],
                    f"forward changes the buffer {name!r} in {mode} mode, which an ended task "
                    "would read",
                    "Keep what changes out of the model, or compute it anew in every pass",
                )
        return training in self.passes

    def _replay(self, inputs: Inputs, kept: Mapping[str, int], *, training: bool) -> None:
        """Run the model with the kept neurons along what the full one did."""
        plan = self._plan(kept, training=training)
        events = [self._present(event) for event in self.passes[training].events]
        replay = Replay(events, plan.kept, followed=plan.paths)
        small = narrow(self.model, plan)
        small.train(training)
        remedy = "Let forward work with any number of neurons: take sizes from tensors alone"
        if self._watch(replay, inputs, model=small, when="with fewer neurons", remedy=remedy):
            replay.finish()
        self.problems.extend(replay.problems)

    def _plan(self, kept: Mapping[str, int], *, training: bool = False) -> Plan:
        rows, columns = (self._resolved(axes) for axes in self._axes(training=training))
        return Plan(self._sizes(), kept, rows=rows, columns=columns)

    @property
    def _opaque(self) -> set[str]:
        return {*self.validation.layers, *self.validation.refused}

    def _axes(self, *, training: bool) -> tuple[dict[str, Axis], dict[str, Axis]]:
        recorder = self.passes[training]
        return recorder.rows, recorder.columns

    def _resolved(self, axes: Mapping[str, Axis]) -> dict[str, Axis]:
        return {path: self.groups.resolve(axis) for path, axis in axes.items()}

    def _present(self, event: Event) -> Event:
        """The event under the present names of its groups."""
        if not isinstance(event.state, Neurons):
            return event
        axis = self.groups.resolve(event.state.axis)
        return replace(event, state=Neurons(event.state.dim, axis))

    def _sizes(self) -> dict[str, int]:
        sizes = {}
        for recorder in self.passes.values():
            for rows in recorder.rows.values():
                for segment in self.groups.resolve(rows):
                    if segment.group is not None:
                        sizes[segment.group] = segment.size
        return {group: sizes[group] for group in self.groups.names()}

    def add(self, path: str, found: str, remedy: str) -> None:
        """Note a problem of the module at the path."""
        self.problems.append(Problem(path or ROOT, found, remedy))

    def _kind(self, path: str) -> str:
        return type(self.model.get_submodule(path)).__name__

    def _choose_classifier(self, paths: list[str]) -> None:
        """Take the last mixing layer that ran as the classifier, unless one was given."""
        layers = [path for path in dict.fromkeys(paths) if path in self.validation.layers]
        mixing = [path for path in layers if is_mixing(self.model.get_submodule(path))]
        if self.classifier is None and mixing:
            last = [path for path in paths if path in mixing][-1]
            self.classifier = last
        # Layers that were refused may be the ones that are missing.
        if len(mixing) < 2 and not self.validation.refused:
            ran = (
                f"only {mixing[0] or ROOT!r} runs"
                if mixing
                else "no Linear layer or convolution runs"
            )
            self.add(
                ROOT,
                f"{ran}, so there are no hidden neurons to prune",
                "A model needs a hidden Linear layer or convolution, and a classifier",
            )

    def _check_conduct(self, inputs: Inputs) -> None:
        """Forward draws nothing in evaluation mode, and layers run in the forward pass alone."""
        plan = self._plan(self._sizes())
        self.problems.extend(differences(self.model, inputs, plan=plan, opaque=self._opaque))
        model = copy.deepcopy(self.model)
        model.train()
        for path in self.validation.layers:
            model.get_submodule(path).requires_grad_()
        observer = Checkpointed()
        when = "in training mode with gradients"
        remedy = "Change no tensor in place that a gradient needs"
        self._watch(observer, inputs, model=model, when=when, remedy=remedy, with_grad=True)
        self.problems.extend(observer.problems())

    def _check_left(self, recorder: Recorder, model: nn.Module) -> None:
        """Forward leaves nothing behind that depends on its input; constants may stay."""
        for path, module in model.named_modules():
            for name, tensors in held_tensors(module).items():
                states = {recorder.state(tensor) for tensor in tensors}
                found = f"forward leaves a tensor of the pass in the attribute {name!r}"
                remedy = "Let forward return it; from the second task on, a pass has only a part"
                problem = Problem(path or ROOT, found, remedy)
                # The other mode may have told already.
                other = states - {Mark.CONSTANT, Mark.UNSEEN, Mark.UNKNOWN}
                if other and problem not in self.problems:
                    self.problems.append(problem)

    def _check_outputs(self, recorder: Recorder, outputs: Any) -> None:
        states = [recorder.state(tensor) for tensor in tensors_in(outputs)]
        for state in states:
            if isinstance(state, Neurons):
                self.add(
                    ROOT,
                    f"forward returns hidden neurons ({spell(self.groups.resolve(state.axis))}), "
                    f"beside or instead of what the classifier {self.classifier!r} computes",
                    "Return outputs of the classifier only, or name another layer as classifier=",
                )
        if not any(isinstance(s, Neurons) or s in (Mark.OUTPUTS, Mark.UNKNOWN) for s in states):
            self.add(
                ROOT,
                f"what forward returns does not come from the classifier {self.classifier!r}",
                "Return tensors computed by the classifier, in tuples, lists, dicts or dataclasses",
            )

    def _check_calls(self) -> None:
        """Every layer runs exactly once, in evaluation mode too."""
        counts = [self.passes[training].num_calls for training in (False, True)]
        borrowed = set().union(*(recorder.borrowed for recorder in self.passes.values()))
        for path in self.validation.layers:
            evaluated, trained = (count.get(path, 0) for count in counts)
            if max(evaluated, trained) > 1:
                self.add(
                    path,
                    f"{self._kind(path)} is called {max(evaluated, trained)} times in one forward "
                    "pass, so its weights are shared between these uses",
                    "Give each use a layer of its own",
                )
            elif evaluated == 0 and trained:
                self.add(
                    path,
                    f"{self._kind(path)} runs in training mode only",
                    "Remove it, for example an auxiliary classifier, from the model",
                )
            elif evaluated == 0 and path not in borrowed:
                self.add(
                    path,
                    f"{self._kind(path)} never runs on this example, so its neurons cannot be told",
                    "Remove it, or give an example input that reaches it",
                )

    def _check_columns(self) -> None:
        """The classifier reads neurons; a layer that runs in both modes reads the same in both."""
        evaluated, trained = self.passes[False].columns, self.passes[True].columns
        assert self.classifier is not None
        if self._sizes() and not groups_of(evaluated.get(self.classifier, (Segment("", 1),))):
            self.add(
                self.classifier,
                f"the classifier ({self._kind(self.classifier)}) reads no hidden neurons",
                "Name another layer as classifier=, one that reads what the others compute",
            )
        for path in self.passes[False].num_calls:
            if path not in evaluated and not self.problems:
                self.add(
                    path,
                    f"{self._kind(path)} reads a tensor that could not be followed",
                    "Compute it with plain PyTorch operations on the network's input",
                )
        for path in evaluated:
            if path in trained:
                one, other = (self.groups.resolve(axes[path]) for axes in (evaluated, trained))
                if one != other:
                    self.add(
                        path,
                        f"{self._kind(path)} reads {spell(one)} in evaluation mode and "
                        f"{spell(other)} in training mode",
                        "Let forward connect the same layers in both modes",
                    )

    def _buffer_versions(self, model: nn.Module) -> dict[str, tuple[int, int]]:
        """Identity and version of every buffer outside the layers, by dotted path."""
        return {
            name: (id(buffer), buffer._version)
            for name, buffer in model.named_buffers()
            if name.rpartition(".")[0] not in self._opaque
        }

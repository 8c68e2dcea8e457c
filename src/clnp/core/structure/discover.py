"""Find out which layers of a model share neurons, by running one example.

The model is copied first and never changes: not its weights, buffers or mode, and no random
number is drawn from the user's generators.
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import nn

from clnp.errors import ArgumentError, GraphError, Problem, unknown_name

from .axis import Axis, Segment, groups_of
from .declared import ROOT, Validation, held_tensors, takes_task, validate
from .graph import Graph, Site
from .inputs import Inputs, batch_size, copied, inputs_of, own_random_numbers, tensors_in, two_of
from .kinds import is_mixing, kind_of, known_kind
from .purity import chances, checkpointing, differences, run_noting_checkpointed
from .replay import Plan, Replay, agrees, differing_kinds, halved, narrow, single
from .rules import Groups, Mark, Neurons, spell
from .trace import Event, Moment, Observer, Recorder, failure_of, observe


def discover(model: nn.Module, example_input: Any, *, classifier: str | None = None) -> Graph:
    """Find the neuron groups of a model by running an example through a copy of it.

    Args:
        model: Any module. It is copied and stays as it is.
        example_input: One batch that `model` accepts: a tensor, a tuple of positional inputs or a
            dictionary of keyword inputs. A batch of one is enough.
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
        raise ArgumentError(f"model is a {type(model).__name__}. Give a torch.nn.Module")
    inputs = inputs_of(example_input)
    validation = validate(model)
    mixing = [path for path in validation.layers if is_mixing(model.get_submodule(path))]
    if classifier is not None and classifier not in mixing:
        raise ArgumentError(
            f"{unknown_name('classifier', classifier, mixing)}. Give the path of the Linear layer "
            "or convolution that makes the outputs"
        )
    search = _Search(model, validation, classifier=classifier, problems=list(validation.problems))
    if takes_task(model) or "task" in inputs[1]:
        search.add(
            ROOT,
            "forward has an argument 'task', which net(x, task=...) uses to choose the task",
            "Give the argument another name",
        )
    if validation.runnable:
        # PyTorch repeats its warnings when the user runs the model.
        with own_random_numbers(model), warnings.catch_warnings(action="ignore"):
            search.run(inputs)
    if search.problems:
        order = {path or ROOT: number for number, (path, _) in enumerate(model.named_modules())}
        unique = dict.fromkeys(search.problems)
        raise GraphError(sorted(unique, key=lambda problem: order[problem.where]))
    return search.graph(num_inputs=sum(map(len, inputs)))


@dataclass
class _Search:
    """The knowledge about a model so far, and the problems that were found.

    `passes` are recordings in evaluation mode (False) and training mode (True).
    """

    model: nn.Module
    validation: Validation
    classifier: str | None
    problems: list[Problem]
    groups: Groups = field(default_factory=Groups)
    passes: dict[bool, Recorder] = field(default_factory=dict)

    def run(self, inputs: Inputs) -> None:
        """Run the model in evaluation and in training mode, at full width and narrower."""
        try:
            model = copy.deepcopy(self.model)
            model.eval()
        except Exception as error:
            found = f"copy.deepcopy cannot copy the model, with {failure_of(error)}"
            self.add(ROOT, found, "Hold nothing in the model that cannot be copied")
            return
        calls: list[tuple[str, bool]] = []
        if not self._watch(
            partial(_run_noting_layer, calls=calls),
            model,
            copied(inputs),
            when="on the example input",
            remedy="Give an example input that the model accepts, with a batch dimension",
        ):
            return
        self._choose_classifier([path for path, _ in calls])
        if self.classifier is None:
            return
        if all(batched for _, batched in calls):
            inputs = two_of(inputs)
        by_chance = chances(self.model, inputs, layers=list(self.validation.layers))
        self.problems.extend(by_chance)
        for training in (False, True):
            if by_chance or not self._record(inputs, training=training):
                return
        self._check_calls()
        self._check_columns()
        self._check_purity(inputs)
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
        """Return what was found."""
        rows, columns = self._axes(training=False)
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

    def add(self, path: str, found: str, remedy: str) -> None:
        """Note a problem of the module at the path."""
        self.problems.append(Problem(path or ROOT, found, remedy))

    def _watch(
        self,
        observer: Observer,
        model: nn.Module,
        inputs: Inputs,
        *,
        when: str,
        remedy: str,
        known: Sequence[Problem] = (),
        with_grad: bool = False,
    ) -> list[Any]:
        """Return a list of the model's outputs; an empty one if it fails.

        A failure is a problem, unless a `known` one may well be the reason.
        """
        try:
            return [
                observe(model, inputs, observer=observer, opaque=self._opaque, with_grad=with_grad)
            ]
        except Exception as error:
            if not known:
                self.add(ROOT, f"the forward pass fails {when}, with {failure_of(error)}", remedy)
            return []

    def _record(self, inputs: Inputs, *, training: bool) -> bool:
        """Follow the neurons in one mode, and return whether the model runs in it."""
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
        given = copied(inputs)
        recorder.begin(model, given)
        for outputs in self._watch(recorder.see, model, given, when=when, remedy=remedy):
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
                    "Keep changing values out of the model, or compute them in every pass",
                )
        return training in self.passes

    def _replay(self, inputs: Inputs, kept: Mapping[str, int], *, training: bool) -> None:
        """Run the model with the kept neurons along the events of the full one."""
        plan = self._plan(kept, training=training)
        events = [self._present(event) for event in self.passes[training].events]
        replay = Replay(events, plan.kept, followed=plan.paths)
        small = narrow(self.model, plan)
        small.train(training)
        if self._watch(
            replay.see,
            small,
            copied(inputs),
            when="with fewer neurons",
            remedy="Let forward work with any number of neurons: take sizes from tensors alone",
            known=replay.problems,
        ):
            replay.finish()
        self.problems.extend(replay.problems)

    def _plan(self, kept: Mapping[str, int], *, training: bool = False) -> Plan:
        rows, columns = self._axes(training=training)
        return Plan(self._sizes(), kept, rows=rows, columns=columns)

    @property
    def _opaque(self) -> set[str]:
        return {*self.validation.layers, *self.validation.refused}

    def _axes(self, *, training: bool) -> tuple[dict[str, Axis], dict[str, Axis]]:
        """Return the rows and columns of every layer under the present names of the groups."""
        recorder, resolve = self.passes[training], self.groups.resolve
        rows = {path: resolve(axis) for path, axis in recorder.rows.items()}
        return rows, {path: resolve(axis) for path, axis in recorder.columns.items()}

    def _present(self, event: Event) -> Event:
        """Return the event under the present names of its groups."""
        if not isinstance(event.state, Neurons):
            return event
        axis = self.groups.resolve(event.state.axis)
        return replace(event, state=Neurons(event.state.dim, axis))

    def _sizes(self) -> dict[str, int]:
        sizes = {
            segment.group: segment.size
            for training in self.passes
            for rows in self._axes(training=training)[0].values()
            for segment in rows
        }
        return {group: sizes[group] for group in self.groups.names()}

    def _kind(self, path: str) -> str:
        return type(self.model.get_submodule(path)).__name__

    def _choose_classifier(self, paths: list[str]) -> None:
        """Take the last mixing layer that ran as the classifier, unless one was given."""
        mixing = [
            path
            for path in paths
            if path in self.validation.layers and is_mixing(self.model.get_submodule(path))
        ]
        if self.classifier is None and mixing:
            self.classifier = mixing[-1]
        # Layers that were refused may be the ones that are missing.
        if len(set(mixing)) < 2 and not self.validation.refused:
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

    def _check_purity(self, inputs: Inputs) -> None:
        """Check that layers compute as their kinds do, and that forward only computes."""
        plan = self._plan(self._sizes())
        for check in (differing_kinds, differences):
            self.problems.extend(check(self.model, inputs, plan=plan, opaque=self._opaque))
        model = copy.deepcopy(self.model)
        model.train()
        for path in self.validation.layers:
            model.get_submodule(path).requires_grad_()
        paths: list[str] = []
        self._watch(
            partial(run_noting_checkpointed, paths=paths),
            model,
            copied(inputs),
            when="in training mode with gradients",
            remedy="Change no tensor in place that a gradient needs",
            known=self.problems,
            with_grad=True,
        )
        self.problems.extend(checkpointing(paths))

    def _check_left(self, recorder: Recorder, model: nn.Module) -> None:
        """Check that forward leaves nothing behind that depends on its input, only constants."""
        for path, module in model.named_modules():
            for name, tensors in held_tensors(module).items():
                states = {recorder.state(tensor) for tensor in tensors}
                if states - {Mark.CONSTANT, Mark.UNSEEN, Mark.UNKNOWN}:
                    self.add(
                        path,
                        f"forward leaves a tensor of the pass in the attribute {name!r}",
                        "Let forward return it, since a pass of a later task has only a part",
                    )

    def _check_outputs(self, recorder: Recorder, outputs: Any) -> None:
        states = [recorder.state(tensor) for tensor in tensors_in(outputs)]
        hidden = [state for state in states if isinstance(state, Neurons)]
        for state in hidden:
            self.add(
                ROOT,
                f"forward returns hidden neurons ({spell(self.groups.resolve(state.axis))}), "
                f"beside or instead of the outputs of the classifier {self.classifier!r}",
                "Return outputs of the classifier only, or name another layer as classifier=",
            )
        if not hidden and not {Mark.OUTPUTS, Mark.UNKNOWN} & set(states):
            self.add(
                ROOT,
                f"the outputs of forward do not come from the classifier {self.classifier!r}",
                "Return tensors computed by the classifier, in tuples, lists, dicts or dataclasses",
            )

    def _check_calls(self) -> None:
        """Check that every layer runs exactly once, in evaluation mode too."""
        counts = [self.passes[training].num_calls for training in (False, True)]
        borrowed = set().union(*(recorder.borrowed for recorder in self.passes.values()))
        for path in self.validation.layers:
            evaluated, trained = (count.get(path, 0) for count in counts)
            most = max(evaluated, trained)
            if most > 1:
                found = (
                    f"is called {most} times in one forward pass, so its weights are shared "
                    "between these uses"
                )
                remedy = "Give each use its own layer"
            elif evaluated == 0 and trained:
                found = "runs in training mode only"
                remedy = "Remove it, for example an auxiliary classifier, from the model"
            elif evaluated == 0 and path not in borrowed:
                found = "never runs on this example, so the neurons that it reads are unknown"
                remedy = "Remove it, or give an example input that reaches it"
            else:
                continue
            self.add(path, f"{self._kind(path)} {found}", remedy)

    def _check_columns(self) -> None:
        """Check that the classifier reads neurons, and each layer the same in both modes."""
        (_, evaluated), (_, trained) = (self._axes(training=mode) for mode in (False, True))
        assert self.classifier is not None
        if self._sizes() and not groups_of(evaluated.get(self.classifier, (Segment("", 1),))):
            self.add(
                self.classifier,
                f"the classifier ({self._kind(self.classifier)}) reads no hidden neurons",
                "Name another layer as classifier=, one that reads the outputs of other layers",
            )
        for path in self.passes[False].num_calls:
            if path not in evaluated and not self.problems:
                self.add(
                    path,
                    f"{self._kind(path)} reads a tensor that could not be followed",
                    "Compute it with plain PyTorch operations on the network's input",
                )
        for path in evaluated:
            if path in trained and evaluated[path] != trained[path]:
                self.add(
                    path,
                    f"{self._kind(path)} reads {spell(evaluated[path])} in evaluation mode and "
                    f"{spell(trained[path])} in training mode",
                    "Let forward connect the same layers in both modes",
                )

    def _buffer_versions(self, model: nn.Module) -> dict[str, tuple[int, int]]:
        """Return identity and version of every buffer outside the layers, by dotted path."""
        return {
            name: (id(buffer), buffer._version)
            for name, buffer in model.named_buffers()
            if name.rpartition(".")[0] not in self._opaque
        }


def _run_noting_layer(moment: Moment, *, calls: list[tuple[str, bool]]) -> Any:
    """Run a moment, and note a layer's path and whether it is called with a batch dimension."""
    if moment.layer is not None:
        kind, tensors = kind_of(moment.layer), tensors_in((moment.args, moment.kwargs))
        num_dims = kind.num_spatial_dims(moment.layer) if kind and tensors else None
        calls.append((moment.path, num_dims is None or num_dims == tensors[0].ndim - 2))
    return moment.run()

"""Find out which layers of a model share neurons, by running one example.

The model is copied first and never changes: not its weights, buffers or mode, and no random
number is drawn from the user's generators.
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from clnp.errors import ArgumentError, GraphError, Problem, unknown_name

from .axis import groups_of
from .declared import ROOT, Validation, held_tensors, takes_task, validate
from .graph import Graph, Site
from .inputs import (
    Inputs,
    batch_size,
    copied,
    inputs_of,
    own_random_numbers,
    seed_all,
    tensors_in,
    two_of,
)
from .kinds import is_mixing, kind_of, known_kind
from .purity import chances, impurities
from .replay import Narrowing, Replay, agrees, narrow, narrow_layers
from .rules import Groups, Mark, Neurons, spell
from .sketch import Sketcher
from .trace import Moment, Observer, Recorder, failure_of, in_checkpoint, observe


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
        raise ArgumentError(f"model is of type {type(model).__name__}. Give a torch.nn.Module")
    inputs = inputs_of(example_input)
    validation = validate(model)
    mixing = [path for path in validation.layers if is_mixing(model.get_submodule(path))]
    if classifier is not None and classifier not in mixing:
        raise ArgumentError(
            f"{unknown_name('classifier', classifier, mixing)}. Give the path of the Linear layer "
            "or convolution that makes the outputs"
        )
    for by_sketches in (True, False):
        search = _Search(model, validation, mixing, list(validation.problems), by_sketches)
        if takes_task(model) or "task" in inputs[1]:
            search.add(
                ROOT,
                "forward has an argument 'task', which net(x, task=...) uses to choose the task",
                "Give the argument another name",
            )
        if not any(map(is_lazy, model.parameters())):
            # PyTorch repeats its warnings when the user runs the model.
            with own_random_numbers(model), warnings.catch_warnings(action="ignore"):
                search.run(inputs, classifier)
        if not search.has_failed:
            break
    if search.problems:
        order = {path or ROOT: number for number, (path, _) in enumerate(model.named_modules())}
        unique = dict.fromkeys(search.problems)
        raise GraphError(sorted(unique, key=lambda problem: order[problem.where]))
    return search.graph(num_inputs=sum(map(len, inputs)))


@dataclass
class _Search:
    """The knowledge about a model so far, and the problems that were found.

    `mixing` are the layers that may be the classifier, `passes` the recordings in evaluation mode
    (False) and training mode (True), and `sizes` the numbers of neurons of the groups. With
    `by_sketches`, layers compute nothing unless they must; if a pass fails then (`has_failed`),
    only another search tells whether the model itself does.
    """

    model: nn.Module
    validation: Validation
    mixing: list[str]
    problems: list[Problem]
    by_sketches: bool
    has_failed: bool = False
    classifier: str = ""
    groups: Groups = field(default_factory=Groups)
    passes: dict[bool, Recorder] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sketcher = Sketcher(self.model, self._opaque)

    def run(self, inputs: Inputs, classifier: str | None) -> None:
        """Run the model in evaluation and in training mode, at full width and narrower."""
        last = self._last_mixing_layer(inputs)
        if last is None:
            return
        self.classifier = last if classifier is None else classifier
        inputs = two_of(inputs)
        by_chance = chances(self._copy(), inputs, layers=self.validation.layers)
        self.problems.extend(by_chance)
        for training in (False, True):
            if by_chance or not self._record(inputs, training=training):
                return
        for recorder in self.passes.values():
            recorder.finish()
        rows = (axis for recorder in self.passes.values() for axis in recorder.rows.values())
        sizes = {segment.group: segment.size for axis in rows for segment in axis}
        self.sizes = {group: sizes[group] for group in self.groups.names()}
        self._check_calls()
        self._check_columns()
        half = {group: max(1, size // 2) for group, size in self.sizes.items()}
        one = dict.fromkeys(self.sizes, 1)
        for training in (False, True):
            self._replay(inputs, half, training=training)
        if not self.problems and one != half:
            self._replay(inputs, one, training=False)
        # From here on layers compute, unless the model is refused anyway.
        self._check_purity(inputs)
        for kept in (half, one):
            narrowing = self._narrowing(kept)
            if not self.problems and not agrees(self.model, inputs, narrowing=narrowing):
                self.add(
                    ROOT,
                    "with fewer neurons the outputs differ from those of the full model that "
                    "reads only these: something in forward mixes neurons in a way that was not "
                    "recognised, such as a factor that depends on their number",
                    "Let neurons meet only through the weights of Linear layers and convolutions",
                )

    def graph(self, *, num_inputs: int) -> Graph:
        """Return what was found."""
        recorder, sites = self.passes[False], {}
        for path, rows in recorder.rows.items():
            kind = known_kind(self.model.get_submodule(path))
            sites[path] = Site(path, kind.name, rows, recorder.columns[path])
        # Forward may read one on a path that the example did not take.
        constants = tuple(
            name
            for path, module in self.model.named_modules()
            if path not in self.validation.layers
            for name, _ in module.named_buffers(path, recurse=False)
        )
        return Graph(self.sizes, sites, self.classifier, constants, num_inputs)

    @property
    def _opaque(self) -> set[str]:
        return {*self.validation.layers, *self.validation.refused}

    def _copy(self) -> nn.Module:
        """Return a copy of the model to follow neurons through."""
        return self.sketcher.sketch() if self.by_sketches else copy.deepcopy(self.model)

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

        A failure is a problem, unless a `known` one may well be the reason. Random numbers are the
        same in every pass.
        """
        seed_all(model, 0)
        try:
            return [
                observe(model, inputs, observer=observer, opaque=self._opaque, with_grad=with_grad)
            ]
        except Exception as error:
            if not known:
                self.has_failed = True
                self.add(ROOT, f"the forward pass fails {when}, with {failure_of(error)}", remedy)
            return []

    def _last_mixing_layer(self, inputs: Inputs) -> str | None:
        """Return the mixing layer that runs last; None if problems leave nothing to search for."""
        try:
            model = self._copy()
            model.eval()
        except Exception as error:
            found = f"copy.deepcopy cannot copy the model, with {failure_of(error)}"
            self.add(ROOT, found, "Hold nothing in the model that cannot be copied")
            return None
        ran: list[str] = []
        unbatched: list[Problem] = []

        def see(moment: Moment) -> Any:
            if moment.layer is not None:
                ran.append(moment.path)
                kind, tensors = kind_of(moment.layer), tensors_in((moment.args, moment.kwargs))
                num_dims = kind.num_spatial_dims(moment.layer) if kind and tensors else None
                if num_dims is not None and tensors[0].ndim != num_dims + 2:
                    shape = tuple(tensors[0].shape)
                    found = f"{moment.name} is called without a batch dimension, on shape {shape}"
                    unbatched.append(moment.problem(found, "Give inputs with a batch dimension"))
            return moment.run()

        when = "on the example input"
        remedy = "Give an example input that the model accepts, with a batch dimension"
        runs = self._watch(see, model, copied(inputs), when=when, remedy=remedy)
        self.problems += unbatched
        if not runs or unbatched:
            return None
        mixing = [path for path in ran if path in self.mixing]
        # Layers that were refused may be the ones that are missing.
        if len(set(mixing)) < 2 and not self.validation.refused:
            found = f"only {mixing[0] or ROOT!r}" if mixing else "no Linear layer or convolution"
            self.add(
                ROOT,
                f"{found} runs, so there are no hidden neurons to prune",
                "A model needs a hidden Linear layer or convolution, and a classifier",
            )
        return mixing[-1] if mixing else None

    def _record(self, inputs: Inputs, *, training: bool) -> bool:
        """Follow the neurons in one mode, and return whether the model runs in it."""
        model = self._copy()
        model.train(training)
        validation, given = self.validation, copied(inputs)
        recorder = Recorder(validation.layers, validation.refused, self.classifier, self.groups)
        recorder.begin(model, given)
        buffers = self._buffer_versions(model)
        mode = "training" if training else "evaluation"
        when = f"in {mode} mode on a batch of {batch_size(inputs)}"
        remedy = "Give an example input that the model accepts in both modes"
        for outputs in self._watch(recorder.see, model, given, when=when, remedy=remedy):
            self.passes[training] = recorder
            self._check_outputs(recorder, outputs)
            self._check_left(recorder, model)
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

    def _buffer_versions(self, model: nn.Module) -> dict[str, tuple[int, int]]:
        """Return identity and version of every buffer outside the layers, by dotted path."""
        return {
            name: (id(buffer), buffer._version)
            for name, buffer in model.named_buffers()
            if name.rpartition(".")[0] not in self._opaque
        }

    def _replay(self, inputs: Inputs, kept: Mapping[str, int], *, training: bool) -> None:
        """Run the model with the kept neurons along the events of the full one."""
        narrowing = self._narrowing(kept, training=training)
        replay = Replay(self.passes[training].events, narrowing.kept, followed=narrowing.paths)
        if self.by_sketches:
            small = self.sketcher.sketch(narrow_layers(self.model, narrowing))
        else:
            small = narrow(self.model, narrowing)
        small.train(training)
        remedy = "Let forward work with any number of neurons: take sizes from tensors alone"
        when, known = "with fewer neurons", replay.problems
        if self._watch(replay.see, small, copied(inputs), when=when, remedy=remedy, known=known):
            replay.finish()
        self.problems.extend(replay.problems)

    def _narrowing(self, kept: Mapping[str, int], *, training: bool = False) -> Narrowing:
        recorder = self.passes[training]
        return Narrowing(self.sizes, kept, rows=recorder.rows, columns=recorder.columns)

    def _check_purity(self, inputs: Inputs) -> None:
        """Check that layers compute as their kinds do, and that forward only computes."""
        is_refused = bool(self.problems)
        narrowing = None if is_refused else self._narrowing(self.sizes)
        model = self._copy() if is_refused else copy.deepcopy(self.model)
        self.problems += impurities(model, inputs, narrowing=narrowing, opaque=self._opaque)
        model = self._copy() if is_refused else copy.deepcopy(self.model)
        model.train()
        for path in self.validation.layers:
            model.get_submodule(path).requires_grad_()
        again: list[str] = []

        def see(moment: Moment) -> Any:
            if moment.is_layer and in_checkpoint():
                again.append(moment.path)
            return moment.run()

        when = "in training mode with gradients"
        remedy = "Change no tensor in place that a gradient needs"
        known = self.problems
        self._watch(
            see, model, copied(inputs), when=when, remedy=remedy, known=known, with_grad=True
        )
        if again:
            more = f" and {len(again) - 1} more layers" if len(again) > 1 else ""
            self.add(
                ROOT,
                f"gradient checkpointing (torch.utils.checkpoint) runs {again[0]!r}{more} again in "
                "the backward pass, when a task's layers are no longer set up for it",
                "Call the layers directly: switch off memory_efficient, use_checkpoint or the like",
            )

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
        evaluation, training = self.passes[False], self.passes[True]
        for path in self.validation.layers:
            evaluated, trained = evaluation.num_calls[path], training.num_calls[path]
            if max(evaluated, trained) > 1:
                found = (
                    f"is called {max(evaluated, trained)} times in one forward pass, so its "
                    "weights are shared between these uses"
                )
                remedy = "Give each use its own layer"
            elif evaluated == 0 and trained:
                found = "runs in training mode only"
                remedy = "Remove it, for example an auxiliary classifier, from the model"
            elif evaluated == 0 and path not in evaluation.borrowed | training.borrowed:
                found = "never runs on this example, so the neurons that it reads are unknown"
                remedy = "Remove it, or give an example input that reaches it"
            else:
                continue
            self.add(path, f"{self._kind(path)} {found}", remedy)

    def _check_columns(self) -> None:
        """Check that the classifier reads neurons, and each layer the same in both modes."""
        evaluated, trained = self.passes[False].columns, self.passes[True].columns
        read = evaluated.get(self.classifier)
        if self.sizes and read is not None and not groups_of(read):
            self.add(
                self.classifier,
                f"the classifier ({self._kind(self.classifier)}) reads no hidden neurons",
                "Name another layer as classifier=, one that reads the outputs of other layers",
            )
        for path in evaluated:
            if path in trained and evaluated[path] != trained[path]:
                self.add(
                    path,
                    f"{self._kind(path)} reads {spell(evaluated[path])} in evaluation mode and "
                    f"{spell(trained[path])} in training mode",
                    "Let forward connect the same layers in both modes",
                )

    def _kind(self, path: str) -> str:
        return type(self.model.get_submodule(path)).__name__

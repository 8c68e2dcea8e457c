"""A recipe: the tasks, the network and the settings of an experiment, from a TOML file."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, Literal

from torch import nn

from clnp.checks import SEED, THREADS, optional, settle
from clnp.data.models import MLP, NarrowCNN, WideCNN
from clnp.data.streams import Chain, Permuted, Split
from clnp.errors import ArgumentError, RecipeError, RunError, unknown_name
from clnp.methods.registry import NAMES, Chosen, Methods, source_of
from clnp.records import OURS, SettingsSource
from clnp.runs.directory import CHECKPOINT, CONFIG, RECIPE, command, expanded, read_config
from clnp.training.config import LearnerConfig

from . import bundled
from .schema import build, to_data
from .toml import Document, Table, dotted, parse, read, shown

Model = Literal["mlp", "narrow-cnn", "wide-cnn"]
WIDTHS: Mapping[Model, tuple[int, ...]] = {
    "mlp": (2000, 2000),
    "narrow-cnn": (32, 32, 64, 64, 512),
    "wide-cnn": (128, 256, 512, 1024, 2048),
}
"""The models, with the paper's number of neurons in each hidden layer."""
SMALLEST_IMAGE = 23
"""Side of the smallest image of a wide CNN. The last convolution has no output for smaller ones."""


@dataclass(frozen=True)
class Network:
    """One of the paper's networks, in the size that fits the data."""

    model: Model = "mlp"
    """Linear layers; four convolutions and a linear layer; or five convolutions with BatchNorm."""
    widths: tuple[int, ...] = ()
    """Neurons of each hidden layer. By default, those of the paper."""
    head: Literal["multi", "single"] = "multi"
    """An output layer for each task, or a single one that all tasks share."""

    def __post_init__(self) -> None:
        num_layers = None if self.model == "mlp" else 5
        if self.widths and num_layers not in (None, len(self.widths)):
            raise ArgumentError(
                f"widths has {len(self.widths)} entries. A {self.model} has {num_layers} hidden "
                "layers. Give a number for each.",
                argument="widths",
            )
        if any(width < 1 for width in self.widths):
            raise ArgumentError(
                f"widths is {list(self.widths)}. Each must be 1 or more", argument="widths"
            )

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """Return the model for samples of this shape."""
        widths = self.widths or WIDTHS[self.model]
        if self.model == "mlp":
            return MLP(prod(shape), widths, num_outputs)
        if len(shape) != 3:
            raise self._refuses("images, channels x height x width", shape)
        if self.model == "wide-cnn":
            if min(shape[1:]) < SMALLEST_IMAGE:
                raise self._refuses(
                    f"images of at least {SMALLEST_IMAGE} x {SMALLEST_IMAGE}", shape
                )
            return WideCNN(num_outputs, widths=widths, in_channels=shape[0])
        if shape[1] != shape[2]:
            raise self._refuses("square images", shape)
        return NarrowCNN(num_outputs, widths=widths, in_channels=shape[0], image_size=shape[1])

    def _refuses(self, needed: str, shape: tuple[int, ...]) -> ArgumentError:
        return ArgumentError(
            f"a {self.model} takes {needed}, but the samples have shape {shape}. "
            "Use another model.",
            argument="model",
        )


@dataclass(frozen=True)
class Recipe:
    """An experiment: the tasks, the network, and the settings of learning."""

    stream: Permuted | Split | Chain
    """The source of the tasks."""
    description: str = ""
    """Description, in one line."""
    seed: int = 0
    """Seed of all random numbers."""
    threads: int | None = None
    """Number of threads on a CPU. By default one for small networks, and PyTorch's own number for
    larger ones."""
    network: Network = field(default_factory=Network)
    """The network."""
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    """The settings of learning."""
    method: str = OURS
    """The method that learns the tasks: "clnp", or a baseline, whose settings are in `methods`."""
    methods: Methods = field(default_factory=Methods)
    """The settings of baselines."""
    chosen: Mapping[str, Chosen] = field(default_factory=dict)
    """How the settings of methods were chosen, by method, for the footnotes of a comparison."""

    def __post_init__(self) -> None:
        settle(self, {"seed": SEED, "threads": optional(THREADS), "method": _method})
        for name in self.chosen:
            if name not in NAMES:
                message = f"chosen: {unknown_name('method', name, NAMES)}"
                raise ArgumentError(message, argument="chosen")

    @property
    def settings_source(self) -> SettingsSource:
        """Where the settings of the method come from."""
        return source_of(self.methods, self.method, self.chosen.get(self.method))


def _method(argument: str, name: object) -> object:
    if name not in NAMES:
        raise ArgumentError(unknown_name(argument, str(name), NAMES), argument=argument)
    return name


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe with its name, and with the document that has the place of each key."""

    name: str
    recipe: Recipe
    document: Document

    def error(self, error: Exception, *path: str) -> RecipeError:
        """Return the error with the place of the key that it is about."""
        argument = getattr(error, "argument", None)
        if argument is not None:
            path = (*path, argument)
        return RecipeError(f"{self.document.place(path)}: {dotted(path)}: {error}")


def find(name: str) -> tuple[str, Document]:
    """Return the short name and the document of a bundled recipe, or of a file."""
    if name in bundled.names():
        return name, parse(bundled.text(name), name=f"{name}.toml")
    path = expanded(name)
    if not os.path.isfile(path) and path.suffix != ".toml" and os.sep not in name:
        known = bundled.names()
        raise RecipeError(f"{unknown_name('recipe', name, known)}, or a path such as my.toml")
    if os.path.isfile(path / CONFIG):
        resume = command("resume", name)
        raise RecipeError(f"{name} is a run, not a recipe. Resume it with: {resume}")
    return path.stem, read(path)


def load(name: str, assignments: Iterable[str] = ()) -> LoadedRecipe:
    """Return the recipe of that name after the assignments, `key.sub=value`."""
    short, document = find(name)
    problems = []
    for assignment in assignments:
        try:
            document = document.set(assignment)
        except RecipeError as error:
            problems.append(error)
    if len(problems) > 1:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        raise RecipeError(f"{len(problems)} problems:{lines}")
    if problems:
        raise problems[0]
    document = replace(document, data=_still_chosen(document))
    build(Recipe, document)  # So that an error is reported once, before a method inherits it.
    recipe = build(Recipe, replace(document, data=_inherited(document.data)))
    for one, many in (("alpha", "alphas"), ("lr", "lrs")):
        place = document.places.get(("learner", "training", one), "")
        if place.startswith("--set") and getattr(recipe.learner, many):
            raise RecipeError(
                f"{place} has no effect, because learner.{many} is given. Set learner.{many}."
            )
    return LoadedRecipe(short, recipe, document)


def _still_chosen(document: Document) -> Table:
    """Return the data in which only those settings are `chosen` that no assignment changes."""
    changed = {path for path, place in document.places.items() if place.startswith("--set")}
    chosen = document.data.get("chosen")
    if not changed or not isinstance(chosen, dict):
        return document.data
    elsewhere = any(path[0] in ("stream", "network", "learner") for path in changed if path)
    found = {}
    for name, each in chosen.items():
        if ("chosen", name) not in changed:
            if any(path[:2] == ("methods", name) for path in changed):
                continue
            if elsewhere and isinstance(each, dict):
                each = {**each, "changed": True}
        found[name] = each
    return {**document.data, "chosen": found}


def _inherited(data: Table) -> Table:
    """Give the training of each method the settings of `learner.training` that it does not have."""
    shared = data.get("learner", {}).get("training", {})
    methods = data.get("methods", {})
    for name, own in methods.items():
        if isinstance(own.get("training"), dict):
            methods = {**methods, name: {**own, "training": {**shared, **own["training"]}}}
    return {**data, "methods": methods}


def recipe_of(place: Path) -> LoadedRecipe:
    """Return the recipe that a run was made from."""
    if not (place / RECIPE).is_file():
        remedy = "In Python, use clnp.verify(experiment, path) and experiment.run(path)"
        if read_config(place).method == OURS:
            remedy += f', or clnp.load("{place / CHECKPOINT}", model)'
        raise RunError(f"{place} was not made from a recipe. {remedy}.")
    return load(str(place / RECIPE))


def difference(now: Recipe, before: Recipe) -> tuple[str, str] | None:
    """Return the first key in which recipes of one method differ, and how: `"5, not 9"`.

    None if there is none. The description and the settings of other methods do not matter.
    """
    here, there = dict(_settings(now)), dict(_settings(before))
    for key in dict.fromkeys([*there, *here]):
        if here.get(key) != there.get(key):
            was, is_now = (shown(each.get(key, "none")) for each in (there, here))
            return key, f"{was}, not {is_now}"
    return None


def _settings(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    data = to_data(recipe)
    data["methods"] = {k: v for k, v in data["methods"].items() if k == recipe.method}
    del data["description"], data["method"], data["chosen"]
    return _flat(data, ())


def _flat(table: Table, above: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, (*above, key))
        else:
            yield dotted((*above, key)), value

"""A recipe: tasks, network and how they are learnt, from a TOML file."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal

from torch import nn

from clnp.data.models import MLP, NarrowCNN, WideCNN
from clnp.data.streams import Chain, Permuted, Split
from clnp.errors import ArgumentError, RecipeError, RunError, unknown_name
from clnp.methods.method import is_ours
from clnp.methods.registry import NAMES, Methods
from clnp.records import OURS
from clnp.runs.directory import CHECKPOINT, CONFIG, RECIPE, command, expanded, read_config
from clnp.training.config import LearnerConfig

from . import bundled
from .schema import build, to_data
from .toml import Document, dotted, parse, read, shown

MODELS = ("mlp", "narrow-cnn", "wide-cnn")
SMALLEST_IMAGE = 23
"""What a wide CNN needs: smaller images are gone before its last convolution."""


@dataclass(frozen=True)
class Network:
    """One of the paper's networks, fitted to the data."""

    model: Literal["mlp", "narrow-cnn", "wide-cnn"] = "mlp"
    """In this order: linear layers; four convolutions and a dense layer; five with BatchNorm."""
    widths: tuple[int, ...] = ()
    """Neurons of each hidden layer; the paper's where there are none."""
    head: Literal["multi", "single"] = "multi"
    """Outputs for every task, or one output layer that they share."""

    def __post_init__(self) -> None:
        for name, known in (("model", MODELS), ("head", ("multi", "single"))):
            if getattr(self, name) not in known:
                raise ArgumentError(unknown_name(name, getattr(self, name), known), argument=name)
        num_layers = None if self.model == "mlp" else 5
        if self.widths and num_layers not in (None, len(self.widths)):
            raise ArgumentError(
                f"widths has {len(self.widths)} entries; a {self.model} has {num_layers} hidden "
                "layers",
                argument="widths",
            )
        if any(width < 1 for width in self.widths):
            raise ArgumentError(
                f"widths is {list(self.widths)}; each must be 1 or more", argument="widths"
            )

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """The network for samples of this shape."""
        if self.model == "mlp":
            return MLP(prod(shape), self.widths or (2000, 2000), num_outputs)
        if len(shape) != 3:
            raise ArgumentError(
                f"a {self.model} takes images, channels x height x width; the samples have shape "
                f"{shape}",
                argument="model",
            )
        if self.model == "wide-cnn":
            if min(shape[1:]) < SMALLEST_IMAGE:
                raise ArgumentError(
                    f"a wide-cnn takes images of at least {SMALLEST_IMAGE} x {SMALLEST_IMAGE}; the "
                    f"samples have shape {shape}",
                    argument="model",
                )
            widths = self.widths or (128, 256, 512, 1024, 2048)
            return WideCNN(num_outputs, widths=widths, in_channels=shape[0])
        if shape[1] != shape[2]:
            raise ArgumentError(
                f"a narrow-cnn takes square images; the samples have shape {shape}",
                argument="model",
            )
        return NarrowCNN(
            num_outputs,
            widths=self.widths or (32, 32, 64, 64, 512),
            in_channels=shape[0],
            image_size=shape[1],
        )


@dataclass(frozen=True)
class Recipe:
    """An experiment: which tasks, which network, and how it learns them."""

    stream: Permuted | Split | Chain
    """Where the tasks come from."""
    description: str = ""
    """What it is, in one line."""
    seed: int = 0
    """What all random numbers are derived from."""
    network: Network = field(default_factory=Network)
    """What learns."""
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    """How it learns."""
    method: str = OURS
    """What learns the tasks: "clnp", or a baseline, whose settings are in `methods`."""
    methods: Methods = field(default_factory=Methods)
    """The settings of baselines."""

    def __post_init__(self) -> None:
        if self.method not in NAMES:
            raise ArgumentError(unknown_name("method", self.method, NAMES), argument="method")


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe, what it is called, and where each of its keys was written."""

    name: str
    recipe: Recipe
    document: Document

    def mistake(self, error: Exception, *path: str) -> RecipeError:
        """The error with the place of the key that it is about."""
        argument = getattr(error, "argument", None)
        if argument is not None:
            path = (*path, argument)
        return RecipeError(f"{self.document.place(path)}: {dotted(path)}: {error}")


def find(name: str) -> tuple[str, Document]:
    """The short name and the text of a recipe: one that comes with the package, or a file."""
    if name in bundled.names():
        return name, parse(bundled.text(name), name=f"{name}.toml")
    path = expanded(name)
    if not os.path.isfile(path) and path.suffix != ".toml" and os.sep not in name:
        known = bundled.names()
        raise RecipeError(f"{unknown_name('recipe', name, known)}, or a path such as my.toml")
    if os.path.isfile(path / CONFIG):
        again = command("resume", name)
        raise RecipeError(f"{name} is a run, not a recipe; go on with it: {again}")
    return path.stem, read(path)


def load(name: str, assignments: Iterable[str] = ()) -> LoadedRecipe:
    """The recipe of that name, with the assignments, `key.sub=value`, made."""
    short, document = find(name)
    for assignment in assignments:
        document = document.set(assignment)
    build(Recipe, document)  # Each mistake is told once, before a method inherits it.
    for method in (name for name in NAMES if name != OURS):
        # What a method does not say of its training is as in the learner's.
        document = document.inherited(("methods", method, "training"), ("learner", "training"))
    recipe = build(Recipe, document)
    for one, many in (("alpha", "alphas"), ("lr", "lrs")):
        place = document.places.get(("learner", "training", one), "")
        if place.startswith("--set") and getattr(recipe.learner, many):
            raise RecipeError(f"{place} would change nothing: learner.{many} comes first; set that")
    return LoadedRecipe(short, recipe, document)


def recipe_of(place: Path) -> LoadedRecipe:
    """The recipe that a run was made from."""
    if not (place / RECIPE).is_file():
        remedy = "use the Python program that began it"
        if is_ours(read_config(place)):
            remedy += f', or clnp.load("{place / CHECKPOINT}", model)'
        raise RunError(f"{place} was not made from a recipe: {remedy}")
    return load(str(place / RECIPE))


def difference(now: Recipe, before: Recipe) -> tuple[str, str] | None:
    """The first key in which recipes of one method differ, and how: `"5, not 9"`.

    None if they are alike. How they are described, and what they tell other methods, does not
    matter.
    """
    here, there = dict(_settings(now)), dict(_settings(before))
    for key in dict.fromkeys([*there, *here]):
        if here.get(key) != there.get(key):
            was, is_now = (shown(each.get(key, "none")) for each in (there, here))
            return key, f"{was}, not {is_now}"
    return None


def _settings(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """What counts of a recipe, by dotted keys."""
    data = to_data(recipe)
    own = {name: each for name, each in data["methods"].items() if name == recipe.method}
    found = {**data, "methods": own}
    return _flat({k: v for k, v in found.items() if k not in ("description", "method")}, ())


def _flat(table: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, (*above, key))
        else:
            yield dotted((*above, key)), value

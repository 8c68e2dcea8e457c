"""An experiment from a recipe and its data sets."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from clnp.checks import check_memory
from clnp.core.penalty import alpha_by_layer
from clnp.core.structure.discover import discover
from clnp.data import named
from clnp.data.datasets import OnProgress
from clnp.data.labelled import LabelledData
from clnp.data.streams import Find, tasks_of
from clnp.devices import on_the_host
from clnp.errors import ArgumentError, RecipeError, unknown_name
from clnp.methods.registry import baseline_of
from clnp.runs.experiment import Experiment
from clnp.training.config import Alpha
from clnp.training.criterion import criterion_of
from clnp.training.optimizer import check_optimizers

from .recipe import LoadedRecipe, Network


def experiment_of(
    loaded: LoadedRecipe,
    device: torch.device,
    data: str | None,
    *,
    on_download: OnProgress | None = None,
    find: Find | None = None,
) -> Experiment:
    """Return the experiment of a recipe, with its network on the device.

    `data` is the directory of data sets. `find` replaces `named.find`. Everything that can be
    checked without training is checked here, and an error has the place of its key.
    """
    recipe, learner = loaded.recipe, loaded.recipe.learner
    found: dict[str, LabelledData] = {}

    def find_once(name: str) -> LabelledData:
        if name not in found:
            own = named.find(name, data, on_progress=on_download) if find is None else find(name)
            found[name] = own
        return found[name]

    with _at(loaded, "stream"):
        tasks = tasks_of(recipe.stream, find_once, seed=recipe.seed)
    with _at(loaded, "learner"):
        criterion_of(learner.importance)
    names = [task.name for task in tasks]
    for unused in learner.unused(names):
        with _at(loaded, "learner", "tasks", unused):
            raise ArgumentError(unknown_name("task", unused, names))
    shapes = {each.name: each.shape for each in found.values()}
    shape, *others = dict.fromkeys(shapes.values())
    if others:
        listed = ", ".join(f"{name} {each}" for name, each in shapes.items())
        with _at(loaded, "stream"):
            raise ArgumentError(
                f"samples of different shapes do not fit one network: {listed}. Use data sets "
                "whose samples have the same shape."
            )
    num_outputs = max(task.num_outputs or 1 for task in tasks)
    with _at(loaded, "network"):
        _check_size(recipe.network, shape, num_outputs, device)
        with on_the_host():
            model = recipe.network.build(shape, num_outputs)
        model = model.to(device)
    example = torch.zeros(2, *shape, device=device)
    _check_alphas(loaded, model, example)
    with _at(loaded, "learner", "training"):
        check_optimizers(learner.candidates(), model)
    return Experiment(
        model,
        example,
        tasks,
        learner,
        head=recipe.network.head,
        seed=recipe.seed,
        baseline=baseline_of(recipe.methods, recipe.method),
        threads=recipe.threads,
    )


@contextmanager
def _at(loaded: LoadedRecipe, *path: str) -> Iterator[None]:
    """Raise an error with the place of the key that it is about."""
    try:
        yield
    except ArgumentError as error:
        raise loaded.error(error, *path) from error


def _check_size(
    network: Network, shape: tuple[int, ...], num_outputs: int, device: torch.device
) -> None:
    """Raise an `ArgumentError` if the weights do not fit in memory; none is allocated."""
    remedy = "Use smaller widths"
    try:
        with torch.device("meta"):
            sizes = [each.nbytes for each in network.build(shape, num_outputs).parameters()]
    except (RuntimeError, TypeError) as error:
        message = f"the network has more weights than PyTorch can count. {remedy}"
        raise ArgumentError(message, argument="widths") from error
    check_memory("the network", sum(sizes), device, remedy, argument="widths")


def _check_alphas(loaded: LoadedRecipe, model: torch.nn.Module, example: torch.Tensor) -> None:
    """Raise a `RecipeError` for an alpha of a layer that the network does not have."""
    graph = discover(model, example)
    learner = loaded.recipe.learner
    alphas: dict[tuple[str, ...], tuple[Alpha, ...]] = {
        ("learner", "alphas"): learner.alphas,
        ("learner", "training", "alpha"): (learner.training.alpha,),
    }
    for name, own in learner.tasks.items():
        alphas["learner", "tasks", name, "alphas"] = own.alphas
    if learner.fine_tuning is not None:
        alphas["learner", "fine_tuning", "alpha"] = (learner.fine_tuning.alpha,)
    for path, given in alphas.items():
        for alpha in given:
            try:
                alpha_by_layer(graph, alpha)
            except ArgumentError as error:  # Its argument is the last key of the path.
                raise loaded.error(RecipeError(error), *path) from error

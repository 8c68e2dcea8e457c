"""A recipe with its data: an experiment."""

import torch

from clnp.core.penalty import alpha_by_layer
from clnp.core.structure.discover import discover
from clnp.data import datasets
from clnp.data.catalog import OnProgress
from clnp.data.labelled import LabelledData
from clnp.data.streams import Find, tasks_of
from clnp.devices import on_the_host
from clnp.errors import ArgumentError, RecipeError, unknown_name
from clnp.methods.registry import baseline_of
from clnp.runs.experiment import Experiment
from clnp.training.config import Alpha
from clnp.training.optimizer import check_optimizer

from .recipe import LoadedRecipe


def experiment_of(
    loaded: LoadedRecipe,
    device: torch.device,
    data: str | None,
    *,
    on_download: OnProgress | None = None,
    find: Find | None = None,
) -> Experiment:
    """The tasks and the network of a recipe, on the device; `data` is where data sets are.

    `find` gives a data set by its name where `datasets.find` shall not. What can be told to be
    wrong without training is refused here, with the place of the key.
    """
    recipe = loaded.recipe
    found: dict[str, LabelledData] = {}

    def found_once(name: str) -> LabelledData:
        if name not in found:
            own = datasets.find(name, data, on_progress=on_download) if find is None else find(name)
            found[name] = own
        return found[name]

    try:
        tasks = tasks_of(recipe.stream, found_once, seed=recipe.seed)
    except ArgumentError as error:
        raise loaded.mistake(error, "stream") from error
    names = [task.name for task in tasks]
    for unused in recipe.learner.unused(names):
        unknown = RecipeError(unknown_name("task", unused, names))
        raise loaded.mistake(unknown, "learner", "tasks", unused)
    shapes = {each.name: each.shape for each in found.values()}
    shape = next(iter(shapes.values()))
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {each}" for name, each in shapes.items())
        different = RecipeError(f"samples of different shapes do not fit one network: {listed}")
        raise loaded.mistake(different, "stream")
    try:
        with on_the_host():
            model = recipe.network.build(shape, max(task.num_outputs or 1 for task in tasks))
        model = model.to(device)
    except ArgumentError as error:
        raise loaded.mistake(error, "network") from error
    except (RuntimeError, OverflowError, MemoryError, TypeError) as error:
        reason = RecipeError(f"cannot be built: {str(error).splitlines()[0][:200]}")
        raise loaded.mistake(reason, "network") from error
    example = torch.zeros(2, *shape, device=device)
    _check_alphas(loaded, model, example)
    _check_optimizers(loaded, device)
    network, learner = recipe.network, recipe.learner
    return Experiment(
        model,
        example,
        tasks,
        learner,
        head=network.head,
        seed=recipe.seed,
        baseline=baseline_of(recipe.methods, recipe.method),
    )


def _check_optimizers(loaded: LoadedRecipe, device: torch.device) -> None:
    """Refuse an optimizer that cannot be made, or cannot take a step."""
    for training in loaded.recipe.learner.candidates():
        try:
            check_optimizer(training, device)
        except ArgumentError as error:
            raise loaded.mistake(error, "learner", "training") from error


def _check_alphas(loaded: LoadedRecipe, model: torch.nn.Module, example: torch.Tensor) -> None:
    """Refuse strengths of the penalty for layers that the network does not have."""
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
            except ArgumentError as error:
                raise loaded.mistake(error, *path) from error

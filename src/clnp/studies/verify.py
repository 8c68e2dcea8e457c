"""Whether a run still is what it says: certificates, figures and test scores, recomputed."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clnp.core.net import ContinualNet
from clnp.data import datasets
from clnp.data.labelled import LabelledData
from clnp.devices import find_device, use_threads
from clnp.errors import ForgettingError, RunError
from clnp.methods.method import OURS
from clnp.methods.neural_pruning import figures
from clnp.recipes.build import experiment_of
from clnp.recipes.recipe import recipe_of
from clnp.runs.directory import (
    CHECKPOINT,
    RESULT,
    expanded,
    last_environment,
    read_config,
    read_result,
    reading,
)
from clnp.runs.environment import arithmetic, describe
from clnp.runs.experiment import Experiment
from clnp.runs.fingerprint import check_alike
from clnp.runs.outputs import Record, agree, expected, is_in_points, judge, tolerance
from clnp.storage.checkpoint import attached, load
from clnp.training.task import Task

from .comparison import read_comparison
from .series import read_series, run_of

Answer = tuple[Any, str]


def verify(experiment: Experiment, directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Check the run of an experiment; a `ForgettingError` names what differs.

        clnp.verify(experiment, "runs/mine")

    Certificates are recomputed, figures of the result are held against the network, and every ended
    task answers to its test data as it did, to the last bit on the same machine and device.
    """
    place = expanded(directory)
    config = read_config(place)
    _check_there(place, "verify")
    device = next(experiment.model.parameters()).device
    answer: dict[str, Any] = _verified(place, restored(place, experiment, config, device))[0]
    return answer


def verify_at(path: str, *, device: str | None, data: str | None) -> Answer:
    """Check all that was made from a recipe at the path: a run, a series or a comparison."""
    place = expanded(path)
    if comparison := read_comparison(place):
        others = [method for method in comparison["methods"] if method != OURS]
        if OURS not in comparison["methods"]:
            names = ", ".join(others)
            raise RunError(f"{place}: {names} promise nothing that could be verified")
        answer, text = verify_at(str(place / OURS), device=device, data=data)
        left = f"\n{', '.join(others)}: these promise nothing that could be verified"
        return answer, f"{text}{left if others else ''}"
    if series := read_series(place):
        runs = [run_of(place, seed) for seed in series["seeds"]]
        there = [run for run in runs if (run / RESULT).is_file()] or runs
        checked = {run: verify_at(str(run), device=device, data=data) for run in there}
        lines = [f"{run}: {text}" for run, (_, text) in checked.items()]
        missing = [f"{run}: no task has ended yet" for run in runs if run not in there]
        return {run.name: answer for run, (answer, _) in checked.items()}, "\n".join(
            lines + missing
        )
    return _verified(place, rebuild(place, device=device, data=data))


def _verified(place: Path, rebuilt: "Rebuilt") -> Answer:
    """Check the scores of a run whose certificates and figures are as they should be."""
    experiment, net, result = rebuilt.experiment, rebuilt.net, rebuilt.result
    here = arithmetic(describe(rebuilt.device))
    judged, loose = {}, dict[str, float]()

    def predict(inputs: Tensor, name: str) -> Any:
        return net(inputs, task=name)

    for task, record in zip(experiment.tasks, result["tasks"], strict=False):
        found = judge(predict, task, experiment.config, seed=experiment.seed, device=rebuilt.device)
        if found is not None:
            judged[task.name] = found[0]
            with reading(place):
                if not _check_score(task, record, *found, here=here):
                    unit = " points" if is_in_points(task.objective) else ""
                    allowed = tolerance(task, record["test_score"])
                    loose[unit] = max(allowed, loose.get(unit, 0.0))
    answer = {"verified": True, "tasks": list(net.tasks), "exact": not loose, "scores": judged}
    within = " or ".join(f"{value:.3g}{unit}" for unit, value in loose.items())
    how = f"to {within} (another machine or device)" if loose else "to the last bit"
    tasks = "1 task" if len(net.tasks) == 1 else f"{len(net.tasks)} tasks"
    return answer, (
        f"verified: all that {tasks} read is as it was frozen (SHA-256), and the test accuracies "
        f"of {len(judged)} are as recorded, {how}."
    )


@dataclass(frozen=True)
class Rebuilt:
    """A run made anew from its files, whose certificates and figures are as they should be.

    `absent` names data sets that were not there, in place of which there are random samples.
    """

    experiment: Experiment
    net: ContinualNet
    result: dict[str, Any]
    device: torch.device
    absent: tuple[str, ...]


def rebuild(
    place: Path,
    *,
    device: str | None,
    data: str | None,
    verb: str = "verify",
    stand_in: bool = False,
) -> Rebuilt:
    """The experiment and the network of the run at `place`; a `ForgettingError` if they differ.

    With `stand_in`, data sets that are not there are not downloaded either: random samples stand in
    for them.
    """
    config = read_config(place)
    _check_there(place, verb)
    with reading(place):
        before = last_environment(place)
        chosen = find_device(device or before.get("device"))
        directory = data or config.get("data")
    use_threads(chosen, before)
    absent: list[str] = []

    def find(name: str) -> LabelledData:
        if stand_in and not datasets.is_there(name, directory):
            absent.append(name)
            return datasets.stand_in(name, directory)
        return datasets.find(name, directory)

    experiment = experiment_of(recipe_of(place), chosen, directory, find=find)
    return restored(place, experiment, config, chosen, absent=absent)


def _check_there(place: Path, verb: str) -> None:
    """Raise a `RunError` unless the run has an ended task, and a network."""
    if not read_result(place):
        raise RunError(f"{place} has no ended task yet; there is nothing to {verb}")
    if not (place / CHECKPOINT).exists():
        raise RunError(f"{place} has lost its {CHECKPOINT}; its tasks were in it")


def restored(
    place: Path,
    experiment: Experiment,
    config: dict[str, Any],
    device: torch.device,
    *,
    absent: Sequence[str] = (),
) -> Rebuilt:
    """The network of the run of an experiment; a `ForgettingError` if it is not what it was."""
    checkpoint, described = place / CHECKPOINT, experiment.to_json()
    # In this order, and at once: a run that goes on writes its checkpoint first.
    result = read_result(place)
    # Tasks that have not ended may be others by now.
    with reading(place):
        ended: dict[str, Any] = {"at_least": len(result.get("tasks", ())), "data": not absent}
    check_alike(described, config, place, **ended)
    if experiment.baseline is not None:
        raise RunError(
            f"{place} was learnt by {experiment.method}, which promises nothing that could be "
            "verified; what it has forgotten is in its result"
        )
    net = load(checkpoint, experiment.model, check=False)
    net.verify()
    if net.open_task is not None:
        net.abandon_task()  # Figures are those of the tasks that have ended.
    with reading(place):
        # What no ended task reads may be damaged too.
        check_alike(described, attached(checkpoint)["experiment"], checkpoint, **ended)
        _check_figures(net, experiment, result)
    return Rebuilt(experiment, net, result, device, tuple(absent))


def _check_figures(net: ContinualNet, experiment: Experiment, result: dict[str, Any]) -> None:
    """Raise a `ForgettingError` unless the result says what follows from the network."""
    names = [record["task"] for record in result["tasks"]]
    now = figures(net)
    for task, digest in result["certificates"].items():
        if now["certificates"].get(task) != digest:
            raise ForgettingError(
                f"task {task!r} has changed: its certificate in {CHECKPOINT} is not the one that "
                f"{RESULT} recorded when it ended"
            )
    if names != list(net.tasks)[: len(names)] or len(names) < len(net.tasks) - 1:
        raise ForgettingError(f"{RESULT} has tasks {names}, the network {list(net.tasks)}")
    if len(names) < len(net.tasks):
        return  # It was killed after the checkpoint of a task and before the result.
    expected: dict[str, Any] = {
        **now,
        "method": experiment.method,
        "head": experiment.head,
        "seed": experiment.seed,
    }
    for key, value in expected.items():
        if result[key] != value:
            raise ForgettingError(f"{RESULT} is not what the network says: its {key} differs")
    usages = {(usage["task"], usage["group"]): usage for usage in now["capacity"]["usages"]}
    pairs = zip(experiment.tasks, result["tasks"], strict=False)
    for number, (task, record) in enumerate(pairs):
        for key in ("new", "reused"):
            for group, value in record[key].items():
                if usages[record["task"], group][key] != value:
                    raise ForgettingError(
                        f"task {record['task']!r}: {RESULT} is not what the network says: its "
                        f"{key} neurons of {group} differ"
                    )
        _check_later(task, number, result["tasks"], result["scores"])


def _check_later(task: Task, number: int, records: Sequence[Record], scores: Sequence[Any]) -> None:
    """Raise a `ForgettingError` if the result says that the task of this number has changed."""
    record = records[number]
    name, before, own = record["task"], record["test_score"], record["arithmetic"]
    for later, row in zip(records[number:], scores[number:], strict=True):
        exact = own is not None and later["arithmetic"] == own
        if not agree(task, row[number], before, exact=exact):
            raise ForgettingError(
                f"task {name!r}: by {RESULT}, its score after {later['task']!r} is {row[number]}, "
                f"and {before} when it ended"
            )
    if own is not None and record["unchanged"] is False:
        raise ForgettingError(
            f"task {name!r}: by {RESULT}, its outputs after a later task were not what they had "
            "been before, though both were computed alike"
        )


def _check_score(task: Task, record: Record, score: float, digest: str, *, here: str) -> bool:
    """Raise a `ForgettingError` if outputs or score are others; whether bits could be compared."""
    name, before, outputs = record["task"], record["test_score"], expected(record, here)
    exact = record["arithmetic"] == here
    if not agree(task, score, before, exact=exact):
        numbers = f"{score}, and was {before}" if exact else f"{score:.6g}, and was {before:.6g}"
        why = "" if exact else ", which rounding on another machine does not explain"
        raise ForgettingError(f"task {name!r}: its test accuracy is {numbers} when it ended{why}")
    if outputs is not None and digest != outputs:
        raise ForgettingError(
            f"task {name!r}: its test accuracy is {score}, and was {before} when it ended; its "
            "outputs differ in some bits"
        )
    return outputs is not None

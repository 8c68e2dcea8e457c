"""Verification of a run: its certificates, its figures and its test scores are recomputed."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clnp.core.net import ContinualNet
from clnp.data import named
from clnp.data.labelled import LabelledData
from clnp.devices import find_device, restoring_threads, use_threads
from clnp.errors import CheckpointError, ForgettingError, RunError
from clnp.methods.neural_pruning import figures
from clnp.plain import read, to_plain
from clnp.recipes.build import experiment_of
from clnp.recipes.recipe import recipe_of
from clnp.records import OURS, RunConfig, RunResult, TaskRecord
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
from clnp.runs.outputs import agree, expected, is_in_points, score_and_digest, tolerance
from clnp.storage.checkpoint import attached, load
from clnp.training.task import Task

from .study import read_comparison, read_series, run_of


@dataclass(frozen=True)
class Verification:
    """The result of `clnp.verify`.

    Attributes:
        verified: Always True: a run that fails raises a `ForgettingError`.
        tasks: The names of the ended tasks, in order.
        exact: Whether outputs were compared bit for bit. On another machine or device, scores are
            compared up to rounding instead.
        scores: The test score of each ended task that has test data, recomputed.
    """

    verified: bool
    tasks: tuple[str, ...]
    exact: bool
    scores: Mapping[str, float]


@dataclass(frozen=True)
class Rebuilt:
    """A run rebuilt from its files, with verified certificates and figures.

    `absent` are the names of missing data sets, which random samples replace.
    """

    experiment: Experiment
    net: ContinualNet
    result: RunResult
    device: torch.device
    absent: tuple[str, ...]


def verify(experiment: Experiment, directory: str | os.PathLike[str]) -> Verification:
    """Verify the run of an experiment.

    All certificates are recomputed, the figures of the result are compared with the network, and
    the outputs of every ended task on its test data with those of when it ended: bit for bit on the
    same machine and device.

    Args:
        experiment: The experiment of the run.
        directory: The directory of the run.

    Returns:
        The names and the test scores of the ended tasks.

    Raises:
        ForgettingError: If a task has changed. The message names it.
        CheckpointError: If the checkpoint is damaged or lost.
        RunError: If there is nothing to verify, or the run is one of another experiment.

    Example:
        >>> experiment.run("runs/mine")
        >>> clnp.verify(experiment, "runs/mine").scores
        {'digits 0-4': 98.4, 'digits 5-9': 97.1}
    """
    path = expanded(directory)
    config = read_config(path)
    _check_ended(path, "verify")
    device = next(experiment.model.parameters()).device
    return _verify(path, restored(path, experiment, config, device))[0]


def verify_at(
    path: str, *, device: str | None, data: str | None
) -> tuple[Verification | dict[str, Verification], str]:
    """Verify a run, or all runs of a series or comparison by their names, from their recipes."""
    place = expanded(path)
    if (comparison := read_comparison(place)) is not None:
        methods = comparison.methods or ()
        if OURS not in methods:
            raise RunError(
                f"Nothing to verify in {place}: only clnp guarantees unchanged outputs. Compare "
                "with the method clnp to have them verified."
            )
        verified, text = verify_at(str(place / OURS), device=device, data=data)
        others = ", ".join(method for method in methods if method != OURS)
        note = f"\nNot verified: {others}. Only clnp guarantees unchanged outputs."
        return verified, text + (note if others else "")
    if (series := read_series(place)) is not None:
        runs = [run_of(place, seed) for seed in series.seeds]
        ended = [run for run in runs if (run / RESULT).is_file()] or runs
        found = {run: _verify(run, rebuild(run, device=device, data=data)) for run in ended}
        lines = [f"{run}: {text}" for run, (_, text) in found.items()]
        lines += [f"{run}: no task has ended yet" for run in runs if run not in ended]
        return {run.name: verified for run, (verified, _) in found.items()}, "\n".join(lines)
    return _verify(place, rebuild(place, device=device, data=data))


def rebuild(
    path: Path,
    *,
    device: str | None,
    data: str | None,
    verb: str = "verify",
    stand_in: bool = False,
) -> Rebuilt:
    """Rebuild the run at `path` from its recipe, and verify its certificates and figures.

    With `stand_in`, random samples replace missing data sets, which are not downloaded.
    """
    config = read_config(path)
    _check_ended(path, verb)
    before = last_environment(path)
    chosen = find_device(device or before.device)
    directory = data or config.data
    absent: list[str] = []

    def find(name: str) -> LabelledData:
        if stand_in and not named.is_there(name, directory):
            absent.append(name)
            return named.stand_in(name, directory)
        return named.find(name, directory)

    experiment = experiment_of(recipe_of(path), chosen, directory, find=find)
    return restored(path, experiment, config, chosen, absent=absent)


def _check_ended(path: Path, verb: str) -> None:
    """Raise a `RunError` unless the run has an ended task, and a network."""
    result = read_result(path)
    if result is None or not result.tasks:
        raise RunError(f"{path} has nothing to {verb}: no task has ended yet. Wait for the first.")
    if not (path / CHECKPOINT).exists():
        raise CheckpointError(
            f"{path} has lost its {CHECKPOINT}, and with it the tasks. Restore a copy of it."
        )


def restored(
    path: Path,
    experiment: Experiment,
    config: RunConfig,
    device: torch.device,
    *,
    absent: Sequence[str] = (),
) -> Rebuilt:
    """Return the network of the run of an experiment, with verified certificates and figures."""
    checkpoint, described = path / CHECKPOINT, experiment.describe()
    # The result is read before the network: a run at work writes its checkpoint first.
    result = read_result(path) or RunResult()

    def check(found: RunConfig, place: Path) -> None:
        # Tasks that have not ended may differ.
        check_alike(described, found, place, at_least=len(result.tasks), data=not absent)

    check(config, path)
    if experiment.baseline is not None:
        raise RunError(
            f"Nothing to verify in {path}: only clnp guarantees unchanged outputs, and its method "
            f"is {experiment.method}. Its result has the forgetting."
        )
    net = load(checkpoint, experiment.model, check=False)
    net.verify()
    if net.open_task is not None:
        net.abandon_task()  # The figures are those of ended tasks.
    with reading(path):
        # The part of the file that no ended task reads may be damaged too.
        check(read(RunConfig, attached(checkpoint)["experiment"]), checkpoint)
        _check_figures(net, experiment, result)
    return Rebuilt(experiment, net, result, device, tuple(absent))


def _verify(path: Path, rebuilt: Rebuilt) -> tuple[Verification, str]:
    """Verify the test scores of a run with verified certificates and figures."""
    with restoring_threads():
        use_threads(rebuilt.device, last_environment(path).num_threads)
        return _verify_scores(rebuilt)


def _verify_scores(rebuilt: Rebuilt) -> tuple[Verification, str]:
    experiment, net, device = rebuilt.experiment, rebuilt.net, rebuilt.device
    here = arithmetic(describe(device))
    scores, loose = dict[str, float](), dict[str, float]()

    def predict(inputs: Tensor, name: str) -> Any:
        return net(inputs, task=name)

    config, seed = experiment.config, experiment.seed
    for task, record in zip(experiment.tasks, rebuilt.result.tasks, strict=False):
        outcome = score_and_digest(predict, task, config, seed=seed, device=device)
        if outcome is None:
            continue
        scores[task.name] = outcome[0]
        if not _check_outputs(task, record, *outcome, here=here):
            unit = " points" if is_in_points(task.objective) else ""
            allowed = tolerance(task, record.test_score or 0.0)
            loose[unit] = max(allowed, loose.get(unit, 0.0))
    found = Verification(True, tuple(net.tasks), not loose, scores)
    within = " or ".join(f"{value:.3g}{unit}" for unit, value in loose.items())
    precision = f"to {within} (another machine or device)" if loose else "to the last bit"
    tasks = "1 task reads" if len(net.tasks) == 1 else f"{len(net.tasks)} tasks read"
    return found, (
        f"Verified: everything that {tasks} is unchanged (SHA-256), and the test scores of "
        f"{len(scores)} are as recorded, {precision}."
    )


def _check_figures(net: ContinualNet, experiment: Experiment, result: RunResult) -> None:
    """Raise a `ForgettingError` unless the result agrees with the network."""
    names = [record.task for record in result.tasks]
    now = figures(net)
    for name, digest in result.certificates.items():
        if now.certificates.get(name) != digest:
            raise _changed(name, f"its certificate in {CHECKPOINT} differs from that in {RESULT}")
    if names != list(net.tasks)[: len(names)] or len(names) < len(net.tasks) - 1:
        raise _contradiction(f"it has tasks {names} instead of {list(net.tasks)}")
    if len(names) < len(net.tasks):
        return  # It was killed after the checkpoint of a task and before the result.
    method, head, seed = experiment.method, experiment.head, experiment.seed
    wanted = {**vars(now), "method": method, "head": head, "seed": seed}
    for key, value in wanted.items():
        if to_plain(getattr(result, key)) != to_plain(value):
            raise _contradiction(f"its {key} differs")
    pairs = zip(experiment.tasks, result.tasks, strict=False)
    for index, (task, record) in enumerate(pairs):
        own = [usage for usage in now.capacity.usages if usage.task == record.task]
        if record.new != {usage.group: usage.new for usage in own}:
            raise _contradiction(f"the new neurons of task {record.task!r} differ")
        if record.reused != {usage.group: usage.reused for usage in own}:
            raise _contradiction(f"the reused neurons of task {record.task!r} differ")
        _check_later(task, index, result)


def _changed(name: str, reason: str) -> ForgettingError:
    return ForgettingError(f"Task {name!r} has changed: {reason}. Restore a copy of the run.")


def _contradiction(reason: str) -> ForgettingError:
    return ForgettingError(
        f"{RESULT} contradicts the network: {reason}. Restore a copy of the run."
    )


def _check_later(task: Task, index: int, result: RunResult) -> None:
    """Raise a `ForgettingError` if the result says that a task has changed since it ended."""
    record = result.tasks[index]
    name, before, own = record.task, record.test_score, record.arithmetic
    for later, row in zip(result.tasks[index:], result.scores[index:], strict=True):
        exact = own is not None and later.arithmetic == own
        if not agree(task, row[index], before, exact=exact):
            then = f"its score was {before} when it ended and {row[index]} after {later.task!r}"
            raise _changed(name, f"by {RESULT}, {then}")
    if own is not None and record.unchanged is False:
        raise _changed(name, f"by {RESULT}, its outputs after a later task differed")


def _check_outputs(task: Task, record: TaskRecord, score: float, digest: str, *, here: str) -> bool:
    """Raise a `ForgettingError` if a task has changed; return whether bits could be compared."""
    name, before, outputs = record.task, record.test_score, expected(record, here)
    exact = record.arithmetic == here
    if not agree(task, score, before, exact=exact):
        now, then = (str(score), str(before)) if exact else (f"{score:.6g}", f"{before or 0.0:.6g}")
        reason = "" if exact else ", which rounding on another machine does not explain"
        raise _changed(name, f"its test score is {now}, and was {then} when it ended{reason}")
    if (exact or outputs is not None) and digest != outputs:
        raise _changed(
            name, f"its test score is still {score}, but some bits of its outputs differ"
        )
    return outputs is not None

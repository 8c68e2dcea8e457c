"""The test data of an ended task: its score, and whether a bit of its outputs has changed.

Bits can only be compared where numbers are rounded in the same way. So the record of a task has the
SHA-256 of its outputs together with the arithmetic that they were computed in. If a run is resumed
in another arithmetic, the outputs there are recorded first, under `elsewhere`.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from clnp.core.certificate import digest_of
from clnp.core.structure.inputs import tensors_in
from clnp.methods.method import Method, Setting
from clnp.records import TaskRecord
from clnp.training.batches import num_samples
from clnp.training.config import LearnerConfig
from clnp.training.fit import evaluate, outputs_of
from clnp.training.objective import OBJECTIVES, Objective, objective_named
from clnp.training.rng import derive, isolated, seed_all
from clnp.training.task import Task, load_test

TOLERANCE = 0.005
"""Share of a score by which rounding on other hardware may move it; or two samples, if more."""


def score_and_digest(
    predict: Callable[[Tensor, str], Any],
    task: Task,
    config: LearnerConfig,
    *,
    seed: int,
    device: torch.device,
) -> tuple[float, str] | None:
    """Return the test score of a task and the SHA-256 of its outputs; None without test data."""
    with isolated(device):
        # As in the learner: test data that draws random numbers is the same every time.
        seed_all(derive(seed, "test", task.name))
        batches = load_test(task, device, config)
        if batches is None:
            return None
        seed_all(derive(seed, "test", task.name))
        outputs, targets = outputs_of(lambda inputs: predict(inputs, task.name), batches)
    return objective_named(task.objective).number(outputs, targets), _digest(outputs)


def validation_score(method: Method, setting: Setting, task: Task) -> float:
    """Return the score of an ended task on the data that is held out for validation."""
    with isolated(method.device):
        data = setting.load(task, method.device)
        predict = partial(method.predict, task=task.name)
        return evaluate(predict, data.validation, data.objective)


def _digest(outputs: Any) -> str:
    """Return the SHA-256 of a tensor, or over those of all tensors in nested outputs."""
    if isinstance(outputs, Tensor):
        return digest_of(outputs)
    found = " ".join(digest_of(tensor) for tensor in tensors_in(outputs))
    return hashlib.sha256(found.encode()).hexdigest()


def expected(record: TaskRecord, arithmetic: str) -> str | None:
    """Return the SHA-256 that the outputs of a task must have in this arithmetic, if known."""
    if record.arithmetic == arithmetic:
        return record.outputs
    return (record.elsewhere or {}).get(arithmetic)


def is_known(record: TaskRecord, arithmetic: str) -> bool:
    """Whether the outputs of a task have been computed in this arithmetic."""
    return arithmetic in (record.arithmetic, *(record.elsewhere or {}))


def with_outputs_elsewhere(record: TaskRecord, arithmetic: str, digest: str) -> TaskRecord:
    """Return the record with the outputs in another arithmetic; None if they changed before."""
    known = None if record.unchanged is False else digest
    return replace(record, elsewhere={**(record.elsewhere or {}), arithmetic: known})


def with_outputs(record: TaskRecord, arithmetic: str, digest: str | None) -> TaskRecord:
    """Return the record with the outputs of a new task, or with whether they are unchanged."""
    if record.outputs is None and (digest is not None or record.arithmetic is None):
        record = replace(record, outputs=digest, arithmetic=arithmetic)
    unchanged = None if digest is None else digest == expected(record, arithmetic)
    return replace(record, unchanged=unchanged)


def tolerance(task: Task, score: float) -> float:
    """Return by how much rounding on other hardware may move a score, in its units."""
    if not math.isfinite(score):
        return 0.0
    share = TOLERANCE if task.test is None else max(TOLERANCE, 2 / num_samples(task.test))
    return share * _whole(task.objective, score)


def _whole(objective: str | Objective, score: float) -> float:
    """Return the full scale of a score: 100 for percent, its size if nothing is known."""
    objective = objective_named(objective)
    if is_in_points(objective):
        return max(100.0, abs(score))
    if objective.highest is not None:
        return max(abs(objective.highest), abs(score))
    if score < -1:
        return -score  # A loss with its sign changed, for example.
    return 1.0 if score <= 1 else max(100.0, score)


def is_in_points(objective: str | Objective) -> bool:
    """Whether the objective is known to score in percent, as all built-in ones do."""
    return objective_named(objective) in OBJECTIVES.values()


def agree(task: Task, score: float | None, before: float | None, *, exact: bool) -> bool:
    """Whether a score of a task is unchanged, up to rounding unless it must be `exact`."""
    if score is None or before is None or score == before:
        return score == before
    if math.isnan(score) and math.isnan(before):
        return True
    # Two samples must pass, whatever the last bit of their percentage is.
    return not exact and abs(score - before) <= tolerance(task, before) * (1 + 1e-9)

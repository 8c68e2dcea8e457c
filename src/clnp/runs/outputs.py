"""The test data of a task that has ended: its score, and whether a bit of its outputs differs.

Bits can be compared only where numbers are rounded alike. So the record of a task has the SHA-256
of its `outputs` when it ended and the `arithmetic` they come of; where a run went on in another
arithmetic, `elsewhere` has what they were there before anything was learnt.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from clnp.core.certificate import digest_of
from clnp.core.structure.inputs import tensors_in
from clnp.training.batches import num_samples
from clnp.training.config import LearnerConfig
from clnp.training.fit import outputs_of
from clnp.training.objective import OBJECTIVES, Objective, objective_named
from clnp.training.rng import derive, isolated, seed_all
from clnp.training.task import Task, load_test

Record = dict[str, Any]
LOOSE = 0.005
"""Share of a score by which rounding on other hardware may move it; or two samples, if more."""


def judge(
    predict: Callable[[Tensor, str], Any],
    task: Task,
    config: LearnerConfig,
    *,
    seed: int,
    device: torch.device,
) -> tuple[float, str] | None:
    """The score of a task on its test data and the SHA-256 of its outputs, if it has any."""
    with isolated(device):
        # As the learner does: test data that draws random numbers is the same every time.
        seed_all(derive(seed, "test", task.name))
        batches = load_test(task, device, resident=config.resident, num_workers=config.num_workers)
        if batches is None:
            return None
        seed_all(derive(seed, "test", task.name))
        outputs, targets = outputs_of(lambda inputs: predict(inputs, task.name), batches)
    return objective_named(task.objective).number(outputs, targets), _digest(outputs)


def _digest(outputs: Any) -> str:
    """SHA-256 of a tensor, or over those of all tensors in what a network returns."""
    if isinstance(outputs, Tensor):
        return digest_of(outputs)
    found = " ".join(digest_of(tensor) for tensor in tensors_in(outputs))
    return hashlib.sha256(found.encode()).hexdigest()


def expected(record: Mapping[str, Any], here: str) -> str | None:
    """The SHA-256 that the outputs of the task must have in this arithmetic; None: not known."""
    own = record["arithmetic"] == here
    found: str | None = record["outputs"] if own else record.get("elsewhere", {}).get(here)
    return found


def is_known(record: Mapping[str, Any], here: str) -> bool:
    """Whether the outputs of the task have been seen in this arithmetic."""
    return here in (record["arithmetic"], *record.get("elsewhere", {}))


def note_elsewhere(record: Record, here: str, digest: str) -> None:
    """Note what the outputs are in another arithmetic; one that had changed before stays so."""
    now = None if record["unchanged"] is False else digest
    record["elsewhere"] = {**record.get("elsewhere", {}), here: now}


def note(record: Record, here: str, digest: str | None) -> None:
    """Note the outputs of a task that has just ended, or whether they are still what they were."""
    if record.get("outputs") is None and (digest is not None or "arithmetic" not in record):
        record["outputs"], record["arithmetic"] = digest, here
    record["unchanged"] = None if digest is None else digest == expected(record, here)


def tolerance(task: Task, score: float) -> float:
    """By how much rounding on other hardware may move this score of the task, in its units."""
    if not math.isfinite(score):
        return 0.0
    share = LOOSE if task.test is None else max(LOOSE, 2 / num_samples(task.test))
    return share * _whole(task.objective, score)


def _whole(objective: str | Objective, score: float) -> float:
    """What the score is a part of: 100 if it is in percent, its own size if nothing is known."""
    objective = objective_named(objective)
    if is_in_points(objective):
        return max(100.0, abs(score))
    if objective.highest is not None:
        return max(abs(objective.highest), abs(score))
    if score < -1:
        return -score  # A loss with its sign turned, say.
    return 1.0 if score <= 1 else max(100.0, score)


def is_in_points(objective: str | Objective) -> bool:
    """Whether the objective is known to score in percent: those that are built in do."""
    return objective_named(objective) in OBJECTIVES.values()


def agree(task: Task, score: float | None, before: float | None, *, exact: bool) -> bool:
    """Whether a score of the task is what it was, up to rounding unless it must be `exact`."""
    if score is None or before is None or score == before:
        return score == before
    if math.isnan(score) and math.isnan(before):
        return True
    # Two samples are two samples, whatever became of the last bit of their percentage.
    return not exact and abs(score - before) <= tolerance(task, before) * (1 + 1e-9)

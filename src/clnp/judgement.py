"""The test data of a task that has ended: its score, and whether a bit of its outputs differs.

Bits can be compared only where numbers are rounded alike. So the record of a task has the SHA-256
of its `outputs` when it ended and the `arithmetic` they come of; where a run went on in another
arithmetic, `elsewhere` has what they were there before anything was learnt.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .certificate import digest_of
from .config import LearnerConfig
from .fit import outputs_of
from .generators import isolated, seed_all
from .objective import objective_named
from .operations import tensors_in
from .seeds import derive
from .task import Task, load_test

Record = dict[str, Any]


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

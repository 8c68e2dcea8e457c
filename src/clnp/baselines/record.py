"""What the runs of all baselines write in the same way."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import Any

from .. import checkpoint
from ..description import Description
from ..errors import CheckpointError
from ..graph import Graph
from ..ledger import Ledger
from ..objective import objective_named
from ..task import Task
from ..training import Training

NO_NEURONS: dict[str, Any] = {
    "capacity": {"sizes": {}, "usages": [], "free": {}},
    "forecast": {"num_tasks": None, "bottleneck": None},
    "certificates": {},
}
"""What a result says of neurons, which baselines do not claim."""


def outcome(
    task: Task,
    training: Training,
    *,
    num_epochs: int,
    best: float | None,
    score: float | None,
    test_score: float | None,
    guess: float | None = None,
) -> dict[str, Any]:
    """What a result says about a task: trained once, and nothing pruned."""
    candidate = {"alpha": 0.0, "lr": training.lr, "num_epochs": num_epochs}
    return {
        "task": task.name,
        "objective": objective_named(task.objective).name,
        "candidates": [{**candidate, "score": best, "diverged": None}],
        "winner": 0,
        "best_score": best,
        "pruning": {"score": None, "kept": {}, "thresholds": {}},
        "num_rounds": 0,
        "score": score,
        "test_score": test_score,
        "guess": guess,
        "new": {},
        "reused": {},
    }


@contextmanager
def of_this_model() -> Iterator[None]:
    """Tell of tensors that cannot be loaded into the model."""
    try:
        yield
    except RuntimeError as error:
        raise CheckpointError(f"the run was begun with another model: {error}") from error


def save_state(path: str | PathLike[str], graph: Graph, head: str, attached: Any) -> None:
    """Write a checkpoint that holds nothing but what is attached."""
    empty = checkpoint.Record(
        graph=graph,
        head=head,
        description=Description({}, {}),
        ledger=Ledger(graph.groups),
        certificates=(),
        num_outputs=(),
        open_task=None,
        open_free={},
        attached=attached,
    )
    checkpoint.write(path, empty, {})


def without_penalty(training: Training) -> Training:
    """The same training without an L1 penalty."""
    return replace(training, alpha=0.0)

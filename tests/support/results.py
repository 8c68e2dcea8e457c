"""Results of runs with any number of tasks and layers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from clnp.core.forecast import forecast
from clnp.core.layers.ledger import Ledger
from clnp.records import (
    FORMAT,
    CandidateRecord,
    CapacityRecord,
    PruningRecord,
    RunResult,
    TaskRecord,
    Timings,
)


def made_up(
    num_tasks: int,
    sizes: Mapping[str, int],
    *,
    claim: int = 1,
    names: Sequence[str] = (),
    **others: Any,
) -> RunResult:
    """Return the result of a run in which every task claimed as many neurons of each layer."""
    names = names or [f"task {number + 1}" for number in range(num_tasks)]
    ledger = Ledger(dict(sizes))
    claims = dict.fromkeys(sizes, claim)
    for number, name in enumerate(names):
        ledger = ledger.claim(name, claims, dict.fromkeys(sizes, min(number, claim // 2)))
    capacity = ledger.capacity()
    scores = [90.0 + number % 3 for number in range(num_tasks)]
    tasks = [
        TaskRecord(
            task=name,
            objective="classification",
            candidates=(CandidateRecord(alpha=0.001, lr=0.01, num_epochs=5, score=93.0),),
            best_score=93.0,
            pruning=PruningRecord(92.5, claims, dict.fromkeys(sizes, 0.25)),
            score=92.5,
            test_score=scores[number],
            new=claims,
            reused=dict.fromkeys(sizes, min(number, claim // 2)),
            outputs="0" * 64,
            unchanged=True,
        )
        for number, name in enumerate(names)
    ]
    result = RunResult(
        format=FORMAT,
        finished=True,
        num_tasks=num_tasks,
        head="multi",
        seed=0,
        tasks=tuple(tasks),
        scores=tuple(tuple(scores[: number + 1]) for number in range(num_tasks)),
        capacity=CapacityRecord(dict(sizes), capacity.usages, capacity.free),
        forecast=forecast(capacity, head="multi"),
        certificates={name: f"{number:064x}" for number, name in enumerate(names)},
        stored_bytes={"network": 168796, "heads": 0},
        timings=Timings(12.0, (1.0,) * num_tasks, 8 * 10**8),
    )
    return replace(result, **others)


def with_task(result: RunResult, index: int, **changes: Any) -> RunResult:
    """Return the result with changes to one of its tasks."""
    tasks = list(result.tasks)
    tasks[index] = replace(tasks[index], **changes)
    return replace(result, tasks=tuple(tasks))

"""Runs written by hand, as small or as large as a test needs them."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clnp.core.forecast import Forecast
from clnp.core.layers.ledger import Usage
from clnp.core.pruning.plan import CurvePoint, PruningPlan
from clnp.plain import to_json, to_plain
from clnp.records import (
    CandidateChosen,
    CandidatePruned,
    CandidateRecord,
    CandidateTrained,
    CapacityRecord,
    Environment,
    EpochEnded,
    Event,
    RunConfig,
    RunFinished,
    RunResult,
    RunStarted,
    SeriesConfig,
    TaskDescription,
    TaskRecord,
    TaskStarted,
    Timings,
    event_to_plain,
)
from clnp.studies.study import COMPARISON, SERIES
from clnp.studies.tables import Mean

ENVIRONMENT = Environment(began="2026-01-01T00:00:00+00:00", clnp="0.1.0", cpu="a CPU")


def write_run(
    path: Path,
    *,
    tasks: tuple[str, ...] = ("low", "high", "wide"),
    sizes: dict[str, int] | None = None,
    num_candidates: int = 2,
    num_epochs: int = 3,
    method: str = "clnp",
    seed: int = 0,
    num_learned: int | None = None,
    margin: float = 1.0,
    **changes: Any,
) -> Path:
    """Write a run whose numbers are simple: task k scores 90 + k, and claims 2 k of each group.

    The best candidate is the second of two, the winner the first. `num_learned` tasks are learned
    and the next one is in training; a baseline forgets a point with each task. `changes` replace
    keys of the result.
    """
    sizes = {"fc1": 100, "fc2": 50} if sizes is None else sizes
    own = sizes if method == "clnp" else {}
    path.mkdir(parents=True, exist_ok=True)
    num_learned = len(tasks) if num_learned is None else num_learned
    config = RunConfig(
        format=1,
        tasks=tuple(TaskDescription(task, objective="classification") for task in tasks),
        head="multi",
        seed=seed,
        learner={"margin": margin, "training": {"epochs": 3}},
        method=method,
        recipe="by-hand",
    )
    write(path, "config.json", to_plain(config))
    write(path, "environment.json", [to_plain(ENVIRONMENT)])
    events: list[Event] = [RunStarted(config=config)]
    records, usages, used = [], [], dict.fromkeys(own, 0)
    for k, task in enumerate(tasks[: num_learned + 1], 1):
        events += train(task, k, num_candidates, num_epochs)
        if k > num_learned:
            break
        new = {group: 2 * k for group in own}
        reused = {group: 0 if k == 1 else used[group] // 2 for group in own}
        used = {group: used[group] + new[group] for group in own}
        if own:
            events += prune(task, k, new, reused, margin=margin)
        usages += [Usage(task, g, new[g], reused[g], sizes[g] - used[g]) for g in own]
        records.append(
            TaskRecord(
                task,
                objective="classification",
                candidates=tuple(candidate(k, index) for index in range(num_candidates)),
                test_score=90.0 + k,
                new=new,
                reused=reused,
                unchanged=True if own else k == num_learned,
            )
        )
    if num_learned == len(tasks):
        events.append(RunFinished(num_tasks=num_learned))
    lost = 0.0 if own else 1.0
    result = RunResult(
        format=1,
        finished=num_learned == len(tasks),
        num_tasks=len(tasks),
        method=method,
        head="multi",
        seed=seed,
        tasks=tuple(records),
        scores=tuple(
            tuple(90.0 + j - lost * (k - j) for j in range(1, k + 1))
            for k in range(1, num_learned + 1)
        ),
        capacity=CapacityRecord(own, tuple(usages)),
        forecast=Forecast(7, next(iter(own), None), like=("a",)),
        certificates={task: f"{k:064x}" for k, task in enumerate(tasks[:num_learned]) if own},
        stored_bytes={"network": 2_000_000, "heads": 500_000},
        timings=Timings(60.0, (20.0,) * num_learned, 10**9),
    )
    write_events(path, events)
    if num_learned:
        write(path, "result.json", to_plain(result) | changes)
        (path / "checkpoint.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return path


def write(path: Path, name: str, value: Any) -> None:
    """Write a file of a run: text as it is, anything else as JSON."""
    text = value if isinstance(value, str) else json.dumps(value)
    (path / name).write_text(text, encoding="utf-8")


def write_events(path: Path, events: list[Event], *, append: bool = False) -> None:
    """Write the log of a run, or append to it."""
    lines = "".join(to_json(event_to_plain(event)) + "\n" for event in events)
    with (path / "events.jsonl").open("a" if append else "w", encoding="utf-8") as file:
        file.write(lines)


def change(path: Path, name: str = "result.json", **values: Any) -> None:
    """Replace keys of a JSON file of a run."""
    found = json.loads((path / name).read_text(encoding="utf-8"))
    write(path, name, found | values)


def change_tasks(path: Path, *indices: int, **values: Any) -> None:
    """Replace keys of these tasks in the result, or of all."""
    tasks = json.loads((path / "result.json").read_text(encoding="utf-8"))["tasks"]
    for index in indices or range(len(tasks)):
        tasks[index] |= values
    change(path, tasks=tasks)


def candidate(k: int, index: int) -> CandidateRecord:
    """Return a candidate of task k."""
    return CandidateRecord(10.0 ** (index - 4), 0.01, 3, 90.0 + k + index / 2)


def epoch(task: str, number: int, loss: float, score: float, **part: int) -> EpochEnded:
    """Return an epoch of a candidate, or of a round."""
    return EpochEnded(
        task=task,
        num_epochs=3,
        number=number,
        loss=loss,
        penalised_loss=loss,
        score=score,
        seconds=1.0,
        **part,
    )


def train(task: str, k: int, num_candidates: int, num_epochs: int) -> list[Event]:
    """Return the events of training all candidates of a task."""
    events: list[Event] = [
        TaskStarted(
            task=task,
            number=k,
            num_tasks=3,
            num_candidates=num_candidates,
            num_epochs=num_epochs,
            epochs_before=0,
            epochs_of_run=9,
        )
    ]
    for index in range(num_candidates):
        events += [
            epoch(task, number, math.exp(-number), 80.0 + number + index, candidate=index)
            for number in range(num_epochs)
        ]
        known = candidate(k, index)
        events.append(
            CandidateTrained(
                task=task,
                candidate=index,
                alpha=known.alpha,
                lr=known.lr,
                num_epochs=num_epochs,
                score=known.score,
            )
        )
    return events


def prune(
    task: str, k: int, new: Mapping[str, int], reused: Mapping[str, int], *, margin: float
) -> list[Event]:
    """Return the events of pruning the winner: two thresholds too high, one within the margin."""
    best = 90.5 + k
    curve = tuple(
        CurvePoint(
            dict.fromkeys(new, theta),
            {group: num + more for group, num in new.items()},
            best - lost,
        )
        for theta, more, lost in ((0.9, -2, 40.0), (0.5, -1, 5.0), (0.25, 0, 0.75), (-1.0, 20, 0.5))
    )
    plan = PruningPlan(
        task,
        available=dict.fromkeys(new, 100),
        keep={group: tuple(range(num)) for group, num in new.items()},
        thresholds=dict.fromkeys(new, 0.25),
        reused=dict(reused),
        score=best - 0.75,
        best=best,
        margin=margin,
        curve=curve,
    )
    return [
        CandidatePruned(task=task, candidate=0, plan=plan),
        CandidateChosen(task=task, candidate=0),
        epoch(task, 0, 0.01, 90.0, round=0),
    ]


def write_series(path: Path, *, seeds: tuple[int, ...] = (0, 1), **settings: Any) -> Path:
    """Write a series of such runs; the scores of seed s are s points higher."""
    path.mkdir(parents=True, exist_ok=True)
    write(path, SERIES, to_plain(SeriesConfig(1, "by-hand", seeds)))
    for seed in seeds:
        write_run(path / f"seed{seed}", seed=seed, **settings)
        raise_scores(path / f"seed{seed}", seed)
    return path


def raise_scores(path: Path, points: float) -> None:
    """Add points to all test scores of a run."""
    result = json.loads((path / "result.json").read_text(encoding="utf-8"))
    result["scores"] = [[score + points for score in row] for row in result["scores"]]
    for record in result["tasks"]:
        record["test_score"] += points
    write(path, "result.json", result)


def write_comparison(path: Path, *, methods: tuple[str, ...] = ("clnp", "single", "ewc")) -> Path:
    """Write a comparison of such series."""
    path.mkdir(parents=True, exist_ok=True)
    write(path, COMPARISON, to_plain(SeriesConfig(1, "by-hand", (0, 1), methods=methods)))
    for method in methods:
        write_series(path / method, method=method)
    return path


def as_text(rows: Any) -> tuple[tuple[Any, ...], ...]:
    """Return the rows of a table as the page shows them."""
    return tuple(
        tuple(str(cell) if isinstance(cell, Mean) else cell for cell in row) for row in rows
    )

"""Runs written by hand, as small or as large as a test needs them."""

import json
import math
from pathlib import Path
from typing import Any

from clnp.report.collection import COMPARISON, SERIES
from clnp.report.measures import Spread

ENVIRONMENT = {"began": "2026-01-01T00:00:00+00:00", "clnp": "0.1.0", "cpu": "a CPU", "gpu": None}


def write_run(
    path: Path,
    *,
    tasks: tuple[str, ...] = ("low", "high", "wide"),
    sizes: dict[str, int] | None = None,
    num_candidates: int = 2,
    num_epochs: int = 3,
    method: str = "clnp",
    seed: int = 0,
    num_learnt: int | None = None,
    margin: float = 1.0,
    **changes: Any,
) -> Path:
    """A run whose numbers can be worked out: task k scores 90 + k, and claims 2 k of each group.

    The best candidate is the second of two, the winner the first. `num_learnt` tasks are learnt
    and the next one is being trained; a baseline forgets a point with each task. `changes` replace
    keys of the result.
    """
    sizes = {"fc1": 100, "fc2": 50} if sizes is None else sizes
    own = sizes if method == "clnp" else {}
    path.mkdir(parents=True, exist_ok=True)
    num_learnt = len(tasks) if num_learnt is None else num_learnt
    write(path, "config.json", config_of(tasks, method=method, seed=seed, margin=margin))
    write(path, "environment.json", [ENVIRONMENT])
    events: list[dict[str, Any]] = [{"event": "run"}]
    records, usages, used = [], [], dict.fromkeys(own, 0)
    for k, task in enumerate(tasks[: num_learnt + 1], 1):
        events += train(task, k, num_candidates, num_epochs)
        if k > num_learnt:
            break
        new = {group: 2 * k for group in own}
        reused = {group: 0 if k == 1 else used[group] // 2 for group in own}
        used = {group: used[group] + new[group] for group in own}
        if own:
            events += prune(task, k, new, reused, margin=margin)
        usages += [
            {
                "task": task,
                "group": g,
                "new": new[g],
                "reused": reused[g],
                "free": sizes[g] - used[g],
            }
            for g in own
        ]
        records.append(
            {
                "task": task,
                "objective": "classification",
                "candidates": [candidate(k, place) for place in range(num_candidates)],
                "winner": 0,
                "test_score": 90.0 + k,
                "new": new,
                "reused": reused,
                "unchanged": True if own else k == num_learnt,
            }
        )
    if num_learnt == len(tasks):
        events.append({"event": "finished", "num_tasks": num_learnt})
    lost = 0.0 if own else 1.0
    result = {
        "format": 1,
        "finished": num_learnt == len(tasks),
        "full": None,
        "num_tasks": len(tasks),
        "method": method,
        "head": "multi",
        "seed": seed,
        "tasks": records,
        "scores": [
            [90.0 + j - lost * (k - j) for j in range(1, k + 1)] for k in range(1, num_learnt + 1)
        ],
        "capacity": {"sizes": own, "usages": usages, "free": {}},
        "forecast": {"num_tasks": 7, "bottleneck": next(iter(own), None), "like": ["a"]},
        "certificates": {task: f"{k:064x}" for k, task in enumerate(tasks[:num_learnt])}
        if own
        else {},
        "stored_bytes": {"network": 2_000_000, "heads": 500_000},
        "timings": {"seconds": 60.0, "tasks": [20.0] * num_learnt, "peak_bytes": 10**9},
        **changes,
    }
    write(path, "events.jsonl", "".join(json.dumps(event) + "\n" for event in events))
    if num_learnt:
        write(path, "result.json", result)
    return path


def write(path: Path, name: str, value: Any) -> None:
    """A file of a run: text as it is, anything else as JSON."""
    text = value if isinstance(value, str) else json.dumps(value)
    (path / name).write_text(text, encoding="utf-8")


def config_of(tasks: tuple[str, ...], *, method: str, seed: int, margin: float) -> dict[str, Any]:
    """A config, as far as a report reads it."""
    return {
        "format": 1,
        "tasks": [{"name": task, "objective": "classification"} for task in tasks],
        "head": "multi",
        "seed": seed,
        "learner": {"margin": margin, "training": {"epochs": 3}},
        "method": method,
        "recipe": "by-hand",
        "data": None,
    }


def candidate(k: int, place: int) -> dict[str, Any]:
    """A candidate of task k as a result has it."""
    alpha = 10.0 ** (place - 4)
    return {"alpha": alpha, "lr": 0.01, "score": 90.0 + k + place / 2, "diverged": None}


def train(task: str, k: int, num_candidates: int, num_epochs: int) -> list[dict[str, Any]]:
    """The events of training all candidates of a task."""
    events: list[dict[str, Any]] = [{"event": "begin", "task": task, "number": k}]
    for place in range(num_candidates):
        events += [
            {
                "event": "epoch",
                "task": task,
                "candidate": place,
                "number": epoch,
                "loss": math.exp(-epoch),
                "score": 80.0 + epoch + place,
            }
            for epoch in range(num_epochs)
        ]
        events.append(
            {"event": "candidate", "task": task, "candidate": place, **candidate(k, place)}
        )
    return events


def prune(
    task: str, k: int, new: dict[str, int], reused: dict[str, int], *, margin: float
) -> list[dict[str, Any]]:
    """The events of pruning the winner of a task: two thresholds too high, one that holds."""
    best = 90.5 + k
    curve = [
        {
            "thresholds": dict.fromkeys(new, theta),
            "kept": {group: num + more for group, num in new.items()},
            "score": best - lost,
        }
        for theta, more, lost in ((0.9, -2, 40.0), (0.5, -1, 5.0), (0.25, 0, 0.75), (-1.0, 20, 0.5))
    ]
    plan = {
        "task": task,
        "keep": {group: list(range(num)) for group, num in new.items()},
        "thresholds": dict.fromkeys(new, 0.25),
        "reused": reused,
        "score": best - 0.75,
        "best": best,
        "margin": margin,
        "curve": curve,
    }
    tuning = [
        {"event": "epoch", "task": task, "round": 0, "number": 0, "loss": 0.01, "score": 90.0}
    ]
    return [
        {"event": "pruning", "task": task, "candidate": 0, "plan": plan},
        {"event": "chosen", "task": task, "candidate": 0},
        *tuning,
    ]


def write_series(path: Path, *, seeds: tuple[int, ...] = (0, 1), **settings: Any) -> Path:
    """A series of such runs; the scores of seed s are s points higher."""
    path.mkdir(parents=True, exist_ok=True)
    write(path, SERIES, {"format": 1, "recipe": "by-hand", "seeds": list(seeds)})
    for seed in seeds:
        write_run(path / f"seed{seed}", seed=seed, **settings)
        raise_scores(path / f"seed{seed}", seed)
    return path


def raise_scores(path: Path, points: float) -> None:
    """Add points to all test scores of a run."""
    file = path / "result.json"
    result = json.loads(file.read_text(encoding="utf-8"))
    result["scores"] = [[score + points for score in row] for row in result["scores"]]
    for record in result["tasks"]:
        record["test_score"] += points
    write(path, "result.json", result)


def write_comparison(path: Path, *, methods: tuple[str, ...] = ("clnp", "single", "ewc")) -> Path:
    """A comparison of such series."""
    path.mkdir(parents=True, exist_ok=True)
    known = {"format": 1, "recipe": "by-hand", "methods": list(methods), "seeds": [0, 1]}
    write(path, COMPARISON, known)
    for method in methods:
        write_series(path / method, method=method)
    return path


def as_text(rows: Any) -> tuple[tuple[Any, ...], ...]:
    """The rows of a table as the page shows them."""
    return tuple(
        tuple(str(cell) if isinstance(cell, Spread) else cell for cell in row) for row in rows
    )

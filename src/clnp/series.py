"""Several runs of one recipe that differ in their seed, and what they come to together.

series.json             the recipe's name, the seeds, and whether the first one searches for all
seed0/, seed1/, ...     a run each
summary.json            means and standard deviations over the runs that are finished
"""

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import RunError
from .ledger import aligned
from .runs import read_json, read_result

SERIES = "series.json"
SUMMARY = "summary.json"


def run_of(path: Path, seed: int) -> Path:
    """The directory of the run with this seed."""
    return path / f"seed{seed}"


def read_series(path: Path) -> dict[str, Any]:
    """The recipe's name and the seeds of the series at `path`; empty if there is none."""
    if not os.path.isfile(path / SERIES):
        return {}
    return checked(path, SERIES, "seeds")


def checked(path: Path, name: str, *lists: str) -> dict[str, Any]:
    """The JSON file of a series or comparison, which must have lists under these keys."""
    found: dict[str, Any] = read_json(path, name, {})
    for key in lists:
        if not isinstance(found.get(key), list):
            raise RunError(
                f"{path / name} is damaged: it has no {key}; put a copy of it back, or begin anew "
                "in another directory"
            )
    return found


def finished_results(path: Path) -> list[dict[str, Any]]:
    """The results of all runs of the series that are finished, in the order of the seeds.

    None where there is no series yet.
    """
    seeds = read_series(path).get("seeds", [])
    results = (read_result(run_of(path, seed)) for seed in seeds)
    return [result for result in results if result.get("finished")]


def choices(path: Path) -> dict[str, tuple[Any, float]]:
    """Alpha and learning rate that the first run of the series chose for each task."""
    result: dict[str, Any] = read_result(run_of(path, read_series(path)["seeds"][0]))
    winners = {r["task"]: r["candidates"][r["winner"]] for r in result.get("tasks", [])}
    return {task: (winner["alpha"], winner["lr"]) for task, winner in winners.items()}


def aggregate(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means and standard deviations over several results of one recipe.

    `average` is the mean test score over the tasks after the last of them, `used` the percentage
    of each group's neurons that are claimed then, and `forgetting` the largest loss of any task
    since it was learnt. Where runs got different numbers of tasks into the network, tasks are
    those that all have; where not all of them got all in, `num_tasks_in_all` says how many there
    are.
    """
    if not results:
        raise RunError("no run of the series is finished yet")
    counts = [len(result["tasks"]) for result in results]
    num_tasks, in_all = min(counts), max(result["num_tasks"] for result in results)
    last = [[float(score) for score in result["scores"][-1]] for result in results]
    tasks = [record["task"] for record in results[0]["tasks"][:num_tasks]]
    sizes = results[0]["capacity"]["sizes"]
    return {
        "seeds": [result["seed"] for result in results],
        "num_tasks": counts,
        **({"num_tasks_in_all": in_all} if num_tasks < in_all else {}),
        "average": spread([statistics.fmean(row) for row in last]),
        "tasks": [
            {"task": task, **spread([row[place] for row in last])}
            for place, task in enumerate(tasks)
        ],
        "forgetting": max(
            float(record["test_score"]) - now
            for result, row in zip(results, last, strict=True)
            for record, now in zip(result["tasks"], row, strict=True)
        ),
        "unchanged": all(record["unchanged"] for r in results for record in r["tasks"]),
        "used": {
            group: spread(
                [100 * (1 - result["capacity"]["free"][group] / size) for result in results]
            )
            for group, size in sizes.items()
        },
        "seconds": spread([result["timings"]["seconds"] for result in results]),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, and the standard deviation of a sample; that of one value is 0."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "deviation": deviation}


def described(summary: Mapping[str, Any]) -> str:
    """The summary in text for a terminal."""
    num_seeds = len(summary["seeds"])
    sign = "±" if num_seeds > 1 else None  # One seed has no deviation.
    seeds = "1 seed" if num_seeds == 1 else f"{num_seeds} seeds, mean ± standard deviation"
    if "num_tasks_in_all" in summary:
        learnt = ", ".join(map(str, summary["num_tasks"]))
        seeds += f"\nlearnt: {learnt} of {summary['num_tasks_in_all']} tasks, the average is theirs"
    rows = [["task", "test score"]]
    rows += [[task["task"], plus_minus(task, sign=sign)] for task in summary["tasks"]]
    rows.append(["average", plus_minus(summary["average"], sign=sign)])
    used = [["layer", "neurons used, %"]]
    used += [[group, plus_minus(value, 1, sign=sign)] for group, value in summary["used"].items()]
    capacity = f"{aligned(used)}\n\n" if summary["used"] else ""
    kept = "all outputs are what they were when their tasks ended, to the last bit"
    if not summary["unchanged"]:
        kept = f"outputs have changed; the largest loss of a task is {summary['forgetting']:.2f}"
    return f"{seeds}\n\n{aligned(rows)}\n\n{capacity}Forgetting: {kept}."


def plus_minus(value: Mapping[str, float], digits: int = 2, *, sign: str | None = "±") -> str:
    """The mean and its spread, 98.46 ± 0.03; without a sign, the mean alone."""
    # Rounding would leave a minus before nothing: -0.00.
    mean = value["mean"] if round(value["mean"], digits) else 0.0
    if sign is None:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} {sign} {value['deviation']:.{digits}f}"

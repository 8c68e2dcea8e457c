"""Results as runs write them, of any number of tasks and layers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from clnp.core.forecast import forecast
from clnp.core.layers.ledger import Ledger
from clnp.runs.directory import to_json


def made_up(
    num_tasks: int,
    sizes: Mapping[str, int],
    *,
    claim: int = 1,
    names: Sequence[str] = (),
    **others: Any,
) -> dict[str, Any]:
    """A finished run in which every task claimed as many neurons of each layer."""
    names = names or [f"task {number + 1}" for number in range(num_tasks)]
    ledger = Ledger(dict(sizes))
    for number, name in enumerate(names):
        reused = dict.fromkeys(sizes, min(number, claim // 2))
        ledger = ledger.claim(name, dict.fromkeys(sizes, claim), reused)
    capacity = ledger.capacity()
    scores = [90.0 + number % 3 for number in range(num_tasks)]
    result = {
        "format": 1,
        "finished": True,
        "full": None,
        "num_tasks": num_tasks,
        "method": "clnp",
        "head": "multi",
        "seed": 0,
        "tasks": [
            {
                "task": name,
                "objective": "classification",
                "candidates": [
                    {"alpha": 0.001, "lr": 0.01, "num_epochs": 5, "score": 93.0, "diverged": None}
                ],
                "winner": 0,
                "best_score": 93.0,
                "pruning": {
                    "score": 92.5,
                    "kept": dict.fromkeys(sizes, claim),
                    "thresholds": dict.fromkeys(sizes, 0.25),
                },
                "num_rounds": 0,
                "score": 92.5,
                "test_score": scores[number],
                "new": dict.fromkeys(sizes, claim),
                "reused": dict.fromkeys(sizes, min(number, claim // 2)),
                "outputs": "0" * 64,
                "unchanged": True,
            }
            for number, name in enumerate(names)
        ],
        "scores": [scores[: number + 1] for number in range(num_tasks)],
        "capacity": {
            "sizes": dict(sizes),
            "usages": [asdict(usage) for usage in capacity.usages],
            "free": capacity.free,
        },
        "forecast": asdict(forecast(capacity, head="multi")),
        "certificates": {name: f"{number:064x}" for number, name in enumerate(names)},
        "stored_bytes": {"network": 168796, "heads": 0},
        "timings": {"seconds": 12.0, "tasks": [1.0] * num_tasks, "peak_bytes": 8 * 10**8},
        **others,
    }
    found: dict[str, Any] = json.loads(to_json(result))
    return found

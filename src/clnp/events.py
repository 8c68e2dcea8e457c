"""What is told of a run while it goes on, and written to its `events.jsonl`."""

from collections.abc import Mapping
from typing import Any

Event = Mapping[str, Any]
"""Plain data. `event` says of what kind it is: run, begin, resumed, epoch, candidate, pruning,
chosen, round, task, evaluation, full, stopped, failed or finished."""

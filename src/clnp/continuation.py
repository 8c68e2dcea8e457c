"""Where a run goes on, and which of its tasks are settled."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .baselines.methods import takes_more_tasks
from .checkpoint import attached
from .likeness import check_alike
from .runs import CHECKPOINT


def saved(place: Path, described: Mapping[str, Any], baseline: Any) -> tuple[dict[str, Any], int]:
    """What the checkpoint of a run has, and how many tasks are those that it knows.

    `described` is the experiment that is to go on with it. Tasks that have not ended may be others
    now, or left out: neural pruning gives up the one that it has begun. A baseline cannot, because
    all weights have moved; and joint training has begun them all.
    """
    state: dict[str, Any] = attached(place / CHECKPOINT)
    num_ended, is_open = len(state["done"]), state["progress"] is not None
    settled: int | None = num_ended
    if baseline is not None:
        settled = num_ended + is_open if takes_more_tasks(baseline) else None
    num_alike = check_alike(described, state["experiment"], place, at_least=settled)
    if is_open and num_alike == num_ended:
        state.update(progress=None, num_event_bytes=state["told"])
    return state, num_alike

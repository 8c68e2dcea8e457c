"""Where a run goes on, and which of its tasks are settled."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .baselines.methods import takes_more_tasks
from .checkpoint import attached
from .likeness import check_alike
from .runs import CHECKPOINT


@dataclass(frozen=True)
class Saved:
    """What the checkpoint of a run has, for an experiment that goes on with it.

    `num_alike` tasks are those that the run knows. The one that it had begun, or found no room for,
    may have been `exchanged`: then the state is that of a run which has not heard of it.
    """

    state: dict[str, Any]
    num_alike: int
    exchanged: bool


def saved(place: Path, described: Mapping[str, Any], baseline: Any) -> Saved:
    """Where the run at `place` goes on, by an experiment that is described so.

    Tasks that have not ended may be others now, or left out: neural pruning gives up the one that
    it has begun. A baseline cannot, because all weights have moved; and joint training has begun
    them all.
    """
    state: dict[str, Any] = attached(place / CHECKPOINT)
    num_ended, is_open = len(state["done"]), state["progress"] is not None
    settled: int | None = num_ended
    if baseline is not None:
        settled = num_ended + is_open if takes_more_tasks(baseline) else None
    num_alike = check_alike(described, state["experiment"], place, at_least=settled)
    exchanged = num_alike == num_ended and (is_open or state["full"] is not None)
    if exchanged:
        state.update(progress=None, full=None, num_event_bytes=state["told"])
    return Saved({**state, "experiment": described}, num_alike, exchanged)

"""Where a run goes on, and which of its tasks are settled."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .baselines.methods import takes_more_tasks
from .checkpoint import attached
from .errors import RunError
from .likeness import check_alike
from .runs import CHECKPOINT, RESULT, has_learnt, read_config


@dataclass(frozen=True)
class Continuation:
    """Where a run goes on: the state of its checkpoint, or None if it has none yet.

    `num_alike` tasks are those that the run knows. The one that it had begun, or found no room for,
    may have been `exchanged`: then the state is that of a run which has not heard of it.
    """

    state: dict[str, Any] | None
    num_alike: int = 0
    exchanged: bool = False


def continuation(place: Path, described: Mapping[str, Any], baseline: Any) -> Continuation:
    """Where the run at `place` goes on, by an experiment that is described so.

    Tasks that have not ended may be others now, or left out: neural pruning gives up the one that
    it has begun. A baseline cannot, because all weights have moved; and joint training has begun
    them all. A run that has learnt nothing is begun anew, whatever it was begun with.
    """
    takes_more = takes_more_tasks(baseline)
    if not (place / CHECKPOINT).exists():
        if (place / RESULT).exists():
            raise RunError(f"{place} has lost its {CHECKPOINT}; begin a new run")
        if has_learnt(place):
            known = read_config(place)
            check_alike(described, known, place, at_least=0 if takes_more else None)
        return Continuation(None)
    state: dict[str, Any] = attached(place / CHECKPOINT)
    num_ended, is_open = len(state["done"]), state["progress"] is not None
    settled: int | None = num_ended
    if baseline is not None:
        settled = num_ended + is_open if takes_more else None
    num_alike = check_alike(described, state["experiment"], place, at_least=settled)
    exchanged = num_alike == num_ended and (is_open or state["full"] is not None)
    if exchanged:
        state.update(progress=None, full=None, num_event_bytes=state["told"])
    return Continuation({**state, "experiment": described}, num_alike, exchanged)

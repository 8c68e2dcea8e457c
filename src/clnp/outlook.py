"""How many more tasks fit."""

from dataclasses import dataclass

from .ledger import Capacity

RECENT = 3
"""Tasks that the next ones are taken to be like."""


@dataclass(frozen=True)
class Forecast:
    """How many more tasks like the last ones fit, and the group that is full first.

    `num_tasks` is None where the last tasks claimed nothing, so that nothing sets a limit.
    """

    num_tasks: int | None
    bottleneck: str | None

    def __str__(self) -> str:
        if self.num_tasks is None:
            return "no limit in sight: the last tasks claimed no new neuron"
        if self.num_tasks == 0:
            return f"no further task like the last would fit; {self.bottleneck} is all but full"
        tasks = "1 more task" if self.num_tasks == 1 else f"{self.num_tasks} more tasks"
        return f"about {tasks} like the last would fit; {self.bottleneck} fills up first"


def forecast(capacity: Capacity) -> Forecast:
    """How many more tasks fit if each claims what the last three did, on average.

    The first task, which finds nothing to reuse, counts only while there is no other.
    """
    tasks = list(dict.fromkeys(usage.task for usage in capacity.usages))
    recent = (tasks[1:] or tasks)[-RECENT:]
    free = capacity.free
    room = {}
    for group in capacity.sizes:
        claimed = sum(capacity.of(task, group).new for task in recent)
        if claimed:
            room[group] = free[group] * len(recent) / claimed
    if not room:
        return Forecast(None, None)
    bottleneck = min(room, key=lambda group: room[group])
    return Forecast(int(room[bottleneck]), bottleneck)

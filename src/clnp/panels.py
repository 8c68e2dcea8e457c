"""The tasks and the layers of a result, in as many columns and lines as there are."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar

from .glyphs import Screen, cells, columns, stacked
from .outlook import Forecast
from .summary import floats, number

LEAST_TASKS = 10
"""Tasks that have a line each, however low the screen is."""
MOST_LAYERS = 6
"""Layers that have a bar each."""
OTHER_LINES = 28
"""Lines of a screenful that are not about one task."""
LAYERS_IN_TABLE = 3
"""Layers that have a column each."""
NAME = 12
"""Columns that the name of a task is to have."""
NARROW = 60
"""Columns that it takes to tell how many neurons there are beside a bar of them."""

Result = Mapping[str, Any]
Item = TypeVar("Item")


def measure(result: Result) -> str:
    """What the scores of the run are called."""
    objectives = {task["objective"] for task in result["tasks"]}
    return "test accuracy" if objectives == {"classification"} else "test score"


def tasks(result: Result, *, screen: Screen) -> list[str]:
    """A line for each task: its score when learnt and now, neurons new and reused, threshold."""
    groups = list(result["capacity"]["sizes"])
    now = floats(result["scores"][-1:])[0]
    front, hidden, back = ends(
        list(zip(result["tasks"], now, strict=True)), max(LEAST_TASKS, screen.height - OTHER_LINES)
    )
    names = [f"task, {measure(result).removeprefix('test ')}"]
    names += [record["task"] for record, _ in front]
    names += [f"... {len(hidden)} more, mean"] if hidden else []
    names += [record["task"] for record, _ in back]
    changed = any(record["unchanged"] is False for record in result["tasks"])
    for table in _tables(groups, changed=changed):
        lines = [table.head(screen), *(table.line(*each) for each in front)]
        if hidden:
            before = _mean([record["test_score"] for record, _ in hidden])
            blank = [""] * (len(lines[0]) - 3)
            lines.append(["", before, _mean([score for _, score in hidden]), *blank])
        lines += [table.line(*each) for each in back]
        space = screen.width - max(map(cells, columns(lines)))
        if space >= NAME:
            break
    for name, line in zip(names, lines, strict=True):
        line[0] = screen.short(name, max(space, NAME // 2))
    legend = "Neurons: new ones that the task claimed + those of earlier tasks that it reuses"
    return [*columns(lines), *(screen.wrapped(legend) if groups else [])]


def _tables(groups: Sequence[str], *, changed: bool) -> list["_TaskTable"]:
    """Tables from wide to narrow; that outputs have changed is told in all of them."""
    pruned = bool(groups)
    return [
        _TaskTable(groups if len(groups) <= LAYERS_IN_TABLE else [], groups, True, pruned),
        _TaskTable([], groups, True, pruned),
        _TaskTable([], groups, changed, False),
        _TaskTable([], [], changed, False),
    ]


def _mean(scores: Sequence[Any]) -> str:
    known = [float(score) for score in scores if score is not None]
    return number(fmean(known) if known else None)


@dataclass(frozen=True)
class _TaskTable:
    """The columns that there is room for: those of each of these `layers`, or one for them all."""

    layers: Sequence[str]
    total: Sequence[str]
    outputs: bool
    thresholds: bool

    def head(self, screen: Screen) -> list[str]:
        layers = [screen.short(group, 11) for group in self.layers]
        return [
            "",
            "learnt",
            "now",
            *(["outputs"] if self.outputs else []),
            *(layers or (["neurons"] if self.total else [])),
            *(["threshold"] if self.thresholds else []),
        ]

    def line(self, record: Mapping[str, Any], now: float | None) -> list[str]:
        same = {True: "same", False: "DIFFERENT", None: "-"}[record["unchanged"]]
        total = [_total(record, self.total)] if self.total else []
        return [
            "",
            number(record["test_score"]),
            number(now),
            *([same] if self.outputs else []),
            *(_claims(record, self.layers) or total),
            *([_threshold(record["pruning"]["thresholds"])] if self.thresholds else []),
        ]


def _claims(record: Mapping[str, Any], groups: Sequence[str]) -> list[str]:
    return [f"{record['new'][group]} + {_known(record['reused'][group])}" for group in groups]


def _total(record: Mapping[str, Any], groups: Sequence[str]) -> str:
    reused = [record["reused"][group] for group in groups]
    total = None if None in reused else sum(reused)
    return f"{sum(record['new'][group] for group in groups)} + {_known(total)}"


def _known(count: int | None) -> str:
    return "?" if count is None else str(count)


def _threshold(thresholds: Mapping[str, float]) -> str:
    """One for all layers, or from the lowest to the highest."""
    values = sorted({float(value) for value in thresholds.values()})
    if not values:
        return "-"
    ends = [values[0]] if len(values) == 1 else [values[0], values[-1]]
    return " to ".join("none" if value == -math.inf else f"{value:.3g}" for value in ends)


def ends(items: Sequence[Item], most: int) -> tuple[list[Item], list[Item], list[Item]]:
    """The first items, those in the middle that there are too many of, and the last ones."""
    if len(items) <= most:
        return list(items), [], []
    front = (most - 1) // 2
    back = len(items) - (most - 1 - front)
    return list(items[:front]), list(items[front:back]), list(items[back:])


def layers(result: Result, *, screen: Screen) -> list[str]:
    """A bar for each layer, stacked by task, with what is free and for how many tasks."""
    sizes, free = result["capacity"]["sizes"], result["capacity"]["free"]
    foretold = Forecast(**result["forecast"])
    names = [record["task"] for record in result["tasks"]]
    new = {(usage["task"], usage["group"]): usage["new"] for usage in result["capacity"]["usages"]}
    narrow = screen.width < NARROW

    def line(group: str) -> list[str]:
        tasks_left = foretold.room.get(group)
        room = "-" if tasks_left is None else f"{tasks_left:.1f}"
        share = f"{100 * free[group] / sizes[group]:.0f} %"
        name = screen.short(group, max(8, screen.width // 4))
        if narrow:
            return [name, share]
        return [name, f"{free[group]} of {sizes[group]}", share, room]

    front, hidden, back = ends(list(sizes), MOST_LAYERS)
    head = ["layer", "free"] if narrow else ["layer", "free", "", "more tasks"]
    gap = [[f"... {len(hidden)} more", *[""] * (len(head) - 1)]] if hidden else []
    told = columns([head, *map(line, front), *gap, *map(line, back)])
    left = max(map(cells, told))
    width = max(4, screen.width - left - 2)

    def bar(group: str) -> str:
        counts = [new[name, group] for name in names]
        return stacked(counts, sizes[group], width=width, glyphs=screen.glyphs)

    title = screen.short("neurons by task, then free", width)
    bars = [title, *map(bar, front), *["" for _ in gap], *map(bar, back)]
    return [
        f"{text}{' ' * (left - cells(text))}  {shown}".rstrip()
        for text, shown in zip(told, bars, strict=True)
    ]

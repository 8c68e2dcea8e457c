"""Bars, curves and tables made of characters, in as many columns as a terminal has."""

import math
import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any, TextIO, TypeVar

from clnp.core.forecast import Forecast

from .summary import floats, number


@dataclass(frozen=True)
class Glyphs:
    """The characters that bars and curves are made of.

    `owners` are those of a bar that is stacked by task: where there are but a few, they take turns,
    and otherwise each task has its own. `levels` go from low to high, `broken` stands for what is
    not a finite number.
    """

    owners: str
    in_turn: bool
    free: str
    done: str
    left: str
    levels: str
    broken: str
    ellipsis: str


BLOCKS = Glyphs("█▓▒", True, "·", "━", "─", "▁▂▃▄▅▆▇█", "!", "…")
ASCII = Glyphs(
    "123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    False,
    ".",
    "#",
    "-",
    "_.-~=+*#",
    "x",
    "...",
)


def glyphs_for(stream: TextIO) -> Glyphs:
    """Block characters, or plain ASCII where the stream cannot encode them."""
    try:
        "".join(str(part) for part in vars(BLOCKS).values()).encode(stream.encoding or "ascii")
    except (UnicodeError, LookupError):
        return ASCII
    return BLOCKS


def stacked(counts: Sequence[int], size: int, *, width: int, glyphs: Glyphs) -> str:
    """A bar of `size` neurons: those of each task in order, then the free ones.

    Every character is the owner of the neuron in the middle of its stretch.
    """
    ends = list(accumulate(counts))
    claiming = [place for place, count in enumerate(counts) if count]
    marks = {}
    for turn, place in enumerate(claiming):
        number = turn if glyphs.in_turn else place
        marks[place] = glyphs.owners[number % len(glyphs.owners)]
    bar = []
    for cell in range(width):
        neuron = (cell + 0.5) * size / width
        owner = next((place for place in claiming if neuron < ends[place]), None)
        bar.append(glyphs.free if owner is None else marks[owner])
    return "".join(bar)


def progress(fraction: float, *, width: int, glyphs: Glyphs) -> str:
    """A bar of what is done, and what is left; full only when all is done."""
    done = min(width, max(0, int(fraction * width)))
    return glyphs.done * done + glyphs.left * (width - done)


def sparkline(values: Sequence[float], *, width: int, glyphs: Glyphs) -> str:
    """A curve in one line, from its lowest value to its highest.

    Where there are more values than columns, a column is the mean of its values.
    """
    if len(values) > width:
        edges = [round(place * len(values) / width) for place in range(width + 1)]
        columns = [_mean(values[edges[i] : edges[i + 1]]) for i in range(width)]
    else:
        columns = list(values)
    known = [value for value in columns if math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    top = len(glyphs.levels) - 1
    # Half of each, so that no difference of two numbers overflows.
    reach = high / 2 - low / 2
    line = []
    for value in columns:
        if not math.isfinite(value):
            line.append(glyphs.broken)
            continue
        height = (value / 2 - low / 2) / reach if reach else 0.5
        line.append(glyphs.levels[round(height * top)])
    return "".join(line)


def _mean(values: Sequence[float]) -> float:
    return sum(value / len(values) for value in values)


def cells(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def plain(text: str) -> str:
    """The text in one line, without what would move a cursor or change a colour."""
    return "".join(c if c.isprintable() else "?" for c in text)


def shortened(text: str, width: int, *, glyphs: Glyphs) -> str:
    """The text in at most so many columns; what is left out is in the middle.

    Names of tasks and directories often differ at their ends only.
    """
    clean = plain(text)
    if cells(clean) <= width:
        return clean
    room = width - cells(glyphs.ellipsis)
    if room < 2:
        return _cut(clean, width)
    front = _cut(clean, room // 2)
    back = _cut(clean[::-1], room - cells(front))[::-1]
    return f"{front}{glyphs.ellipsis}{back}"


def _cut(text: str, width: int) -> str:
    found = ""
    for character in text:
        if cells(found + character) > width:
            break
        found += character
    return found


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, the first column to the left and the others to the right."""
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        parts = []
        for place, (text, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - cells(text))
            parts.append(text + space if place == 0 else space + text)
        lines.append("  ".join(parts).rstrip())
    return lines


@dataclass(frozen=True)
class Screen:
    """How many columns and lines there are to show something in, and what it is made of."""

    width: int = 80
    height: int = 40
    glyphs: Glyphs = BLOCKS

    def short(self, text: str, width: int) -> str:
        """The text in one line of at most so many columns."""
        return shortened(text, width, glyphs=self.glyphs)

    def wrapped(self, text: str, *, indent: int = 0) -> list[str]:
        """The text in lines of this width, all but the first indented.

        What has no space in it, a path for instance, stays whole.
        """
        lines: list[str] = []
        for word in plain(text).split():
            longer = f"{lines[-1]} {word}" if lines else word
            if not lines or cells(longer) <= self.width:
                lines[-1:] = [longer]
            else:
                lines.append(" " * indent + word)
        return lines


def screen_of(stream: TextIO) -> Screen:
    """The terminal that there is, or 80 columns of 40 lines; 40 columns at least, 120 at most."""
    width, height = shutil.get_terminal_size((80, 40))
    return Screen(min(max(width, 40), 120), height, glyphs_for(stream))


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
            before = _mean_score([record["test_score"] for record, _ in hidden])
            blank = [""] * (len(lines[0]) - 3)
            lines.append(["", before, _mean_score([score for _, score in hidden]), *blank])
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


def _mean_score(scores: Sequence[Any]) -> str:
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

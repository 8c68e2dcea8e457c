"""Tables, bars and curves of a run, in as many columns as a terminal has."""

import io
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from statistics import fmean
from textwrap import wrap
from typing import TextIO, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from clnp.palette import CLNP, MUTED, NEW
from clnp.records import RunResult, TaskRecord
from clnp.runs.status import condensed
from clnp.studies.tables import Table as Results
from clnp.text import clean

LEAST_TASKS = 10
"""Tasks that have a line each, however low the screen is."""
MOST_LAYERS = 6
"""Layers that have a bar each."""
OTHER_LINES = 28
"""Lines of a screen that are not about one task."""
LAYERS_IN_TABLE = 3
"""Layers that have a column each."""
LEAST_NAME = 12
"""Columns for the name of a task."""
NARROW = 60
"""Columns that a table of layers with all its numbers needs."""
WIDE = 120
"""Columns of a terminal, beyond which a table has a column for each layer if that fits."""
MOST_BAR = 80
"""Columns for the neurons of a layer."""
MOST_COLUMNS = 200
"""Columns of a terminal that are used."""
UNLIMITED = 10_000
"""Columns or lines of a screen that shows everything."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Screen:
    """The columns and lines of a terminal, whether it has more than ASCII, and styles."""

    width: int = 80
    height: int = 40
    unicode: bool = True
    styled: bool = False

    def short(self, text: object, width: int) -> str:
        """Return the text in one line of at most so many columns, shortened in the middle.

        Names of tasks and directories often differ at their ends only.
        """
        line, gap = clean(text), "…" if self.unicode else "..."
        if cell_len(line) <= width:
            return line
        room = width - len(gap)
        if room < 2:
            return set_cell_size(line, width).rstrip()
        front = set_cell_size(line, room // 2).rstrip()
        back = set_cell_size(line[::-1], room - cell_len(front)).rstrip()[::-1]
        return f"{front}{gap}{back}"

    def text(self, *parts: RenderableType) -> str:
        """Return the parts as plain text, one below the other; lines are wrapped and indented."""
        encoding = "utf-8" if self.unicode else "ascii"
        file = io.TextIOWrapper(io.BytesIO(), encoding, "backslashreplace", newline="\n")
        console = Console(
            file=file,
            width=self.width,
            color_system="truecolor" if self.styled else None,
            force_terminal=self.styled,
        )
        for part in parts:
            if isinstance(part, str):
                # Words stay whole: a path, for instance, can be copied.
                lines = wrap(
                    clean(part),
                    self.width,
                    subsequent_indent="  ",
                    break_long_words=False,
                    break_on_hyphens=False,
                )
                part = Text("\n".join(lines))
            console.print(part, crop=False, soft_wrap=isinstance(part, Text))
        file.seek(0)
        return "\n".join(line.rstrip() for line in file.read().rstrip().split("\n"))

    def page(self, parts: Iterable[Sequence[RenderableType]]) -> str:
        """Return parts as text, with an empty line between them; empty parts are left out."""
        return "\n\n".join(self.text(*lines) for lines in parts if lines)

    def bar(self, fraction: float, colour: str = CLNP) -> ProgressBar:
        """Return a progress bar, in a quarter of the screen."""
        width = min(self.width, WIDE) // 4
        return ProgressBar(1.0, fraction, width=width, complete_style=colour, finished_style=colour)

    def curve(self, values: Sequence[float], width: int) -> str:
        """Return a sparkline from the lowest to the highest value, in at most so many columns."""
        levels, broken = ("▁▂▃▄▅▆▇█", "!") if self.unicode else ("_.-~=+*#", "x")
        shown = condensed(values, width)
        known = [value for value in shown if math.isfinite(value)]
        low, high = (min(known), max(known)) if known else (0.0, 0.0)
        # Half of each, so that no difference of two numbers overflows.
        reach = high / 2 - low / 2

        def level(value: float) -> str:
            height = (value / 2 - low / 2) / reach if reach else 0.5
            return levels[round(height * (len(levels) - 1))]

        return "".join(level(value) if math.isfinite(value) else broken for value in shown)

    def stacked(self, counts: Sequence[int], size: int, width: int) -> Text:
        """Return a bar of `size` neurons: those of each task in order, then the free ones.

        Every character stands for the neuron in the middle of its stretch. The last task has the
        colour of new neurons.
        """
        owners, free = self._signs
        found = [index for index, count in enumerate(counts) if count]
        ends = list(accumulate(counts[index] for index in found))
        bar = Text()
        for column in range(width):
            neuron = (column + 0.5) * size / width
            owner = next((i for i, end in enumerate(ends) if neuron < end), None)
            if owner is None:
                bar.append(free)
            else:
                last = found[owner] == len(counts) - 1
                bar.append(owners[owner % len(owners)], style=NEW if last else MUTED)
        return bar

    @property
    def _signs(self) -> tuple[str, str]:
        """The signs of tasks, in turn, and that of free neurons."""
        return ("█▓▒", "·") if self.unicode else ("123456789", ".")

    def legend(self) -> Text:
        """Return what the signs and colours of a bar of neurons mean."""
        owners, free = self._signs
        shown = owners[:3]
        if not self.styled:
            return Text(f"{shown} neurons of a task, in turn   {free} free")
        earlier, last = Text(shown, MUTED), Text(owners[0], NEW)
        return Text.assemble(
            earlier, " earlier tasks, in turn   ", last, f" last task   {free} free"
        )


def screen_of(stream: TextIO) -> Screen:
    """Return the screen of a terminal; a file has 80 columns of 40 lines, and no styles."""
    width, height = shutil.get_terminal_size((80, 40))
    encoding = (stream.encoding or "ascii").lower()
    console = Console(file=stream)
    styled = console.color_system is not None and not console.no_color and stream.isatty()
    return Screen(min(max(width, 40), MOST_COLUMNS), height, encoding.startswith("utf"), styled)


def plain_screen(stream: TextIO) -> Screen:
    """Return the screen of a terminal without its styles."""
    return replace(screen_of(stream), styled=False)


def table(head: Sequence[str], rows: Iterable[Sequence[RenderableType]], align: str = "l") -> Table:
    """Return a table; `align` has an l or r for each column, and others are aligned right."""
    made = Table(box=None, pad_edge=False, padding=(0, 1), show_header=any(head), header_style="")
    for index, title in enumerate(head):
        left = align[index : index + 1] == "l"
        made.add_column(_cell(title), justify="left" if left else "right", no_wrap=True)
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def _cell(cell: RenderableType) -> RenderableType:
    return Text(clean(cell)) if isinstance(cell, str) and cell else cell


def number(score: float | None) -> str:
    """Return a score with two decimals."""
    return "-" if score is None else f"{score:.2f}"


def measure(result: RunResult) -> str:
    """Return the name of the scores of a run."""
    objectives = {task.objective for task in result.tasks}
    return "test accuracy" if objectives == {"classification"} else "test score"


def ends(items: Sequence[Item], most: int) -> tuple[list[Item], list[Item], list[Item]]:
    """Return the first items, those in the middle that are too many, and the last ones."""
    if len(items) <= most:
        return list(items), [], []
    front = (most - 1) // 2
    back = len(items) - (most - 1 - front)
    return list(items[:front]), list(items[front:back]), list(items[back:])


def tasks(result: RunResult, screen: Screen) -> Table:
    """Return a row for each task: score when it ended and now, its neurons, its threshold."""
    groups = list(result.capacity.sizes)
    last = result.scores[-1] if result.scores else ()
    # A damaged file may lack scores.
    pairs = list(zip(result.tasks, [*last, *[None] * len(result.tasks)], strict=False))
    front, hidden, back = ends(pairs, max(LEAST_TASKS, screen.height - OTHER_LINES))
    names = [record.task for record, _ in front]
    names += [f"... {len(hidden)} more, mean"] if hidden else []
    names += [record.task for record, _ in back]
    same = all(record.unchanged for record in result.tasks)  # The headline says so.
    for columns in _columns(groups, each=screen.width > WIDE, same=same):
        head = ["learned", "now", *columns]
        rows = [
            [number(record.test_score), number(now), *(cell(record) for cell in columns.values())]
            for record, now in [*front, *back]
        ]
        if hidden:
            means = [_mean(r.test_score for r, _ in hidden), _mean(score for _, score in hidden)]
            rows.insert(len(front), [*means, *[""] * len(columns)])
        room = screen.width - _width([head, *rows]) - 2
        if room >= LEAST_NAME:
            break
    title = screen.short(f"task, {measure(result).removeprefix('test ')}", room)
    shown = [[screen.short(name, room), *row] for name, row in zip(names, rows, strict=True)]
    return table([title, *head], shown)


def _width(rows: Sequence[Sequence[str]]) -> int:
    """Return how many columns of the terminal a table of these rows has."""
    return sum(max(map(cell_len, column)) + 2 for column in zip(*rows, strict=True)) - 2


Columns = dict[str, Callable[[TaskRecord], str]]


def _columns(groups: Sequence[str], *, each: bool, same: bool) -> Iterator[Columns]:
    """Yield what a table has of each task by title, from the widest choice to the narrowest."""
    words = {True: "same", False: "DIFFERENT", None: "-"}
    outputs: Columns = {} if same else {"outputs": lambda record: words[record.unchanged]}
    if groups:
        layers: Columns = {group: partial(_claim, groups=[group]) for group in groups}
        neurons: Columns = {"neurons": partial(_claim, groups=groups)}
        threshold: Columns = {"threshold": lambda record: _range(record.pruning.thresholds)}
        if each or len(groups) <= LAYERS_IN_TABLE:
            yield {**outputs, **layers, **threshold}
        # A sum over all layers is narrower, and the last columns matter least.
        yield {**outputs, **neurons, **threshold}
        yield {**outputs, **neurons}
    yield outputs
    yield {}


def _claim(record: TaskRecord, groups: Sequence[str]) -> str:
    """Return the neurons that a task claimed, and those that it reuses."""
    reused = [record.reused.get(group) for group in groups]
    known = [count for count in reused if count is not None]
    total = str(sum(known)) if len(known) == len(reused) else "?"
    return f"{sum(record.new.get(group, 0) for group in groups)} + {total}"


def _range(thresholds: Mapping[str, float]) -> str:
    """Return the threshold of all layers, or the lowest and the highest one."""
    shown = ["none" if v == -math.inf else f"{v:.3g}" for v in sorted(set(thresholds.values()))]
    return " to ".join(dict.fromkeys([*shown[:1], *shown[-1:]])) or "-"


def _mean(scores: Iterable[float | None]) -> str:
    known = [score for score in scores if score is not None]
    return number(fmean(known) if known else None)


def layers(result: RunResult, screen: Screen) -> Table:
    """Return a row for each layer: free neurons, room for tasks, and a bar stacked by task."""
    sizes, free = result.capacity.sizes, result.capacity.free
    narrow = screen.width < NARROW
    room = result.forecast.room if result.forecast else {}
    new: dict[str, list[int]] = {group: [] for group in sizes}
    for usage in result.capacity.usages:
        new.setdefault(usage.group, []).append(usage.new)

    def row(group: str) -> list[str]:
        left = free.get(group, 0)
        share = f"{100 * left / sizes[group]:.0f} %"
        name = screen.short(group, max(8, screen.width // 4))
        if narrow:
            return [name, share]
        tasks_left = room.get(group)
        more = "-" if tasks_left is None else f"{int(tasks_left)}"
        return [name, f"{left} of {sizes[group]}", share, more]

    head = ["layer", "free", *([] if narrow else ["", "more tasks"])]
    return stacked_bars([*head, "neurons by task, then free"], sizes, new, row, screen)


def blocks(made: Results, screen: Screen) -> list[RenderableType]:
    """Return a table of results with the best values in bold.

    Columns that do not fit the screen are in further tables, each with the first column again.
    """
    most = max(LEAST_NAME, screen.width // 3)
    cells = [[screen.short(cell, most) for cell in row] for row in made.texts()]
    columns = [list(column) for column in zip(made.header, *cells, strict=True)]
    names, *others = columns
    found: list[RenderableType] = []
    while others:
        num, width = 0, max(map(cell_len, names))
        while num < len(others):
            width += 2 + max(map(cell_len, others[num]))
            if width > screen.width and num:
                break
            num += 1
        first = len(columns) - len(others)
        rows: list[list[RenderableType]] = [[name] for name in names[1:]]
        for index, column in enumerate(others[:num], first):
            for row, cell in enumerate(column[1:]):
                is_best = (row, index) in made.best
                rows[row].append(Text(cell, style="bold") if is_best else cell)
        found.append(table([column[0] for column in [names, *others[:num]]], rows, "l"))
        others = others[num:]
    return found


def stacked_bars(
    head: Sequence[str],
    sizes: Mapping[str, int],
    new: Mapping[str, Sequence[int]],
    row: Callable[[str], list[str]],
    screen: Screen,
) -> Table:
    """Return a table with the row of each group, and a bar of its neurons in the last column."""
    most = len(sizes) if screen.height == UNLIMITED else MOST_LAYERS
    front, hidden, back = ends(list(sizes), most)
    rows = [row(group) for group in [*front, *back]]
    gap = [[f"... {len(hidden)} more", *[""] * (len(head) - 2)]] if hidden else []
    width = max(4, min(MOST_BAR, screen.width - _width([head[:-1], *rows, *gap]) - 2))
    shown: list[list[RenderableType]] = [
        [*cells, screen.stacked(new.get(group, ()), sizes[group], width)]
        for group, cells in zip([*front, *back], rows, strict=True)
    ]
    shown[len(front) : len(front)] = [[*cells, ""] for cells in gap]
    align = "l" + "r" * (len(head) - 2) + "l"
    title = screen.short(head[-1], width) if head[-1] else ""
    return table([*head[:-1], title], shown, align)

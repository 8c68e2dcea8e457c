"""A figure with all that its reader needs beside it: words, numbers, and a name for its files."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clnp.text import all_shortened, clean, shortened, without_common_start

from .collection import Collection, Member
from .measures import Rounded
from .style import CHARACTER, WIDTH, categories

MOST_NAMES = 20
"""Tasks that are named along an axis; more of them are numbered."""

Cell = str | float | int | Rounded | None


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers under a header; the first cell of a row names it."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Picture:
    """A figure; `description` is for who cannot see it, `table` holds its numbers.

    `data` holds more numbers than a page can show, for a file; otherwise it is the table.
    """

    name: str
    title: str
    caption: str
    description: str
    figure: Figure
    table: Table
    data: Table | None = field(default=None)


def new_figure(height: float, *, width: float = WIDTH) -> Figure:
    """An empty figure, as wide as the text of a paper; its parts make room for one another."""
    return Figure(figsize=(width, height), layout="constrained")


def member_colours(collection: Collection) -> dict[str, str]:
    """The colour of each member by its label, the same in every figure."""
    labels = [member.label for member in collection.members]
    return dict(zip(labels, categories(len(labels)), strict=True))


def add_legend(
    figure: Figure, handles: Sequence[Artist], *, solid: bool = False, dashed: bool = False
) -> None:
    """Say above the figure what its marks mean, in as many columns as there is room for."""
    # Characters and sample: a small one for a patch, longer for a line, and still for its dashes.
    sample, length = (20, 1.0) if solid else (45, 3.4) if dashed else (30, 1.6)
    widths = [len(str(handle.get_label())) * CHARACTER + sample for handle in handles]
    room = 72 * figure.get_figwidth() - 10
    columns = next(n for n in range(len(widths), 0, -1) if n == 1 or _needed(widths, n) <= room)
    figure.legend(
        handles=list(handles),
        loc="outside upper left",
        ncols=columns,
        handlelength=length,
        columnspacing=1.2,
    )


def _needed(widths: Sequence[float], columns: int) -> float:
    """The width of a legend in so many columns, the first ones an entry longer than the rest."""
    rows, longer = divmod(len(widths), columns)
    starts = [place * rows + min(place, longer) for place in range(columns + 1)]
    return sum(max(widths[start:end]) for start, end in pairwise(starts))


def name_tasks(axes: Axes, names: Sequence[str], *, width: float = WIDTH) -> None:
    """Write the names of tasks 1, 2, ... along the axis, or their numbers where they are many."""
    start, rest = without_common_start(names)
    if len(names) > MOST_NAMES:
        number_tasks(axes, len(names))
        return
    room = 72 * (width - 0.9) / max(len(names), 1) - 4
    labels = all_shortened(rest, 24)
    upright = max(map(len, labels)) * CHARACTER <= room
    if not upright:
        labels = all_shortened(rest, 18)
    axes.set_xticks(range(1, len(names) + 1), labels)
    if not upright:
        axes.tick_params(axis="x", labelrotation=35, pad=1)
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    of_all = f": {shortened(start, 60)} …" if start else ""
    axes.set_xlabel(f"task, in the order learnt{of_all}")


def number_tasks(axes: Axes, num: int) -> None:
    """Write numbers of tasks along the axis, as many as there is room for."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 500, 10**9) if num / s <= 14)
    places = [1, *range(step, num + 1, step)] if step > 1 else list(range(1, num + 1))
    axes.set_xticks(sorted(set(places)))
    axes.set_xlabel("task, in the order learnt")


def fit_scores(
    axes: Axes, means: Sequence[float], bounds: Sequence[float] = (), *, percent: bool
) -> None:
    """Show all means and bounds with some room around them; nothing is beyond 100 percent.

    A bound, a mean plus its deviation, may be; that is not shown.
    """
    known = [value for value in means if math.isfinite(value)]
    ends = [*known, *(value for value in bounds if math.isfinite(value))]
    if not known:
        return
    low, high = min(ends), max(ends)
    whole = percent and max(known) <= 100
    if whole:
        high = min(high, 100.0)
    room = max(0.08 * (high - low), 0.5 if percent else 0.02 * max(abs(low), abs(high), 0.1))
    axes.set_ylim(low - room, min(high + room, 100 + 0.3 * room) if whole else high + room)


def finite(values: Sequence[Any]) -> list[float]:
    """The values with `nan`, which is not drawn, in the place of what is no number."""
    numbers = [float("nan") if value is None else float(value) for value in values]
    return [n if abs(n) != float("inf") else float("nan") for n in numbers]


def counted(num: int, thing: str) -> str:
    """`1 task`, `2 tasks`."""
    return f"{num} {thing}" if num == 1 else f"{num} {thing}s"


def seeds_of(members: Sequence[Member]) -> str:
    """`3 seeds`, `1 to 3 seeds` where some members have fewer; empty where each has one."""
    nums = sorted({len(member.runs) for member in members})
    if nums[-1] == 1:
        return ""
    return f"{nums[-1]} seeds" if len(nums) == 1 else f"{nums[0]} to {nums[-1]} seeds"


def in_words(names: Sequence[str], most: int = 6) -> str:
    """The names with commas between them, the last ones left out where they are many."""
    shown = [shortened(clean(name), 40) for name in names[:most]]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shown) + more

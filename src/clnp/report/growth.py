"""The figure of growth: how the layers fill up, task by task."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from clnp.text import all_shortened, clean, shortened

from .collection import Collection, Member
from .measures import Spread, claimed_shares, over_runs, rounded, used_share
from .picture import (
    Cell,
    Picture,
    Table,
    add_legend,
    counted,
    finite,
    in_words,
    member_colours,
    new_figure,
    number_tasks,
    seeds_of,
)
from .style import INK, MARKERS, apart, in_order

MOST_PANELS = 12
"""Layers that have a panel of their own where several runs are compared."""


def draw_growth(collection: Collection) -> Picture | None:
    """The claimed percentage of each group against the number of tasks; None without neurons."""
    members = collection.with_neurons
    if not members:
        return None
    num_tasks = max(member.num_tasks for member in members)
    groups = list(dict.fromkeys(g for m in members for g in m.groups))
    if len(members) == 1:
        figure = new_figure(min(max(2.5, 0.16 * len(groups) + 0.8), 5))
        axes = figure.subplots()
        lines = {g: over_runs([used_share(run, g) for run in members[0].runs]) for g in groups}
        _draw_lines(axes, lines, in_order(len(groups)), marked=num_tasks <= 25)
        _label_ends(axes, lines, in_order(len(groups)), num_tasks, height=figure.get_figheight())
        number_tasks(axes, num_tasks)
        axes.set_xlabel("tasks learnt")
        axes.set_ylabel("claimed neurons, %")
    else:
        colours = [member_colours(collection)[member.label] for member in members]
        figure = _draw_growth_by_group(members, groups[:MOST_PANELS], num_tasks, colours=colours)
    full = 100.0 if _fullest(members) > 60 else max(5.0, 1.25 * _fullest(members))
    for axes in figure.axes:
        axes.set_ylim(0, full)
        axes.set_xlim(0, num_tasks)
    ends = [
        f"{clean(m.label) + ': ' if len(members) > 1 else ''}{clean(g)} {100 - f:.0f} %"
        for m in members
        for g, f in ((g, 100 - sum(claimed_shares(m, g))) for g in m.groups)
    ]
    seeds = seeds_of(members)
    bands = f" Bands are standard deviations over {seeds}." if seeds else ""
    hidden = len(groups) - MOST_PANELS if len(members) > 1 else 0
    more = f" {counted(hidden, 'more layer')} in the table." if hidden > 0 else ""
    return Picture(
        "growth",
        "How the layers fill up",
        "Percentage of each layer's neurons that are claimed after each task. A line that flattens "
        f"is a layer whose neurons later tasks reuse.{bands}{more}",
        f"Claimed after {counted(num_tasks, 'task')}: {in_words(ends, 24)}.",
        figure,
        _table_of_growth(members, num_tasks),
    )


def _fullest(members: Sequence[Member]) -> float:
    return max(sum(claimed_shares(member, g)) for member in members for g in member.groups)


def _draw_lines(
    axes: Axes,
    lines: Mapping[str, Sequence[Spread | None]],
    colours: Sequence[str],
    *,
    marked: bool,
) -> None:
    for place, line in enumerate(lines.values()):
        y = finite([s and s.mean for s in line])
        errors = [0.0 if s is None else s.deviation for s in line]
        x = range(len(y))
        if not y:
            continue  # Its network has no such layer.
        if any(errors):
            low = [a - b for a, b in zip(y, errors, strict=True)]
            high = [a + b for a, b in zip(y, errors, strict=True)]
            axes.fill_between(x, low, high, color=colours[place], alpha=0.18, lw=0)
        mark = MARKERS[place % len(MARKERS)] if marked else ""
        axes.plot(x, y, color=colours[place], marker=mark, ms=3, clip_on=False)


def _label_ends(
    axes: Axes,
    lines: Mapping[str, Sequence[Spread | None]],
    colours: Sequence[str],
    num_tasks: int,
    *,
    height: float,
) -> None:
    """Write the name of each line beside its end, moved apart where ends are near one another."""
    fullest = max(s.mean for line in lines.values() for s in line if s)
    top = 100.0 if fullest > 60 else max(5.0, 1.25 * fullest)
    gap = top * 9.5 / (72 * (height - 0.6))
    ends = [next((s.mean for s in reversed(line) if s), 0.0) for line in lines.values()]
    placed = apart(ends, gap, low=0.0, high=max(top, gap * (len(ends) - 1)))
    names = all_shortened(list(lines), 24)
    for name, colour, end, y in zip(names, colours, ends, placed, strict=True):
        axes.annotate(
            f"{name}  {end:.0f} %",
            (num_tasks, end),
            xytext=(1.035, y / top),
            textcoords="axes fraction",
            size=7,
            color=INK,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "lw": 0.7,
                "shrinkA": 1,
                "relpos": (0.0, 0.5),
                "shrinkB": 3,
            },
        )


def _draw_growth_by_group(
    members: Sequence[Member], groups: Sequence[str], num_tasks: int, *, colours: Sequence[str]
) -> Figure:
    """A panel for each group, a line for each member."""
    columns = min(len(groups), 3)
    rows = math.ceil(len(groups) / columns)
    figure = new_figure(1.55 * rows + 0.75)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    cells = list(grid.flat)
    for axes, group in zip(cells, groups, strict=False):
        lines = {m.label: over_runs([used_share(run, group) for run in m.runs]) for m in members}
        _draw_lines(axes, lines, colours, marked=num_tasks <= 25)
        axes.set_title(shortened(clean(group), 26))
        number_tasks(axes, num_tasks)
        axes.set_xlabel("")
    for axes in cells[len(groups) :]:
        axes.remove()
    figure.supxlabel("tasks learnt")
    figure.supylabel("claimed neurons, %")
    handles = [
        Patch(color=c, label=shortened(clean(m.label), 30))
        for c, m in zip(colours, members, strict=True)
    ]
    add_legend(figure, handles, solid=True)
    return figure


def _table_of_growth(members: Sequence[Member], num_tasks: int) -> Table:
    several = len(members) > 1
    first = ("run", "layer") if several else ("layer",)
    rows: list[tuple[Cell, ...]] = []
    for member in members:
        for group in member.groups:
            line = over_runs([used_share(run, group) for run in member.runs])
            cells = [rounded(s, 1) for s in line]
            head: list[Cell] = [clean(member.label)] if several else []
            rows.append((*head, clean(group), *cells, *[None] * (num_tasks + 1 - len(cells))))
    after = [f"after {counted(k, 'task')}, %" for k in range(num_tasks + 1)]
    return Table((*first, *after), tuple(rows))

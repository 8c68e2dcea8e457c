"""Figures of neurons: who claimed them, how the layers fill up, what later tasks reuse."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .collection import Collection, Member
from .labels import all_shortened, clean, shortened, without_common_start
from .measures import Spread, over_runs, spread_of, used_share
from .picture import (
    Cell,
    Picture,
    Table,
    add_legend,
    counted,
    finite,
    in_words,
    new_figure,
    number_tasks,
)
from .style import (
    INK,
    LINE,
    MARKERS,
    MUTED,
    PAPER,
    SOFT,
    apart,
    categories,
    in_order,
    on,
)

MOST_MEMBERS = 6
MOST_PANELS = 12


def draw_usage(collection: Collection) -> Picture | None:
    """One bar for each group, in segments by task, and the free rest; None without neurons."""
    members = collection.with_neurons[:MOST_MEMBERS]
    if not members:
        return None
    num_tasks = max(member.num_tasks for member in members)
    bar = 0.3 if len(collection.groups) <= 6 else 0.22
    heights = [bar * len(_groups(m)) + 0.3 for m in members]
    figure = new_figure(sum(heights) + 0.7)
    grid = figure.subplots(
        len(members), 1, squeeze=False, sharex=True, gridspec_kw={"height_ratios": heights}
    )
    colours = in_order(num_tasks)
    for axes, member in zip(grid.flat, members, strict=True):
        _draw_bars(axes, member, colours)
        if len(members) > 1:
            axes.set_title(shortened(clean(member.label), 60))
    for axes in grid.flat[:-1]:
        axes.tick_params(axis="x", length=0)
    grid.flat[-1].set_xlabel("neurons of the layer, %")
    _add_task_key(figure, list(grid.flat), collection.names[:num_tasks], colours)
    return Picture(
        "capacity",
        "Capacity by the task that claimed it",
        "All neurons of each layer: the ones that each task claimed, in the order of the tasks, "
        f"and the free rest.{_averaged(members)}{_left_out(collection)}",
        "; ".join(_describe_bars(member, several=len(members) > 1) for member in members) + ".",
        figure,
        _table_of_bars(collection.with_neurons, collection.names[:num_tasks]),
    )


def _groups(member: Member) -> list[str]:
    return list(member.longest.sizes)


def _averaged(members: Sequence[Member]) -> str:
    most = max(len(member.runs) for member in members)
    return f" Means over {most} seeds." if most > 1 else ""


def _left_out(collection: Collection) -> str:
    num = len(collection.with_neurons) - MOST_MEMBERS
    return f" {num} more are in the table." if num > 0 else ""


def _claimed(member: Member, group: str) -> list[float]:
    """The percentage of the group that each task claimed, over the runs."""
    used = [s.mean if s else 0.0 for s in over_runs([used_share(r, group) for r in member.runs])]
    return [max(b - a, 0.0) for a, b in pairwise(used)]


def _draw_bars(axes: Axes, member: Member, colours: Sequence[str]) -> None:
    groups = _groups(member)
    for row, group in enumerate(groups):
        left = 0.0
        for place, share in enumerate(_claimed(member, group)):
            axes.barh(
                row,
                share,
                left=left,
                height=0.74,
                color=colours[place],
                edgecolor=PAPER,
                # Borders would take up most of a narrow segment.
                lw=0.4 if share > 1.2 else 0.1,
            )
            label = str(place + 1)
            if share > 1.3 * len(label):
                x = left + share / 2
                axes.text(
                    x,
                    row,
                    label,
                    size=6,
                    color=on(colours[place]),
                    ha="center",
                    va="center_baseline",
                )
            left += share
        rest = max(100 - left, 0.0)
        axes.barh(row, rest, left=left, height=0.74, color=SOFT, edgecolor=LINE, lw=0.4)
        if rest > 9:
            axes.text(
                left + rest / 2,
                row,
                f"{rest:.0f} % free",
                size=6.5,
                color=MUTED,
                ha="center",
                va="center_baseline",
            )
    sizes = member.longest.sizes
    names = all_shortened(groups, 26)
    axes.set_yticks(
        range(len(groups)), [f"{n} ({sizes[g]})" for n, g in zip(names, groups, strict=True)]
    )
    axes.set_ylim(len(groups) - 0.45, -0.55)
    axes.set_xlim(0, 100)
    axes.grid(False)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "bottom"]].set_visible(False)


def _add_task_key(
    figure: Figure, all_axes: list[Axes], names: Sequence[str], colours: Sequence[str]
) -> None:
    """A legend while tasks are few; a scale where they are many."""
    if len(names) <= 12:
        start, rest = without_common_start(names)
        short = all_shortened(rest, 22)
        if rest == [str(number) for number in range(1, len(names) + 1)]:
            labels = [f"{start} {short[0]}", *short[1:]]
        else:
            labels = [f"{number}: {name}" for number, name in enumerate(short, 1)]
        handles = [Patch(color=c, label=n) for c, n in zip(colours, labels, strict=True)]
        handles.append(Patch(facecolor=SOFT, edgecolor=LINE, label="free"))
        add_legend(figure, handles, solid=True)
        return
    edges = [place + 0.5 for place in range(len(names) + 1)]
    scale = ScalarMappable(BoundaryNorm(edges, len(names)), ListedColormap(list(colours)))
    bar = figure.colorbar(
        scale,
        ax=all_axes,
        location="top",
        aspect=60,
        shrink=0.6,
        anchor=(0.0, 0.0),
        pad=0.02,
    )
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 1000) if len(names) / s <= 10)
    bar.set_ticks(sorted({1, *range(step, len(names) + 1, step)}))
    bar.set_label("task that claimed them")
    bar.outline.set_linewidth(0)
    bar.minorticks_off()
    bar.ax.tick_params(length=0)


def _describe_bars(member: Member, *, several: bool) -> str:
    free = {g: 100 - sum(_claimed(member, g)) for g in _groups(member)}
    parts = [f"{clean(group)} {share:.0f} % free" for group, share in free.items()]
    who = f"{clean(member.label)}: " if several else ""
    return f"{who}after {counted(member.num_tasks, 'task')}, {in_words(parts, 20)}"


def _table_of_bars(members: Sequence[Member], names: Sequence[str]) -> Table:
    several = len(members) > 1
    first = ["run", "layer"] if several else ["layer"]
    rows: list[tuple[Cell, ...]] = []
    for member in members:
        for group in _groups(member):
            new = _new(member, group)
            size = member.longest.sizes[group]
            free = size - sum(s.mean for s in new if s)
            cells = [_neurons(s) for s in new] + [None] * (len(names) - len(new))
            head: list[Cell] = [clean(member.label)] if several else []
            rows.append(
                (*head, clean(group), size, *cells, f"{free:g}", f"{100 * free / size:.1f}")
            )
    return Table((*first, "neurons", *map(clean, names), "free", "free, %"), tuple(rows))


def _new(member: Member, group: str) -> list[Spread | None]:
    return [
        spread_of(task.new.get(group) for task in member.task(place) if task.learnt)
        for place in range(member.num_tasks)
    ]


def _neurons(spread: Spread | None) -> str | None:
    """A count over several runs: as it is, or with a digit after the point where it is a mean."""
    if spread is None:
        return None
    return spread.text(0 if spread.num == 1 else 1)


def draw_growth(collection: Collection) -> Picture | None:
    """The claimed percentage of each group against the number of tasks; None without neurons."""
    members = collection.with_neurons
    if not members:
        return None
    num_tasks = max(member.num_tasks for member in members)
    groups = list(dict.fromkeys(g for m in members for g in _groups(m)))
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
        figure = _draw_growth_by_group(members, groups[:MOST_PANELS], num_tasks)
    full = 100.0 if _fullest(members) > 60 else max(5.0, 1.25 * _fullest(members))
    for axes in figure.axes:
        axes.set_ylim(0, full)
        axes.set_xlim(0, num_tasks)
    ends = [
        f"{clean(m.label) + ': ' if len(members) > 1 else ''}{clean(g)} {100 - f:.0f} %"
        for m in members
        for g, f in ((g, 100 - sum(_claimed(m, g))) for g in _groups(m))
    ]
    seeds = max(len(member.runs) for member in members)
    bands = f" Bands are standard deviations over {seeds} seeds." if seeds > 1 else ""
    return Picture(
        "growth",
        "How the layers fill up",
        "Percentage of each layer's neurons that are claimed after each task. A line that flattens "
        f"is a layer whose neurons later tasks reuse.{bands}",
        f"Claimed after {counted(num_tasks, 'task')}: {in_words(ends, 24)}.",
        figure,
        _table_of_growth(members, num_tasks),
    )


def _fullest(members: Sequence[Member]) -> float:
    return max(sum(_claimed(member, g)) for member in members for g in _groups(member))


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
    members: Sequence[Member], groups: Sequence[str], num_tasks: int
) -> Figure:
    """A panel for each group, a line for each member."""
    columns = min(len(groups), 3)
    rows = math.ceil(len(groups) / columns)
    figure = new_figure(1.55 * rows + 0.75)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    cells = list(grid.flat)
    colours = categories(len(members))
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
        for group in _groups(member):
            line = over_runs([used_share(run, group) for run in member.runs])
            cells = [s.text(1) if s else None for s in line]
            head: list[Cell] = [clean(member.label)] if several else []
            rows.append((*head, clean(group), *cells, *[None] * (num_tasks + 1 - len(cells))))
    after = [f"after {counted(k, 'task')}, %" for k in range(num_tasks + 1)]
    return Table((*first, *after), tuple(rows))

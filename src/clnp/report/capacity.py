"""Figures of capacity: who claimed the neurons of each layer, and which are reused."""

import math
from collections.abc import Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from clnp.text import all_shortened, clean, shortened, without_common_start

from . import draw
from .collection import Collection, Member
from .draw import Cell, Picture, Table
from .measures import (
    Spread,
    claimed_shares,
    counted,
    over_runs,
    reused_share,
    spread_of,
    used_share,
)

MOST_MEMBERS = 6
"""Members with bars of their own."""
MOST_LAYERS = 40
"""Layers with a panel of their own."""
NEW, REUSED, UNUSED = draw.CATEGORIES[1], draw.CATEGORIES[0], "#b9c3cc"


def draw_capacity(collection: Collection) -> Picture | None:
    """Draw a bar for each layer, in segments by task, and the free rest; None without neurons."""
    members = collection.with_neurons[:MOST_MEMBERS]
    if not members:
        return None
    names = collection.names[: max(member.num_tasks for member in members)]
    bar = 0.3 if max(len(member.sizes) for member in members) <= 6 else 0.22
    heights = [bar * len(m.sizes) + 0.3 for m in members]
    figure = draw.new_figure(sum(heights) + 0.7)
    grid = figure.subplots(len(members), 1, squeeze=False, sharex=True, height_ratios=heights)
    colours = draw.in_order(len(names))
    for axes, member in zip(grid.flat, members, strict=True):
        _draw_bars(axes, member, colours)
        if len(members) > 1:
            axes.set_title(shortened(member.label, 60))
    for axes in grid.flat[:-1]:
        axes.tick_params(axis="x", length=0)
    grid.flat[-1].set_xlabel("neurons of the layer, %")
    _add_task_key(figure, list(grid.flat), names, colours)
    num_left = len(collection.with_neurons) - len(members)
    more = f" {num_left} more are in the table." if num_left else ""
    return Picture(
        "capacity",
        "Capacity by task",
        "The neurons of each layer, by the task that claimed them, in the order of the tasks, and "
        f"the free rest.{draw.averaged(members)}{more}",
        "; ".join(_describe_bars(member, members) for member in members) + ".",
        figure,
        _table_of_bars(collection.with_neurons, names),
    )


def _draw_bars(axes: Axes, member: Member, colours: Sequence[str]) -> None:
    groups = list(member.sizes)
    for row, group in enumerate(groups):
        left = 0.0
        for index, share in enumerate(claimed_shares(member, group)):
            axes.barh(
                row,
                share,
                left=left,
                height=0.74,
                color=colours[index],
                edgecolor=draw.PAPER,
                # A border would be most of a narrow segment.
                lw=0.4 if share > 1.2 else 0.1,
            )
            label = str(index + 1)
            if share > 1.3 * len(label):
                _write(axes, left + share / 2, row, label, size=6, colour=draw.on(colours[index]))
            left += share
        # On a dark page the darkest colour is almost that of the page.
        axes.barh(row, 100, height=0.74, color="none", edgecolor=draw.LINE, lw=0.9, zorder=0.5)
        rest = max(100 - left, 0.0)
        axes.barh(row, rest, left=left, height=0.74, color=draw.SOFT, edgecolor=draw.LINE, lw=0.4)
        if rest > 9:
            _write(axes, left + rest / 2, row, f"{rest:.0f} % free", size=6.5, colour=draw.MUTED)
    labels = [
        f"{name} ({member.sizes[group]})"
        for name, group in zip(all_shortened(groups, 26), groups, strict=True)
    ]
    axes.set_yticks(range(len(groups)), labels)
    axes.set_ylim(len(groups) - 0.45, -0.55)
    axes.set_xlim(0, 100)
    axes.grid(False)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "bottom"]].set_visible(False)


def _write(axes: Axes, x: float, y: float, text: str, *, size: float, colour: str) -> None:
    axes.text(x, y, text, size=size, color=colour, ha="center", va="center_baseline")


def _add_task_key(
    figure: Figure, all_axes: list[Axes], names: Sequence[str], colours: Sequence[str]
) -> None:
    """Add a legend for a few tasks, a scale for many."""
    if len(names) <= 12:
        start, rest = without_common_start(names)
        short = all_shortened(rest, 22)
        if rest == [str(number) for number in range(1, len(names) + 1)]:
            labels = [f"{start} {short[0]}", *short[1:]]
        else:
            labels = [f"{number}: {name}" for number, name in enumerate(short, 1)]
        handles = [
            Patch(facecolor=colour, edgecolor=draw.LINE, lw=0.5, label=name)
            for colour, name in zip(colours, labels, strict=True)
        ]
        handles.append(Patch(facecolor=draw.SOFT, edgecolor=draw.LINE, label="free"))
        draw.add_legend(figure, handles, solid=True)
        return
    edges = [index + 0.5 for index in range(len(names) + 1)]
    scale = ScalarMappable(BoundaryNorm(edges, len(names)), ListedColormap(list(colours)))
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 1000) if len(names) / s <= 10)
    draw.add_colour_bar(
        figure,
        scale,
        all_axes,
        "claimed by task",
        location="top",
        aspect=60,
        shrink=0.6,
        anchor=(0.0, 0.0),
        pad=0.02,
        ticks=sorted({1, *range(step, len(names) + 1, step)}),
    )


def _describe_bars(member: Member, members: Sequence[Member]) -> str:
    free = {g: 100 - sum(claimed_shares(member, g)) for g in member.sizes}
    parts = [f"{clean(group)} {share:.0f} % free" for group, share in free.items()]
    tasks = draw.count(member.num_tasks, "task")
    return f"{draw.named(member, members)}after {tasks}, {draw.in_words(parts, 20)}"


def _table_of_bars(members: Sequence[Member], names: Sequence[str]) -> Table:
    several = len(members) > 1
    rows: list[tuple[Cell, ...]] = []
    for member in members:
        for group, size in member.sizes.items():
            new = [
                counted(task.new.get(group) for task in member.learned(index))
                for index in range(len(names))
            ]
            free = [size - run.used(group)[-1] for run in member.runs if group in run.sizes]
            head: list[Cell] = [member.label] if several else []
            share = spread_of((100 * num / size for num in free), 1)
            rows.append((*head, clean(group), size, *new, counted(free), share))
    first = ("run", "layer") if several else ("layer",)
    return Table((*first, "neurons", *map(clean, names), "free", "free, %"), tuple(rows))


def draw_reuse(collection: Collection) -> Picture | None:
    """Draw new, reused and free neurons of each layer after each task; None without neurons."""
    members = collection.with_neurons
    if not members:
        return None
    groups = list(dict.fromkeys(group for member in members for group in member.sizes))
    shown = draw.shown_panels(range(len(groups)), most=MOST_LAYERS)
    rows, height = draw.panel_rows(len(shown))
    figure = draw.new_figure(rows * height + 0.75)
    panels = draw.add_panels(figure, groups, shown, thing="layers")
    colours = draw.member_colours(collection)
    num_tasks = max(member.num_tasks for member in members)
    top = 0.0
    for axes, index in zip(panels.axes, shown, strict=True):
        group = groups[index]
        if len(members) == 1:
            top = max(top, _draw_stack(axes, members[0], group))
        for member in members if len(members) > 1 else ():
            top = max(top, _draw_lines(axes, member, group, colours[member.label]))
        draw.number_tasks(axes, num_tasks, most=14 if len(shown) < 4 else 6)
        axes.set_xlabel("")
        axes.tick_params(axis="x", length=0)
    panels.axes[0].set_ylim(0, 100 if top > 60 or top == 0 else 1.15 * top)
    panels.axes[0].set_xlim(0.4, num_tasks + 0.6)
    figure.supxlabel("task, in the order learned")
    figure.supylabel("neurons of the layer, %")
    if len(members) == 1:
        caption = (
            "Neurons of each layer after each task: those that the task claimed (new), those of "
            "earlier tasks that it uses (reused), and those that it does not use. The rest is free."
        )
        handles: list[Patch | Line2D] = [
            Patch(color=NEW, lw=0, label="new"),
            Patch(color=UNUSED, lw=0, label="of earlier tasks, not used"),
            Patch(color=REUSED, lw=0, label="of earlier tasks, reused"),
        ]
        draw.add_legend(figure, handles, solid=True)
    else:
        caption = (
            "Neurons of each layer that are claimed after each task (solid), and those of earlier "
            "tasks that the task reuses (dashed)."
        )
        handles = [
            Line2D([], [], color=draw.INK, label="claimed"),
            Line2D([], [], color=draw.INK, ls="--", label="reused"),
            *(Patch(color=colours[m.label], label=shortened(m.label, 30)) for m in members),
        ]
        draw.add_legend(figure, handles)
    return Picture(
        "reuse",
        "New, reused and free neurons",
        f"{caption} A neuron is used if its mean activity on the data of the task is above the "
        "threshold or, with pruning by contribution, if new neurons read it."
        f"{draw.averaged(members)}{panels.note}",
        "; ".join(_describe_reuse(member, members) for member in members) + ".",
        figure,
        _table_of_reuse(members, collection.names),
    )


def _draw_stack(axes: Axes, member: Member, group: str) -> float:
    """Draw bars of reused, unused and new neurons; return the percentage of claimed neurons."""
    size = member.sizes[group]
    reused: list[float] = []
    claimed: list[float] = []
    for index in range(member.num_tasks):
        shares = [t.reused.get(group) or 0 for t in member.learned(index) if group in t.new]
        reused.append(100 * fmean(shares) / size if shares else 0.0)
    for share in claimed_shares(member, group):
        claimed.append(share + (claimed[-1] if claimed else 0.0))
    before = [0.0, *claimed[:-1]]
    x, width = range(1, len(claimed) + 1), 0.78 if len(claimed) > 3 else 0.4
    for bottom, top, colour in (
        ([0.0] * len(before), reused, REUSED),
        (reused, before, UNUSED),
        (before, claimed, NEW),
    ):
        heights = [max(high - low, 0.0) for low, high in zip(bottom, top, strict=True)]
        axes.bar(x, heights, bottom=bottom, color=colour, width=width, edgecolor=draw.PAPER, lw=0.3)
    return max(claimed, default=0.0)


def _draw_lines(axes: Axes, member: Member, group: str, colour: str) -> float:
    """Draw the claimed and reused neurons of a member; return the largest percentage."""
    claimed = over_runs([used_share(run, group)[1:] for run in member.runs])
    if not any(claimed):
        return 0.0  # Its network has no such layer.
    rows = [
        [
            100 * n / run.sizes[group] if (n := t.reused.get(group)) is not None else None
            for t in run.learned
        ]
        for run in member.runs
        if group in run.sizes
    ]
    reused = over_runs(rows)
    mark = "o" if len(claimed) <= 25 else ""
    bounds = draw.draw_line(axes, range(1, len(claimed) + 1), claimed, colour, marker=mark, ms=2.5)
    draw.draw_line(axes, range(1, len(reused) + 1), reused, colour, ls="--", lw=0.9)
    return max((bound for bound in bounds if math.isfinite(bound)), default=0.0)


def _mean_reuse(member: Member, group: str) -> Spread | None:
    """Return the percentage of reused neurons among the active ones, after the first task."""
    return spread_of(reused_share(task, group) for run in member.runs for task in run.learned[1:])


def _describe_reuse(member: Member, members: Sequence[Member]) -> str:
    shares = {group: _mean_reuse(member, group) for group in member.sizes}
    parts = [f"{clean(group)} {s.mean:.0f} %" for group, s in shares.items() if s]
    if not parts:
        return f"{draw.named(member, members)}the first task has nothing to reuse"
    return (
        f"{draw.named(member, members)}after the first task, reused among active neurons: "
        f"{draw.in_words(parts, 24)}"
    )


def _table_of_reuse(members: Sequence[Member], names: Sequence[str]) -> Table:
    several = len(members) > 1
    rows: list[tuple[Cell, ...]] = []
    for member in members:
        for index in range(member.num_tasks):
            tasks = member.learned(index)
            for group in member.sizes:
                head: list[Cell] = [member.label] if several else []
                used = over_runs([used_share(run, group) for run in member.runs], 1)
                cells = (
                    counted(task.new.get(group) for task in tasks),
                    counted(task.reused.get(group) for task in tasks),
                    spread_of((reused_share(task, group) for task in tasks), 1),
                    used[index + 1] if index + 1 < len(used) else None,
                )
                rows.append((*head, clean(names[index]), clean(group), *cells))
    first = ("run", "task", "layer") if several else ("task", "layer")
    header = (*first, "new", "reused", "reused, % of active", "claimed, % of layer")
    return Table(header, tuple(rows))

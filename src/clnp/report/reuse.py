"""The figure of transfer: what each task claimed anew, and what it reused of earlier tasks."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from clnp.text import all_shortened, clean, shortened

from .collection import Collection, Member
from .measures import Spread, reused_share, rounded, spread_of
from .picture import (
    Cell,
    Picture,
    Table,
    add_legend,
    finite,
    in_words,
    member_colours,
    new_figure,
    number_tasks,
    seeds_of,
)
from .style import MARKERS, NEW, ORDERED, PAPER, REUSED

MOST_BARS = 9
"""Layers whose neurons stand in bars; more of them are a map."""
MEANING = (
    "Reused are neurons of earlier tasks that are above the threshold of the task: active on its "
    "data, or, where pruning goes by contribution, read by its new neurons."
)


def draw_reuse(collection: Collection) -> Picture | None:
    """New against reused neurons for each group and task; None without neurons."""
    members = collection.with_neurons
    if not members:
        return None
    groups = members[0].groups
    if len(members) > 1:
        figure = _draw_shares(members, member_colours(collection))
        caption = (
            "Share of reused neurons among those that a task is active in, averaged over the tasks "
            "after the first, from the first layer to the last."
        )
    elif len(groups) <= MOST_BARS:
        figure = _draw_bars(members[0], groups)
        caption = (
            "Neurons that each task is active in: those of earlier tasks that it reuses, and the "
            "new ones that it claimed. Above each layer, the share of reused ones over all tasks "
            "after the first."
        )
    else:
        figure = _draw_maps(members[0], groups)
        caption = (
            "For each layer and task: the share of reused neurons among those that the task is "
            "active in, and the new neurons that it claimed, in percent of the layer."
        )
    return Picture(
        "reuse",
        "New against reused neurons",
        f"{caption} {MEANING}{_averaged(members)}",
        "; ".join(_describe(member, several=len(members) > 1) for member in members) + ".",
        figure,
        _table(members, collection.names),
    )


def _averaged(members: Sequence[Member]) -> str:
    seeds = seeds_of(members)
    return f" Means over {seeds}." if seeds else ""


def _mean_share(member: Member, group: str) -> Spread | None:
    """The share of reused neurons, from the second task on: the first finds nothing to reuse."""
    return spread_of(reused_share(task, group) for run in member.runs for task in run.learnt[1:])


def _counts(member: Member, group: str) -> tuple[list[float], list[float]]:
    new: list[float] = []
    reused: list[float] = []
    for place in range(member.num_tasks):
        tasks = [task for task in member.task(place) if task.learnt]
        for found, values in (
            (new, [task.new.get(group) for task in tasks]),
            (reused, [task.reused.get(group) for task in tasks]),
        ):
            spread = spread_of(values)
            found.append(spread.mean if spread else 0.0)
    return new, reused


def _draw_bars(member: Member, groups: Sequence[str]) -> Figure:
    columns = min(len(groups), 3)
    rows = math.ceil(len(groups) / columns)
    figure = new_figure(1.5 * rows + 0.7)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
    cells = list(grid.flat)
    x = range(1, member.num_tasks + 1)
    names = all_shortened(groups, int(84 / columns) - 12)
    for axes, group, name in zip(cells, groups, names, strict=False):
        new, reused = _counts(member, group)
        width = 0.78 if member.num_tasks > 3 else 0.4
        axes.bar(x, reused, color=REUSED, width=width, edgecolor=PAPER, lw=0.4)
        axes.bar(x, new, bottom=reused, color=NEW, width=width, edgecolor=PAPER, lw=0.4)
        share = _mean_share(member, group)
        axes.set_title(name if share is None else f"{name}: {share.mean:.0f} % reused")
        number_tasks(axes, member.num_tasks)
        axes.set_xlabel("")
        axes.set_xlim(0.4, member.num_tasks + 0.6)
        if not any([*new, *reused]):
            axes.set_ylim(0, 1)  # Bars of no height would have an axis of -0.05 to 0.05.
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.tick_params(axis="x", length=0)
    for axes in cells[len(groups) :]:
        axes.remove()
    figure.supxlabel("task, in the order learnt")
    figure.supylabel("active neurons")
    handles = [Patch(color=NEW, label="new"), Patch(color=REUSED, label="reused")]
    add_legend(figure, handles, solid=True)
    return figure


def _draw_maps(member: Member, groups: Sequence[str]) -> Figure:
    num_tasks = member.num_tasks
    figure = new_figure(2 * (0.13 * len(groups) + 0.35) + 0.6)
    grid = figure.subplots(2, 1, sharex=True)
    shares = [
        [
            spread_of(reused_share(task, group) for task in member.task(place) if task.learnt)
            for place in range(num_tasks)
        ]
        for group in groups
    ]
    sizes = member.longest.sizes
    new = [[100 * n / sizes[group] for n in _counts(member, group)[0]] for group in groups]
    edges = [place + 0.5 for place in range(num_tasks + 1)]
    rows = [place - 0.5 for place in range(len(groups) + 1)]
    maps = (
        (grid[0], [finite([s and s.mean for s in row]) for row in shares], "reused, % of active"),
        (grid[1], new, "new, % of the layer"),
    )
    for axes, values, title in maps:
        mesh = axes.pcolormesh(
            edges,
            rows,
            values,
            cmap=ORDERED,
            vmin=0,
            edgecolor="face",
            lw=0.6,
            rasterized=num_tasks * len(groups) > 4000,
        )
        axes.set_yticks(range(len(groups)), all_shortened(groups, 24), size=6)
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.tick_params(length=0)
        axes.grid(False)
        axes.spines[:].set_visible(False)
        axes.set_title(title)
        bar = figure.colorbar(mesh, ax=axes, aspect=14, pad=0.015)
        bar.outline.set_linewidth(0)
        bar.ax.tick_params(length=0)
    number_tasks(grid[1], num_tasks)
    return figure


def _draw_shares(members: Sequence[Member], colours: Mapping[str, str]) -> Figure:
    """A line for each member over the layers."""
    figure = new_figure(2.6)
    axes = figure.subplots()
    groups = list(dict.fromkeys(group for m in members for group in m.groups))
    for place, member in enumerate(members):
        found = [_mean_share(member, group) for group in groups]
        y = finite([s and s.mean for s in found])
        axes.plot(
            range(1, len(groups) + 1),
            y,
            color=colours[member.label],
            marker=MARKERS[place % len(MARKERS)],
            label=shortened(clean(member.label), 30),
        )
    names = all_shortened(groups, 18)
    steep = sum(map(len, names)) > 80
    axes.set_xticks(range(1, len(groups) + 1), names)
    if steep:
        for label in axes.get_xticklabels():
            label.set(rotation=35, ha="right", rotation_mode="anchor")
    axes.set_xlim(0.6, len(groups) + 0.4)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("reused, % of active neurons")
    axes.set_xlabel("layer, from the input to the output")
    add_legend(figure, axes.lines)
    return figure


def _describe(member: Member, *, several: bool) -> str:
    shares = {group: _mean_share(member, group) for group in member.groups}
    parts = [f"{clean(g)} {s.mean:.0f} % reused" for g, s in shares.items() if s]
    who = f"{clean(member.label)}: " if several else ""
    if not parts:
        return f"{who}nothing is known about reuse before the second task"
    return f"{who}after the first task, {in_words(parts, 24)}"


def _table(members: Sequence[Member], names: Sequence[str]) -> Table:
    several = len(members) > 1
    rows: list[tuple[Cell, ...]] = []
    for member in members:
        for place in range(member.num_tasks):
            tasks = [task for task in member.task(place) if task.learnt]
            for group in member.groups:
                new = spread_of(task.new.get(group) for task in tasks)
                reused = spread_of(task.reused.get(group) for task in tasks)
                share = spread_of(reused_share(task, group) for task in tasks)
                head: list[Cell] = [clean(member.label)] if several else []
                digits = 1 if len(member.runs) > 1 else 0
                cells = [rounded(s, digits) for s in (new, reused, share)]
                rows.append((*head, clean(names[place]), clean(group), *cells))
    first = ("run", "task", "layer") if several else ("task", "layer")
    return Table((*first, "new", "reused", "reused, % of active"), tuple(rows))

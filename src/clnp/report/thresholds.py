"""Figures of pruning: the score against neurons kept and against the threshold, task by task."""

import math
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import SymmetricalLogLocator

from clnp.runs.records import Point, Pruning
from clnp.text import clean, shortened

from .collection import Collection, Member
from .panels import task_panels
from .picture import Cell, Picture, Table, add_legend, counted, member_colours, seeds_of
from .style import CATEGORIES, INK, MUTED

MARGIN = CATEGORIES[2]
BELOW = 6
"""Margins below the best score that are shown; curves go on further down."""


def draw_pruning(collection: Collection) -> Picture | None:
    """The validation score against the neurons kept; None where nothing was pruned."""
    return _draw(
        collection,
        "pruning",
        "Pruning: score against neurons kept",
        "neurons kept, all layers together",
        lambda point: float(point.num_kept),
        lambda pruning: float(pruning.num_kept),
    )


def draw_thresholds(collection: Collection) -> Picture | None:
    """The score against the threshold; None where nothing was pruned, or layers have their own."""
    return _draw(
        collection,
        "threshold",
        "Pruning: score against threshold",
        "threshold of mean activity",
        # A threshold below zero keeps every neuron, also those that never fire.
        lambda point: None if point.theta is None else max(point.theta, 0.0),
        lambda pruning: None if pruning.theta is None else max(pruning.theta, 0.0),
    )


X = Callable[[Point], float | None]


def _draw(
    collection: Collection,
    name: str,
    title: str,
    along: str,
    x_of: X,
    chosen_x: Callable[[Pruning], float | None],
) -> Picture | None:
    members = [m for m in collection.members if _has_curve(m, x_of)]
    if not members:
        return None
    names = collection.names
    percent = "accuracy" in collection.score_name

    def prunings(member: Member, place: int) -> list[Pruning]:
        found = [task.chosen.pruning for task in member.task(place) if task.chosen is not None]
        return [
            p for p in found if p is not None and any(x_of(point) is not None for point in p.curve)
        ]

    panels = task_panels(names, has_data=lambda place: any(prunings(m, place) for m in members))
    colours = [member_colours(collection)[member.label] for member in members]
    small = len(panels.axes) > 20
    lows, highs, ends = [-0.5], [0.0], list[float]()
    shown = [
        (axes, colour, pruning)
        for axes, place in zip(panels.axes, panels.shown, strict=True)
        for colour, member in zip(colours, members, strict=True)
        for pruning in prunings(member, place)
    ]
    for axes in panels.axes:
        margins = [p.margin for each, _, p in shown if each is axes and p.margin is not None]
        if margins:
            axes.axhspan(-max(margins), 0, color=MARGIN, alpha=0.22, lw=0)
    for axes, colour, pruning in shown:
        thin = len(shown) > len(panels.axes)
        _draw_curve(axes, pruning, colour, x_of, chosen_x, thin=thin, small=small)
        points = [(p.score - _best(pruning), x_of(p)) for p in pruning.curve]
        floor = -BELOW * max(pruning.margin or 0.0, 0.25)
        lows.append(max(min(y for y, _ in points), floor))
        highs.append(max(y for y, _ in points))
        inside = [x for y, x in points if y >= lows[-1]]
        ends += [x for x in (*inside, chosen_x(pruning)) if x is not None]
    panels.axes[0].set_ylim(1.05 * min(lows), max(-0.18 * min(lows), 1.1 * max(highs)))
    _fit_along(panels.axes[0], ends, small=small)
    figure = panels.figure
    figure.supxlabel(along)
    figure.supylabel("against the best, points" if percent else "score against the best")
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=MUTED, marker="o", ms=2, lw=1, label="evaluated"),
        Line2D([], [], color=INK, marker="*", ms=7, ls="", label="chosen"),
        Patch(color=MARGIN, alpha=0.22, lw=0, label="within the margin of the best"),
    ]
    if len(members) > 1:
        handles += [
            Line2D([], [], color=c, lw=3, label=shortened(clean(m.label), 24))
            for c, m in zip(colours, members, strict=True)
        ]
    add_legend(figure, handles)
    return Picture(
        name,
        title,
        "The winner of each task's grid, pruned with every threshold that was tried: its "
        "validation score against that of the best candidate before pruning. The highest "
        "threshold that stays within the margin is chosen. Where a part of the validation data "
        "was enough to see that a threshold does not, its score is that of this part. Curves go "
        f"on below the frame.{_seeds(members)}{panels.note}",
        _describe(members),
        figure,
        _table(members, names),
    )


def _seeds(members: Sequence[Member]) -> str:
    seeds = seeds_of(members)
    return f" There are a curve and a star for each of {seeds}." if seeds else ""


def _best(pruning: Pruning) -> float:
    """The score that curves are held against: the best candidate's, before pruning."""
    return pruning.best if pruning.best is not None else max(p.score for p in pruning.curve)


def _fit_along(axes: Axes, ends: Sequence[float], *, small: bool) -> None:
    """Show all values; where a few tasks are far larger than the rest, by their order."""
    known = sorted(x for x in ends if x > 0)
    if not known or known[-1] <= 12 * known[len(known) // 4]:
        axes.set_xlim(0, 1.05 * max(ends, default=0) or 1.0)
        return
    if len(known) == len(ends):
        axes.set_xscale("log")
        axes.set_xlim(known[0] / 1.5, known[-1] * 1.3)
    else:
        # Zero has no order: up to the order of the smallest number the scale is a plain one.
        first = 10.0 ** math.floor(math.log10(known[0]))
        axes.set_xscale("symlog", linthresh=first, linscale=0.5)
        axes.set_xlim(0, known[-1] * 1.3)
        ticks = SymmetricalLogLocator(base=10, linthresh=first)
        ticks.set_params(numticks=3 if small else 15)
        axes.xaxis.set_major_locator(ticks)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()


def _has_curve(member: Member, x_of: X) -> bool:
    return any(
        x_of(point) is not None
        for run in member.runs
        for task in run.tasks
        if task.chosen is not None and task.chosen.pruning is not None
        for point in task.chosen.pruning.curve
    )


def _draw_curve(
    axes: Axes,
    pruning: Pruning,
    colour: str,
    x_of: X,
    chosen_x: Callable[[Pruning], float | None],
    *,
    thin: bool,
    small: bool,
) -> None:
    best = _best(pruning)
    points = sorted((x, p.score - best) for p in pruning.curve if (x := x_of(p)) is not None)
    xs, ys = [x for x, _ in points], [y for _, y in points]
    axes.plot(xs, ys, color=colour, marker="o", ms=1.8, lw=0.6 if thin else 0.9)
    x = chosen_x(pruning)
    if x is not None and pruning.score is not None:
        mark = colour if thin else INK
        axes.plot(
            x,
            pruning.score - best,
            "*",
            ms=5 if small else 7,
            color=mark,
            mew=0,
            zorder=4,
            clip_on=False,
        )


def _describe(members: Sequence[Member]) -> str:
    parts = []
    for member in members:
        tasks = [t for run in member.runs for t in run.tasks if t.chosen and t.chosen.pruning]
        kept = [t.chosen.pruning.num_kept for t in tasks if t.chosen and t.chosen.pruning]
        label = f"{clean(member.label)}: " if len(members) > 1 else ""
        parts.append(
            f"{label}{counted(len(tasks), 'curve')}; the chosen thresholds keep {min(kept)} to "
            f"{max(kept)} neurons"
        )
    return "; ".join(parts) + "."


def _table(members: Sequence[Member], names: Sequence[str]) -> Table:
    """The thresholds that were chosen, and every one that was tried, from the lowest up."""
    several = sum(len(member.runs) for member in members) > 1
    rows: list[tuple[Cell, ...]] = []
    for member in members:
        for run in member.runs:
            for place, task in enumerate(run.tasks):
                pruning = task.chosen.pruning if task.chosen is not None else None
                for point in sorted(pruning.curve, key=lambda p: -p.num_kept) if pruning else ():
                    assert pruning is not None
                    chosen = point.num_kept == pruning.num_kept and point.score == pruning.score
                    head: list[Cell] = (
                        [f"{clean(member.label)}, seed {run.seed}"] if several else []
                    )
                    theta = "own for each layer" if point.theta is None else f"{point.theta:.4g}"
                    rows.append(
                        (
                            *head,
                            clean(names[place]),
                            "keep all" if point.theta == -1 else theta,
                            point.num_kept,
                            f"{point.score:.2f}",
                            "chosen" if chosen else "",
                        )
                    )
    first = ("run", "task") if several else ("task",)
    return Table((*first, "threshold", "neurons kept", "validation score", ""), tuple(rows))

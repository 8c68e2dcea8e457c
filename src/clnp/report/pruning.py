"""The figure of pruning: the score at each threshold, task by task."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import SymmetricalLogLocator

from clnp.runs.history import Point, Pruning
from clnp.text import clean, shortened

from . import draw
from .collection import Collection, Member
from .draw import Cell, Picture, Table
from .measures import Spread

MARGIN = draw.CATEGORIES[2]
BELOW = 6
"""Margins below the best score that are shown. Curves continue further down."""


@dataclass(frozen=True)
class Curve:
    """A pruning: how far each threshold is from the best score, and which was chosen."""

    colour: str
    pruning: Pruning
    by_threshold: bool

    def x(self, point: Point | Pruning) -> float:
        """Return the threshold, or the neurons kept if layers have their own thresholds."""
        if not self.by_threshold:
            return float(point.num_kept)
        # A threshold below zero keeps every neuron, also those that never fire.
        return math.nan if point.theta is None else max(point.theta, 0.0)

    @property
    def best(self) -> float:
        """The score of the best candidate before pruning."""
        known = self.pruning.best
        return max(point.score for point in self.pruning.curve) if known is None else known

    @property
    def points(self) -> list[tuple[float, float]]:
        """Where the score was evaluated, and how far it was from the best."""
        return sorted((self.x(p), p.score - self.best) for p in self.pruning.curve)

    @property
    def lowest(self) -> float:
        """The lowest score that is shown."""
        floor = -BELOW * max(self.pruning.margin or 0.0, 0.25)
        return max(min(y for _, y in self.points), floor)


def draw_pruning(collection: Collection) -> Picture | None:
    """Draw score against threshold for each task; None if nothing was pruned.

    If layers have thresholds of their own, the score is drawn against the neurons kept.
    """
    names, colours = collection.names, draw.member_colours(collection)
    found = [
        (index, member, pruning)
        for index in range(len(names))
        for member in collection.members
        for pruning in _prunings(member, index)
    ]
    if not found:
        return None
    thresholds = [t for _, _, p in found for t in (p.theta, *(point.theta for point in p.curve))]
    by_threshold = None not in thresholds
    members = [m for m in collection.members if any(member is m for _, member, _ in found)]
    shown = draw.shown_panels(list(dict.fromkeys(index for index, _, _ in found)))
    curves = {
        index: [
            Curve(colours[member.label], pruning, by_threshold)
            for place, member, pruning in found
            if place == index
        ]
        for index in shown
    }
    rows, height = draw.panel_rows(len(shown))
    figure = draw.new_figure(rows * height + 0.75)
    panels = draw.add_panels(figure, names, shown)
    small = len(shown) > 20
    thin = sum(map(len, curves.values())) > len(shown)
    for axes, own in zip(panels.axes, curves.values(), strict=True):
        margins = [c.pruning.margin for c in own if c.pruning.margin is not None]
        if margins:
            axes.axhspan(-max(margins), 0, color=MARGIN, alpha=0.22, lw=0)
        for curve in own:
            _draw_curve(axes, curve, thin=thin, small=small)
    _fit(panels.axes[0], [c for own in curves.values() for c in own], small=small)
    figure.supxlabel("threshold of mean activity" if by_threshold else "neurons kept in all layers")
    figure.supylabel(
        "difference from best, points" if collection.is_accuracy else "difference from best score"
    )
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=draw.MUTED, marker="o", ms=2, lw=1, label="evaluated"),
        Line2D([], [], color=draw.INK, marker="*", ms=7, ls="", label="chosen"),
        Patch(color=MARGIN, alpha=0.22, lw=0, label="within the margin"),
    ]
    if len(members) > 1:
        handles += [
            Line2D([], [], color=colours[m.label], lw=3, label=shortened(m.label, 24))
            for m in members
        ]
    draw.add_legend(figure, handles)
    against = "threshold" if by_threshold else "number of neurons that each set of thresholds keeps"
    return Picture(
        "pruning",
        "Score against threshold" if by_threshold else "Score against neurons kept",
        "Validation score of the chosen candidate of each task, compared with the best candidate "
        f"before pruning, against the {against}. The sparsest network within the margin is chosen. "
        "Curves continue below the frame; scores far outside the margin may be from a part of the "
        f"validation data.{draw.averaged(members, 'There is a curve and a star for each of {}.')}"
        f"{panels.note}",
        "; ".join(_describe(member, members) for member in members) + ".",
        figure,
        _table(collection, members),
    )


def _prunings(member: Member, index: int) -> list[Pruning]:
    """Return how the task was pruned in each run, if it was."""
    found = [task.chosen.pruning for task in member.task(index) if task.chosen is not None]
    return [pruning for pruning in found if pruning is not None and pruning.curve]


def _draw_curve(axes: Axes, curve: Curve, *, thin: bool, small: bool) -> None:
    xs, ys = [x for x, _ in curve.points], [y for _, y in curve.points]
    axes.plot(xs, ys, color=curve.colour, marker="o", ms=1.8, lw=0.6 if thin else 0.9)
    if curve.pruning.score is not None:
        axes.plot(
            curve.x(curve.pruning),
            curve.pruning.score - curve.best,
            "*",
            ms=5 if small else 7,
            color=curve.colour if thin else draw.INK,
            mew=0,
            zorder=4,
            clip_on=False,
        )


def _fit(axes: Axes, curves: Sequence[Curve], *, small: bool) -> None:
    """Fit both axes to the curves, with a logarithmic scale if a few tasks are far larger."""
    low = min(-0.5, *(curve.lowest for curve in curves))
    high = max(y for curve in curves for _, y in curve.points)
    axes.set_ylim(1.05 * low, max(-0.18 * low, 1.1 * high))
    ends = [x for c in curves for x, y in c.points if y >= c.lowest]
    ends += [curve.x(curve.pruning) for curve in curves]
    positive = sorted(x for x in ends if x > 0)
    if not positive or positive[-1] <= 12 * positive[len(positive) // 4]:
        axes.set_xlim(0, 1.05 * max(ends, default=0) or 1.0)
        return
    # Zero has no logarithm: up to the magnitude of the smallest number, the scale is linear.
    first = 10.0 ** math.floor(math.log10(positive[0]))
    axes.set_xscale("symlog", linthresh=first, linscale=0.5)
    axes.set_xlim(0, positive[-1] * 1.3)
    ticks = SymmetricalLogLocator(base=10, linthresh=first)
    ticks.set_params(numticks=3 if small else 6)
    axes.xaxis.set_major_locator(ticks)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()


def _describe(member: Member, members: Sequence[Member]) -> str:
    num = max(len(run.tasks) for run in member.runs)
    kept = [p.num_kept for index in range(num) for p in _prunings(member, index)]
    curves = draw.count(len(kept), "curve")
    return f"{draw.named(member, members)}{curves}; {min(kept)} to {max(kept)} neurons are kept"


def _table(collection: Collection, members: Sequence[Member]) -> Table:
    """Return all thresholds that were evaluated, from the lowest, and which was chosen."""
    several = collection.single is None
    rows: list[tuple[Cell, ...]] = []
    for member in members:
        for run in member.runs:
            for index, task in enumerate(run.tasks):
                pruning = task.chosen.pruning if task.chosen is not None else None
                if pruning is None:
                    continue
                for point in sorted(pruning.curve, key=lambda p: -p.num_kept):
                    chosen = (point.num_kept, point.score) == (pruning.num_kept, pruning.score)
                    theta = "one for each layer" if point.theta is None else f"{point.theta:.4g}"
                    rows.append(
                        (
                            *([f"{member.label}, seed {run.seed}"] if several else []),
                            clean(collection.names[index]),
                            "keep all" if point.theta == -1 else theta,
                            point.num_kept,
                            Spread(point.score),
                            "chosen" if chosen else "",
                        )
                    )
    first = ("run", "task") if several else ("task",)
    return Table((*first, "threshold", "neurons kept", "validation score", ""), tuple(rows))

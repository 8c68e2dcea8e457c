"""The figure of training: loss and validation score at every epoch."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from clnp.palette import SOFT
from clnp.records import EpochEnded
from clnp.report import draw
from clnp.report.collection import Collection
from clnp.report.draw import Picture
from clnp.runs.history import RunHistory, TaskHistory
from clnp.studies.tables import Cell, Mean, Table
from clnp.text import clean, shortened

MOST_NAMED = 8
"""Candidates in a legend. Methods and runs are all named."""
STYLES = ("-", "--", ":", "-.")

Value = Callable[[EpochEnded], float]


@dataclass(frozen=True)
class Curve:
    """The epochs of a candidate, or of fine-tuning, which starts after them."""

    label: str
    chosen: bool
    epochs: tuple[EpochEnded, ...]
    start: int = 0

    def points(self, value: Value) -> list[float]:
        """Return the value of every epoch; what cannot be drawn is `nan`."""
        return draw.finite([value(epoch) for epoch in self.epochs])


def draw_training(collection: Collection) -> Picture | None:
    """Draw loss and validation score at every epoch, task by task; None without epochs."""
    tasks = {index: _curves(collection, index) for index in range(len(collection.names))}
    trained = [index for index, curves in tasks.items() if curves]
    if not trained:
        return None
    shown = trained[: draw.MOST_PANELS]
    several = collection.single is None
    labels = list(dict.fromkeys(curve.label for index in shown for curve in tasks[index]))
    colours = dict(zip(labels, draw.categories(len(labels)), strict=True))
    styles = dict.fromkeys(labels, "-")
    if several:
        colours = draw.member_colours(collection)
        # Methods that are equal for a while hide one another: the upper line has gaps.
        styles = dict(zip(labels, cycle(STYLES), strict=False))
    elif len(labels) == 1:
        colours = dict.fromkeys(labels, *draw.member_colours(collection).values())
    figure = draw.new_figure(2 * (draw.panels_height(len(shown)) + 0.2) + 0.5)
    upper, lower = figure.subfigures(2, 1, squeeze=False)[:, 0]
    titles = draw.task_titles(collection.names)
    values: list[tuple[str, Value]] = [
        ("training loss", lambda epoch: epoch.loss),
        (f"validation {collection.score_name}", lambda epoch: epoch.score),
    ]
    ranges = []
    for part, (label, value) in zip((upper, lower), values, strict=True):
        part.set_facecolor("none")
        part.supylabel(label)
        panels = draw.add_panels(part, [titles[index] for index in shown])
        for axes, index in zip(panels, shown, strict=True):
            _draw_curves(axes, tasks[index], value, colours, styles)
        drawn = [point for index in shown for c in tasks[index] for point in c.points(value)]
        points = [point for point in drawn if math.isfinite(point)]
        if points:
            _fit(panels, points, is_loss=part is upper)
            ranges.append(f"{label} from {min(points):.3g} to {max(points):.3g}")
    lower.supxlabel("epoch")
    is_named = len(labels) > 1 and (several or len(labels) <= MOST_NAMED)
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=colours[label], ls=styles[label], label=shortened(label, 64))
        for label in (labels if is_named else ())
    ]
    tuned = any(curve.start for index in shown for curve in tasks[index])
    if tuned:
        handles.append(Patch(color=SOFT, lw=0, label="fine-tuning"))
    if handles:
        draw.add_legend(figure, handles)
    return Picture(
        "training",
        "Loss and validation score at every epoch",
        _caption(collection, labels)
        + (" The shaded epochs are fine-tuning after pruning." if tuned else "")
        + draw.left_out(len(trained), len(shown), "tasks"),
        f"{draw.count(len(trained), 'task')}; {', '.join(ranges)}.",
        figure,
        _candidates(collection),
        _all_epochs(collection),
    )


def _caption(collection: Collection, labels: Sequence[str]) -> str:
    if collection.single is None:
        seeds = draw.averaged(collection.members, "There is a line for each of {}.")
        return f"The chosen candidate of each task.{seeds}"
    if len(labels) == 1:
        return f"All tasks were trained with {labels[0]}."
    return "Every candidate of the grid, the chosen one with a thicker line."


def _curves(collection: Collection, index: int) -> list[Curve]:
    """Return the curves of a task: all candidates of a single run, otherwise the chosen ones."""
    found = []
    for member in collection.members:
        for task in member.task(index):
            for candidate in task.candidates:
                chosen = candidate is (task.chosen or task.candidates[-1])
                label = member.label if collection.single is None else clean(candidate.name)
                if chosen or collection.single is not None:
                    found.append(Curve(label, chosen, candidate.epochs))
                if chosen:
                    found.append(Curve(label, True, task.tuning, len(candidate.epochs)))
    return [curve for curve in found if curve.epochs]


def _draw_curves(
    axes: Axes,
    curves: Sequence[Curve],
    value: Value,
    colours: Mapping[str, str],
    styles: Mapping[str, str],
) -> None:
    tuning = [curve for curve in curves if curve.start]
    if tuning:
        start = min(curve.start for curve in tuning)
        end = max(curve.start + len(curve.epochs) for curve in tuning)
        axes.axvspan(start, end, color=SOFT, lw=0, zorder=0)
    for curve in sorted(curves, key=lambda curve: curve.chosen):
        points = curve.points(value)
        axes.plot(
            range(curve.start + 1, curve.start + 1 + len(points)),
            points,
            color=colours[curve.label],
            ls=styles[curve.label],
            lw=1.2 if curve.chosen else 0.7,
            # One epoch is not a line.
            marker="o" if len(points) == 1 else "",
            ms=2,
        )


def _fit(panels: Sequence[Axes], points: Sequence[float], *, is_loss: bool) -> None:
    """Choose the scale that all panels share."""
    first = panels[0]
    first.set_xlim(left=0)
    if not is_loss:
        # Without the low scores of the first epochs, which would hide the rest.
        low, high = sorted(points)[len(points) // 50], max(points)
        space = 0.05 * (high - low) or 1.0
        first.set_ylim(low - space, high + space)
    elif min(points) >= 0 and max(points) > 0:
        # A loss of exactly zero, which some tasks reach, has no place on this scale.
        first.set_yscale("log", nonpositive="mask")
        lowest = min(point for point in points if point > 0)
        first.set_ylim(max(lowest, 1e-5 * max(points)) / 1.5, 1.5 * max(points))
        for axes in panels:
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.minorticks_off()


def _candidates(collection: Collection) -> Table:
    """Return a row for each candidate: its training, the neurons that it keeps, and its result."""
    several = collection.single is None
    rows: list[tuple[Cell, ...]] = []
    for label, run, task in _tasks(collection):
        for candidate in task.candidates:
            state = "chosen" if candidate is task.chosen else ""
            if candidate.diverged:
                state = f"diverged: {clean(candidate.diverged)}"
            rows.append(
                (
                    *([f"{label}, seed {run.seed}"] if several else []),
                    clean(task.name),
                    clean(candidate.name),
                    len(candidate.epochs),
                    f"{candidate.epochs[-1].loss:.4g}" if candidate.epochs else None,
                    None if candidate.score is None else Mean(candidate.score),
                    None if candidate.plan is None else candidate.plan.num_kept,
                    state,
                )
            )
    first = ("run", "task") if several else ("task",)
    rest = ("candidate", "epochs", "last loss", "validation score", "neurons kept", "")
    return Table((*first, *rest), tuple(rows))


def _all_epochs(collection: Collection) -> Table:
    """Return every epoch of every candidate, for a file."""
    rows: list[tuple[Cell, ...]] = []
    for label, run, task in _tasks(collection):
        parts = [(clean(c.name), c.epochs) for c in task.candidates]
        for part, epochs in [*parts, ("fine-tuning", task.tuning)]:
            rows += [
                (label, run.seed, clean(task.name), part, number, epoch.loss, epoch.score)
                for number, epoch in enumerate(epochs, 1)
            ]
    header = ("run", "seed", "task", "candidate", "epoch", "loss", "validation score")
    return Table(header, tuple(rows))


def _tasks(collection: Collection) -> list[tuple[str, RunHistory, TaskHistory]]:
    """Return every task of every run, and the label of its member."""
    return [
        (member.label, run, task)
        for member in collection.members
        for run in member.runs
        for task in run.tasks
    ]

"""Figures of training: the loss and the validation score at every epoch, task by task."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from clnp.runs.records import Epoch, TaskHistory
from clnp.text import clean, shortened

from .collection import Collection, Member
from .measures import over_runs
from .panels import task_panels
from .picture import Cell, Picture, Table, add_legend, finite, member_colours
from .style import SOFT, categories

MOST_POINTS = 150
"""Epochs that a curve is drawn with; of more, every second or third."""
MOST_NAMED = 8
"""Candidates that a legend names; methods and runs are all named."""

Dash = tuple[float, tuple[float, ...] | None]
DASHES: tuple[Dash, ...] = ((0, None), (0, (5, 2)), (0, (2, 1.5)), (0, (6, 2, 1, 2)))
"""A line, dashes, dots, and both: what matplotlib calls an offset and lengths on and off."""

Value = Callable[[Epoch], float | None]


@dataclass(frozen=True)
class Curve:
    """Values at epochs from `start` on, one row for each run; `tuning` follows the pruning."""

    label: str
    rows: list[list[float | None]]
    chosen: bool
    start: int = 0


def draw_loss(collection: Collection) -> Picture | None:
    """The training loss at every epoch; None where no epoch is known."""
    return _draw(collection, "loss", "Training loss", "training loss", lambda epoch: epoch.loss)


def draw_validation(collection: Collection) -> Picture | None:
    """The validation score at every epoch; None where no epoch is known."""
    along = f"validation {collection.score_name}"
    return _draw(collection, "validation", "Validation score", along, lambda epoch: epoch.score)


def _draw(
    collection: Collection, name: str, title: str, along: str, value: Value
) -> Picture | None:
    names = collection.names
    by_place = [_curves(collection, place, value) for place in range(len(names))]
    known = [curve for curves in by_place for curve in curves if _numbers(curve)]
    if not known:
        return None
    panels = task_panels(names, has_data=lambda place: any(map(_numbers, by_place[place])))
    labels = list(dict.fromkeys(curve.label for curve in known))
    several = collection.single is None
    colours = member_colours(collection)
    if several:
        labels = [label for label in colours if label in labels]
    else:
        colours = dict(zip(labels, categories(len(labels)), strict=True))
    # Methods that do the same for a while lie on one another: the upper line has gaps.
    dashes = {label: DASHES[number % len(DASHES)] for number, label in enumerate(labels)}
    values = [number for curve in known for number in _numbers(curve)]
    by_order = name == "loss" and _of_many_sizes(values)
    for axes, place in zip(panels.axes, panels.shown, strict=True):
        starts = [c.start for c in by_place[place] if c.start]
        if starts:
            axes.axvspan(min(starts), _end(by_place[place]), color=SOFT, lw=0, zorder=0)
        for curve in sorted(by_place[place], key=lambda curve: curve.chosen):
            dash = dashes.get(curve.label, DASHES[0]) if several else DASHES[0]
            _draw_curve(axes, curve, colours[curve.label], dash, by_order=by_order)
    if by_order:
        lowest = min(number for number in values if number > 0)
        panels.axes[0].set_yscale("log", nonpositive="mask")
        panels.axes[0].set_ylim(max(lowest, 1e-5 * max(values)) / 1.5, 1.5 * max(values))
        for axes in panels.axes:
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.minorticks_off()
    elif name == "validation":
        low, high = _window(values)
        panels.axes[0].set_ylim(low, high)
    panels.axes[0].set_xlim(left=0)
    figure = panels.figure
    figure.supxlabel("epoch")
    figure.supylabel(along)
    what = _averaged(collection, by_order=by_order) if several else _which(labels)
    tuned = any(task.tuning for run in collection.runs for task in run.tasks)
    shaded = " The shaded epochs are fine-tuning after pruning." if tuned else ""
    named = labels if len(labels) > 1 and (several or len(labels) <= MOST_NAMED) else []
    _add_legend(figure, named, colours, dashes if several else {}, tuned=tuned)
    return Picture(
        name,
        title,
        f"{what}{shaded}{panels.note}",
        f"{title} of {len(panels.shown)} tasks, from {min(values):.3g} to {max(values):.3g}.",
        figure,
        _summary(collection),
        _all_epochs(collection),
    )


def _of_many_sizes(values: Sequence[float]) -> bool:
    """Whether the values are shown by their order."""
    positive = [value for value in values if value > 0]
    # A loss of exactly zero, which some tasks reach, has no place on such a scale.
    return len(positive) > 0.8 * len(values) and max(values) > 30 * min(positive)


def _averaged(collection: Collection, *, by_order: bool) -> str:
    if len(collection.runs) == len(collection.members):
        return "The chosen candidate of each task."
    if by_order:
        return (
            "The chosen candidate of each task: geometric mean over seeds, with the standard "
            "deviation of the logarithm."
        )
    return "Mean over seeds of the chosen candidate of each task, with standard deviations."


def _which(labels: Sequence[str]) -> str:
    if len(labels) == 1:
        return f"All tasks were trained with {labels[0]}."
    return "Every candidate of the grid, the chosen one in a stronger line."


def _window(values: Sequence[float]) -> tuple[float, float]:
    """From the lowest to the highest, without the depths of the first epochs that hide the rest."""
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 50], ordered[-1]
    room = 0.05 * (high - low) or 1.0
    return low - room, high + room


def _curves(collection: Collection, place: int, value: Value) -> list[Curve]:
    run = collection.single
    if run is None:
        return [c for member in collection.members for c in _of_member(member, place, value)]
    if place >= len(run.tasks):
        return []
    task = run.tasks[place]
    found = [
        Curve(clean(c.name), [[value(e) for e in c.epochs]], c is task.chosen)
        for c in task.candidates
        if c.epochs
    ]
    chosen = task.chosen
    if chosen is not None and task.tuning:
        row = [value(e) for e in task.tuning]
        found.append(Curve(clean(chosen.name), [row], True, len(chosen.epochs)))
    return found


def _of_member(member: Member, place: int, value: Value) -> list[Curve]:
    tasks = [task for task in member.task(place) if _shown(task)]
    rows = [[value(e) for e in _shown(task)] for task in tasks]
    found = [Curve(clean(member.label), rows, True)] if rows else []
    tuned = [[value(e) for e in task.tuning] for task in tasks if task.tuning]
    if tuned:
        found.append(Curve(clean(member.label), tuned, True, max(map(len, rows))))
    return found


def _shown(task: TaskHistory) -> tuple[Epoch, ...]:
    """The epochs of the winner, or of the last candidate so far."""
    if task.chosen is not None:
        return task.chosen.epochs
    return task.candidates[-1].epochs if task.candidates else ()


def _numbers(curve: Curve) -> list[float]:
    return [v for row in curve.rows for v in row if v is not None and math.isfinite(v)]


def _end(curves: Sequence[Curve]) -> int:
    return max(curve.start + max(map(len, curve.rows), default=0) for curve in curves)


def _draw_curve(axes: Axes, curve: Curve, colour: str, dash: Dash, *, by_order: bool) -> None:
    # A mean less its deviation may be below zero, where a scale by order has no place.
    spreads = over_runs(_logarithms(curve.rows) if by_order else curve.rows)
    shown: Callable[[float], float] = math.exp if by_order else float
    step = math.ceil(len(spreads) / MOST_POINTS)
    places = sorted({*range(0, len(spreads), step), len(spreads) - 1})
    x = [curve.start + place + 1 for place in places]
    found = [spreads[place] for place in places]
    y = finite([s and shown(s.mean) for s in found])
    if any(s.deviation for s in found if s):
        low = finite([s and shown(s.mean - s.deviation) for s in found])
        high = finite([s and shown(s.mean + s.deviation) for s in found])
        axes.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
    width, alpha = (1.2, 1.0) if curve.chosen else (0.7, 0.85)
    # One epoch is no line.
    mark = "o" if len(x) == 1 else ""
    axes.plot(x, y, color=colour, lw=width, ls=dash, alpha=alpha, marker=mark, ms=2)


def _logarithms(rows: Sequence[Sequence[float | None]]) -> list[list[float | None]]:
    return [
        [math.log(v) if v is not None and 0 < v < math.inf else None for v in row] for row in rows
    ]


def _add_legend(
    figure: Figure,
    labels: Sequence[str],
    colours: Mapping[str, str],
    dashes: Mapping[str, Dash],
    *,
    tuned: bool,
) -> None:
    handles: list[Line2D | Patch] = [
        Line2D(
            [],
            [],
            color=colours[label],
            lw=2,
            ls=dashes.get(label, DASHES[0]),
            label=shortened(label, 64),
        )
        for label in labels
    ]
    if tuned:
        handles.append(Patch(color=SOFT, lw=0, label="fine-tuning"))
    if handles:
        add_legend(figure, handles, dashed=bool(dashes))


def _summary(collection: Collection) -> Table:
    """A row for each candidate: its epochs, and the loss and score at their end."""
    several = collection.single is None
    rows: list[tuple[Cell, ...]] = []
    for member in collection.members:
        for run in member.runs:
            for task in run.tasks:
                for candidate in task.candidates:
                    last = candidate.epochs[-1] if candidate.epochs else Epoch(None, None)
                    scores = [e.score for e in candidate.epochs if e.score is not None]
                    head: list[Cell] = (
                        [f"{clean(member.label)}, seed {run.seed}"] if several else []
                    )
                    rows.append(
                        (
                            *head,
                            clean(task.name),
                            clean(candidate.name),
                            len(candidate.epochs),
                            None if last.loss is None else f"{last.loss:.4g}",
                            None if last.score is None else f"{last.score:.2f}",
                            f"{max(scores):.2f}" if scores else None,
                        )
                    )
    first = ("run", "task") if several else ("task",)
    ends = ("candidate", "epochs", "last loss", "last validation", "best validation")
    return Table((*first, *ends), tuple(rows))


def _all_epochs(collection: Collection) -> Table:
    """Every epoch of every candidate, for a file."""
    rows: list[tuple[Cell, ...]] = []
    for member in collection.members:
        for run in member.runs:
            for task in run.tasks:
                parts = [(clean(c.name), c.epochs) for c in task.candidates]
                for part, epochs in [*parts, ("fine-tuning", task.tuning)]:
                    rows += [
                        (clean(member.label), run.seed, clean(task.name), part, n, e.loss, e.score)
                        for n, e in enumerate(epochs, 1)
                    ]
    header = ("run", "seed", "task", "candidate", "epoch", "loss", "validation score")
    return Table(header, tuple(rows))

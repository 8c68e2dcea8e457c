"""Figures of training: loss and validation score at every epoch, and the grid of candidates."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from clnp.runs.history import CandidateHistory, Epoch, TaskHistory
from clnp.text import clean, shortened

from . import draw
from .collection import Collection, Member
from .draw import Cell, Picture, Table
from .measures import Spread, over_runs, spread_of

MOST_CURVE_PANELS = 40
MOST_POINTS = 150
"""Points of a curve. Of more epochs, every second or third is drawn."""
MOST_NAMED = 8
"""Candidates in a legend. Methods and runs are all named."""
MOST_WRITTEN = 10
"""Tasks whose candidates have their numbers written into the grid."""
MOST_ROWS = 40

Dash = tuple[float, tuple[float, ...] | None]
DASHES: tuple[Dash, ...] = ((0, None), (0, (5, 2)), (0, (2, 1.5)), (0, (6, 2, 1, 2)))
"""Solid, dashed, dotted, and both, as matplotlib has it: an offset, and lengths on and off."""


@dataclass(frozen=True)
class Curve:
    """Values at epochs from `start`, one row for each run. Fine-tuning starts after pruning."""

    label: str
    rows: list[list[float | None]]
    chosen: bool
    start: int = 0

    @property
    def numbers(self) -> list[float]:
        """All values that can be drawn."""
        return [v for row in self.rows for v in row if v is not None and math.isfinite(v)]

    @property
    def end(self) -> int:
        """The last epoch."""
        return self.start + max(map(len, self.rows), default=0)


def draw_training(collection: Collection) -> Picture | None:
    """Draw loss and validation score at every epoch, task by task; None without epochs."""
    names = collection.names
    losses = [_curves(collection, i, lambda epoch: epoch.loss) for i in range(len(names))]
    scores = [_curves(collection, i, lambda epoch: epoch.score) for i in range(len(names))]
    blocks = [
        (label, curves)
        for label, curves in (
            ("training loss", losses),
            (f"validation {collection.score_name}", scores),
        )
        if any(curve.numbers for own in curves for curve in own)
    ]
    if not blocks:
        return None
    started = [i for i in range(len(names)) if any(c.numbers for c in [*losses[i], *scores[i]])]
    shown = draw.shown_panels(started, most=MOST_CURVE_PANELS)
    present = {curve.label for _, curves in blocks for own in curves for curve in own}
    several = collection.single is None
    if several:
        colours = {
            label: c for label, c in draw.member_colours(collection).items() if label in present
        }
    else:
        labels = list(dict.fromkeys(c.label for _, curves in blocks for own in curves for c in own))
        colours = dict(zip(labels, draw.categories(len(labels)), strict=True))
    # Methods that are equal for a while hide one another: the upper line has gaps.
    dashes = {
        label: DASHES[number % len(DASHES)] if several else DASHES[0]
        for number, label in enumerate(colours)
    }
    rows, height = draw.panel_rows(len(shown))
    figure = draw.new_figure(len(blocks) * (rows * height + 0.2) + 0.5)
    parts = figure.subfigures(len(blocks), 1, squeeze=False)[:, 0]
    for part, (label, curves) in zip(parts, blocks, strict=True):
        part.set_facecolor("none")
        panels = draw.add_panels(part, names, shown)
        _draw_panels(panels.axes, [curves[i] for i in shown], colours, dashes, label=label)
        part.supylabel(label)
    parts[-1].supxlabel("epoch")
    tuned = any(task.tuning for run in collection.runs for task in run.tasks)
    is_named = len(colours) > 1 and (several or len(colours) <= MOST_NAMED)
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=colour, lw=2, ls=dashes[label], label=shortened(label, 64))
        for label, colour in (colours if is_named else {}).items()
    ]
    if tuned:
        handles.append(Patch(color=draw.SOFT, lw=0, label="fine-tuning"))
    if handles:
        draw.add_legend(figure, handles, dashed=several)
    ranges = [
        f"{label} from {min(numbers):.3g} to {max(numbers):.3g}"
        for label, curves in blocks
        if (numbers := [n for own in curves for curve in own for n in curve.numbers])
    ]
    return Picture(
        "training",
        "Loss and validation score at every epoch",
        _caption(collection, list(colours))
        + (" The shaded epochs are fine-tuning after pruning." if tuned else "")
        + panels.note,
        f"{draw.count(len(started), 'task')}; {', '.join(ranges)}.",
        figure,
        _summary(collection),
        _all_epochs(collection),
    )


def _caption(collection: Collection, labels: Sequence[str]) -> str:
    if len(collection.runs) > len(collection.members):
        return (
            "The chosen candidate of each task: means over seeds, with standard deviations. On a "
            "logarithmic scale the means are geometric."
        )
    if collection.single is None:
        return "The chosen candidate of each task."
    if len(labels) == 1:
        return f"All tasks were trained with {labels[0]}."
    return "Every candidate of the grid, the chosen one with a thicker line."


def _curves(
    collection: Collection, index: int, value: Callable[[Epoch], float | None]
) -> list[Curve]:
    """Return the curves of a task: all candidates of a single run, otherwise one a member."""
    run = collection.single
    if run is None:
        return [c for member in collection.members for c in _of_member(member, index, value)]
    if index >= len(run.tasks):
        return []
    task = run.tasks[index]
    chosen = task.chosen
    found = [
        Curve(clean(c.name), [[value(e) for e in c.epochs]], c is chosen)
        for c in task.candidates
        if c.epochs
    ]
    if chosen is not None and task.tuning:
        row = [value(e) for e in task.tuning]
        found.append(Curve(clean(chosen.name), [row], True, len(chosen.epochs)))
    return found


def _of_member(member: Member, index: int, value: Callable[[Epoch], float | None]) -> list[Curve]:
    label = member.label
    tasks = member.task(index)
    rows = [[value(e) for e in epochs] for task in tasks if (epochs := _shown_epochs(task))]
    found = [Curve(label, rows, True)] if rows else []
    tuned = [[value(e) for e in task.tuning] for task in tasks if task.tuning]
    if tuned:
        found.append(Curve(label, tuned, True, max(map(len, rows), default=0)))
    return found


def _shown_epochs(task: TaskHistory) -> tuple[Epoch, ...]:
    """Return the epochs of the chosen candidate, or of the last candidate so far."""
    if task.chosen is not None:
        return task.chosen.epochs
    return task.candidates[-1].epochs if task.candidates else ()


def _draw_panels(
    all_axes: Sequence[Axes],
    by_task: Sequence[Sequence[Curve]],
    colours: Mapping[str, str],
    dashes: Mapping[str, Dash],
    *,
    label: str,
) -> None:
    """Draw the curves of each task into its panel, on a common scale."""
    values = [number for curves in by_task for curve in curves for number in curve.numbers]
    is_loss = label == "training loss"
    logarithmic = is_loss and _has_many_magnitudes(values)
    for axes, curves in zip(all_axes, by_task, strict=True):
        starts = [curve.start for curve in curves if curve.start]
        if starts:
            axes.axvspan(min(starts), max(c.end for c in curves), color=draw.SOFT, lw=0, zorder=0)
        for curve in sorted(curves, key=lambda curve: curve.chosen):
            _draw_curve(
                axes, curve, colours[curve.label], dashes[curve.label], logarithmic=logarithmic
            )
    first = all_axes[0]
    if logarithmic:
        lowest = min(number for number in values if number > 0)
        first.set_yscale("log", nonpositive="mask")
        first.set_ylim(max(lowest, 1e-5 * max(values)) / 1.5, 1.5 * max(values))
        for axes in all_axes:
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.minorticks_off()
    elif not is_loss and values:
        # Without the low scores of the first epochs, which would hide the rest.
        ordered = sorted(values)
        low, high = ordered[len(ordered) // 50], ordered[-1]
        room = 0.05 * (high - low) or 1.0
        first.set_ylim(low - room, high + room)
    first.set_xlim(left=0)


def _has_many_magnitudes(values: Sequence[float]) -> bool:
    positive = [value for value in values if value > 0]
    # A loss of exactly zero, which some tasks reach, has no place on such a scale.
    return len(positive) > 0.8 * len(values) and max(values) > 30 * min(positive)


def _draw_curve(axes: Axes, curve: Curve, colour: str, dash: Dash, *, logarithmic: bool) -> None:
    # A mean less its deviation may be below zero, which has no place on a logarithmic scale.
    rows = _logarithms(curve.rows) if logarithmic else curve.rows
    scale: Callable[[float], float] = math.exp if logarithmic else float
    spreads = over_runs(rows)
    step = math.ceil(len(spreads) / MOST_POINTS)
    indices = sorted({*range(0, len(spreads), step), len(spreads) - 1})
    x = [curve.start + index + 1 for index in indices]
    found = [spreads[index] for index in indices]
    if any(s.deviation for s in found if s):
        low = draw.finite([s and scale(s.mean - s.deviation) for s in found])
        high = draw.finite([s and scale(s.mean + s.deviation) for s in found])
        draw.draw_band(axes, x, low, high, colour)
    width, alpha = (1.2, 1.0) if curve.chosen else (0.7, 0.85)
    # One epoch is not a line.
    mark = "o" if len(x) == 1 else ""
    y = draw.finite([s and scale(s.mean) for s in found])
    axes.plot(x, y, color=colour, lw=width, ls=dash, alpha=alpha, marker=mark, ms=2)


def _logarithms(rows: Sequence[Sequence[float | None]]) -> list[list[float | None]]:
    return [
        [math.log(v) if v is not None and 0 < v < math.inf else None for v in row] for row in rows
    ]


def _summary(collection: Collection) -> Table:
    """Return a row for each candidate: its epochs, and loss and score at their end."""
    several = collection.single is None
    rows: list[tuple[Cell, ...]] = []
    for member in collection.members:
        for run in member.runs:
            for task in run.tasks:
                for candidate in task.candidates:
                    last = candidate.epochs[-1] if candidate.epochs else Epoch(None, None)
                    best = max(
                        (e.score for e in candidate.epochs if e.score is not None), default=None
                    )
                    rows.append(
                        (
                            *([f"{member.label}, seed {run.seed}"] if several else []),
                            clean(task.name),
                            clean(candidate.name),
                            len(candidate.epochs),
                            None if last.loss is None else f"{last.loss:.4g}",
                            None if last.score is None else f"{last.score:.2f}",
                            None if best is None else f"{best:.2f}",
                        )
                    )
    first = ("run", "task") if several else ("task",)
    ends = ("candidate", "epochs", "last loss", "last validation", "best validation")
    return Table((*first, *ends), tuple(rows))


def _all_epochs(collection: Collection) -> Table:
    """Return every epoch of every candidate, for a file."""
    rows: list[tuple[Cell, ...]] = []
    for member in collection.members:
        for run in member.runs:
            for task in run.tasks:
                parts = [(clean(c.name), c.epochs) for c in task.candidates]
                for part, epochs in [*parts, ("fine-tuning", task.tuning)]:
                    rows += [
                        (member.label, run.seed, clean(task.name), part, n, e.loss, e.score)
                        for n, e in enumerate(epochs, 1)
                    ]
    header = ("run", "seed", "task", "candidate", "epoch", "loss", "validation score")
    return Table(header, tuple(rows))


@dataclass(frozen=True)
class GridCell:
    """A candidate of a task over the runs; without a score, it diverged in all of them."""

    score: Spread | None
    num_kept: Spread | None
    is_chosen: bool


def draw_grid(collection: Collection) -> Picture | None:
    """Draw score and neurons kept of every candidate; None without a grid."""
    if len(collection.members) > 1:
        return None
    member, tasks = collection.members[0], collection.names
    if all(len(task.candidates) < 2 for run in member.runs for task in run.tasks):
        return None
    columns = [_grid_column(member, index) for index in range(len(tasks))]
    names = list(dict.fromkeys(name for column in columns for name in column))
    shown = names[:MOST_ROWS]
    values = [[_behind(column, name) for column in columns] for name in shown]
    figure = draw.new_figure(0.32 * len(shown) + 1.15)
    axes = figure.subplots()
    mesh = axes.pcolormesh(
        [index + 0.5 for index in range(len(tasks) + 1)],
        [index - 0.5 for index in range(len(shown) + 1)],
        values,
        cmap=draw.ORDERED,
        vmin=min(-0.01, *(v for row in values for v in row if math.isfinite(v))),
        vmax=0,
        lw=0.6,
        edgecolor=draw.PAPER,
    )
    written = len(tasks) <= MOST_WRITTEN
    for x, column in enumerate(columns, 1):
        for y, name in enumerate(shown):
            if name in column:
                colour = draw.on(draw.colour_of(mesh, values[y][x - 1]))
                _mark(axes, column[name], x, y, colour, written=written)
    # An alpha for each layer makes a name of two lines.
    labels = ["\n".join(textwrap.wrap(shortened(clean(name), 70), 36)) for name in shown]
    axes.set_yticks(range(len(shown)), labels)
    axes.set_ylim(len(shown) - 0.45, -0.55)
    draw.without_frame(axes)
    draw.name_tasks(axes, tasks, width=4.6)
    draw.add_colour_bar(figure, mesh, axes, "difference from best", aspect=16, pad=0.015)
    inside = ", with its score and, below, the neurons that it keeps" if written else ""
    chosen = "a frame" if written else "a dot"
    many = f" The first {MOST_ROWS} of {len(names)} are shown." if len(names) > MOST_ROWS else ""
    return Picture(
        "grid",
        "Candidates of the grid",
        "Validation score of every candidate before pruning, compared with the best of the task "
        f"(colour){inside}. The chosen candidate has {chosen}; a cross is a candidate that "
        f"diverged.{draw.averaged([member])}{many}",
        f"{draw.count(len(names), 'candidate')} and {draw.count(len(tasks), 'task')}.",
        figure,
        _table_of_grid(member),
    )


def _grid_column(member: Member, index: int) -> dict[str, GridCell]:
    """Return the candidates of a task by name: means over the runs."""
    found: dict[str, list[tuple[CandidateHistory, bool]]] = {}
    for task in member.task(index):
        for candidate in task.candidates:
            found.setdefault(candidate.name, []).append((candidate, candidate is task.chosen))
    cells = {}
    for name, own in found.items():
        score = spread_of(candidate.score for candidate, _ in own)
        kept = spread_of(c.pruning.num_kept for c, _ in own if c.pruning is not None)
        is_chosen = any(chosen for _, chosen in own)
        cells[name] = GridCell(score, kept, is_chosen)
    return cells


def _behind(column: Mapping[str, GridCell], name: str) -> float:
    """Return the score less the best of its task; `nan` if there is none."""
    known = [cell.score.mean for cell in column.values() if cell.score is not None]
    own = column[name].score if name in column else None
    return math.nan if own is None else own.mean - max(known)


def _mark(axes: Axes, cell: GridCell, x: int, y: int, colour: str, *, written: bool) -> None:
    """Write the numbers of a candidate into its cell, and mark the chosen one."""
    if cell.score is None:
        axes.text(x, y, "\u00d7", color=draw.INK, ha="center", va="center")
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, ec=draw.LINE, lw=0.6))
        return
    if written:
        kept = "" if cell.num_kept is None else f"\n{cell.num_kept.mean:.0f}"
        text = f"{cell.score.mean:.1f}{kept}"
        axes.text(x, y, text, size=6, color=colour, ha="center", va="center", linespacing=1.1)
    if cell.is_chosen and not written:
        axes.plot(x, y, "o", color=colour, ms=2.5, mew=0)
    elif cell.is_chosen:
        corner = (x - 0.44, y - 0.43)
        axes.add_patch(Rectangle(corner, 0.88, 0.86, fill=False, ec=colour, lw=1.3))


def _table_of_grid(member: Member) -> Table:
    several = len(member.runs) > 1
    rows: list[tuple[Cell, ...]] = []
    for run in member.runs:
        for task in run.tasks:
            for candidate in task.candidates:
                state = "chosen" if candidate is task.chosen else ""
                if candidate.diverged:
                    state = f"diverged: {clean(candidate.diverged)}"
                pruning = candidate.pruning
                rows.append(
                    (
                        *([f"seed {run.seed}"] if several else []),
                        clean(task.name),
                        candidate.alpha,
                        None if candidate.lr is None else f"{candidate.lr:g}",
                        None if candidate.score is None else Spread(candidate.score),
                        None if pruning is None else pruning.num_kept,
                        state,
                    )
                )
    first = ("run", "task") if several else ("task",)
    return Table((*first, "alpha", "lr", "validation score", "neurons kept", ""), tuple(rows))

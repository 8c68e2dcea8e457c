"""Figures of test scores: accuracy over tasks, and forgetting."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon

from clnp.text import clean, shortened

from . import draw
from .collection import Collection, Member
from .draw import Cell, Picture, Table
from .measures import Spread, average_after, by_task, over_runs

MOST_DODGED = 80
"""Pairs of marks beside one another. If there are more, they are lines."""
MOST_WRITTEN = 12
"""Tasks whose scores are written into the matrix."""
MOST_MATRICES = 9

Square = list[list[float | None]]


@dataclass(frozen=True)
class Line:
    """The scores of a member: of each task when learned and now, and the average so far."""

    member: Member
    colour: str
    then: list[Spread | None]
    now: list[Spread | None]
    average: list[Spread | None]


def draw_accuracy(collection: Collection) -> Picture | None:
    """Draw the score of each task when learned and now, and below it the average so far."""
    colours = draw.member_colours(collection)
    lines = [
        Line(
            member,
            colours[member.label],
            by_task(member, lambda task: task.test_score),
            by_task(member, lambda task: task.now),
            over_runs([average_after(run) for run in member.runs]),
        )
        for member in collection.members
    ]
    lines = [line for line in lines if any(line.now)]
    if not lines:
        return None
    members = [line.member for line in lines]
    num_tasks = max(len(line.now) for line in lines)
    has_average = num_tasks > 1 and any(map(any, (line.average for line in lines)))
    heights = [1.5, 1.0] if has_average else [1.0]
    figure = draw.new_figure(4.3 if has_average else 2.7)
    grid = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)
    dodged = num_tasks * len(lines) <= MOST_DODGED
    _draw_scores(grid[0, 0], lines, collection, dodged=dodged)
    if has_average:
        _draw_average(grid[1, 0], lines, num_tasks, collection)
    handles = [
        Line2D(
            [], [], color=draw.MUTED, marker="o", mfc=draw.PAPER, ms=6, ls="", label="when learned"
        ),
        Line2D([], [], color=draw.INK, marker="o", ms=3.2, ls="", label="now"),
    ]
    if not dodged:
        handles[0].set(linestyle="--", marker="")
        handles[1].set(linestyle="-", marker="")
    together = [line.member.label for line in lines if not any(line.then)]
    if len(together) == len(lines):
        handles = handles[1:]
    if len(lines) > 1:
        handles += [
            Line2D([], [], color=line.colour, lw=3, label=shortened(line.member.label, 30))
            for line in lines
        ]
    draw.add_legend(figure, handles)
    marks = "Bars and bands" if dodged else "Bands"
    return Picture(
        "accuracy",
        "Each task when learned and now",
        _caption(together, members, dodged=dodged)
        + (" Below: the mean score of all tasks so far." if has_average else "")
        + draw.averaged(members, f"{marks} are standard deviations over {{}}."),
        "; ".join(_describe(line, members) for line in lines) + ".",
        figure,
        _table_of_scores(lines, collection.names, has_average=has_average),
    )


def _caption(together: Sequence[str], members: Sequence[Member], *, dodged: bool) -> str:
    then, now = ("ring", "dot") if dodged else ("dashed", "solid")
    words = f"Test score of each task when it was learned ({then}) and after the last task ({now})."
    if len(together) == len(members):
        words = f"Test score of each task after the last task ({now})."
    else:
        inside = "A dot inside its ring" if dodged else "A solid line on its dashed line"
        words += f" {inside} means that nothing was forgotten."
    if together:
        whose = f" of {draw.in_words(together)}" if len(members) > 1 else ""
        words += f" The tasks{whose} were learned at the same time and have no earlier score."
    return words


def _draw_scores(
    axes: Axes, lines: Sequence[Line], collection: Collection, *, dodged: bool
) -> None:
    shown: list[float] = []
    bounds: list[float] = []
    for index, line in enumerate(lines):
        offset = (index - (len(lines) - 1) / 2) * 0.7 / len(lines) if dodged else 0.0
        x = [place + 1 + offset for place in range(len(line.now))]
        then, now = draw.means_of(line.then), draw.means_of(line.now)
        errors = [0.0 if s is None else s.deviation for s in line.now]
        low, high = ([y + sign * e for y, e in zip(now, errors, strict=True)] for sign in (-1, 1))
        if dodged:
            axes.vlines(x, then, now, color=line.colour, lw=1, alpha=0.5)
            axes.plot(x, then, "o", ms=6, mfc=draw.PAPER, mec=line.colour, mew=0.9)
            if any(errors):
                axes.errorbar(x, now, errors, fmt="none", ecolor=line.colour, elinewidth=0.8)
            axes.plot(x, now, "o", ms=3.2, color=line.colour)
        else:
            axes.plot(x, then, "--", color=line.colour, lw=0.8)
            axes.plot(x, now, "-", color=line.colour, lw=1.3)
            draw.draw_band(axes, x, low, high, line.colour)
        shown += [*then, *now]
        bounds += [*low, *high]
    num_tasks = max(len(line.now) for line in lines)
    draw.name_tasks(axes, collection.names[:num_tasks])
    axes.set_xlim(0.4, num_tasks + 0.6)
    axes.set_ylabel(f"test {collection.score_name}")
    draw.fit_scores(axes, shown, bounds, percent=collection.is_accuracy)


def _draw_average(
    axes: Axes, lines: Sequence[Line], num_tasks: int, collection: Collection
) -> None:
    bounds: list[float] = []
    for index, line in enumerate(lines):
        mark = draw.MARKERS[index % len(draw.MARKERS)] if num_tasks <= 25 else ""
        x = range(1, len(line.average) + 1)
        bounds += draw.draw_line(axes, x, line.average, line.colour, marker=mark)
    shown = [spread.mean for line in lines for spread in line.average if spread]
    draw.number_tasks(axes, num_tasks)
    axes.set_xlim(0.4, num_tasks + 0.6)
    axes.set_xlabel("number of tasks learned")
    axes.set_ylabel("average so far")
    draw.fit_scores(axes, shown, bounds, percent=collection.is_accuracy)


def _describe(line: Line, members: Sequence[Member]) -> str:
    means = [s.mean for s in line.now if s is not None]
    lost = [b.mean - n.mean for b, n in zip(line.then, line.now, strict=True) if b and n]
    worst = max(lost, default=0.0)
    change = "no score has changed" if worst == 0 else f"the largest loss is {worst:.2f}"
    if not lost:
        change = "all learned at the same time"
    average = line.average[-1] if line.average else None
    end = "" if average is None else f", average {average}"
    tasks = f"{draw.named(line.member, members)}{draw.count(len(means), 'task')}"
    return f"{tasks}, now from {min(means):.2f} to {max(means):.2f}{end}; {change}"


def _table_of_scores(lines: Sequence[Line], names: Sequence[str], *, has_average: bool) -> Table:
    titles = ("when learned", "now", *(["average so far"] if has_average else []))
    members = [line.member for line in lines]
    header = ["task", *(f"{draw.named(m, members)}{title}" for m in members for title in titles)]
    columns = [
        column
        for line in lines
        for column in (line.then, line.now, line.average)[: 2 + has_average]
    ]
    rows: list[tuple[Cell, ...]] = []
    for index in range(max(len(line.now) for line in lines)):
        cells = [column[index] if index < len(column) else None for column in columns]
        rows.append((clean(names[index]), *cells))
    return Table(tuple(header), tuple(rows))


def draw_matrix(collection: Collection) -> Picture | None:
    """Draw the score of every task after every task, a square for each member."""
    squares = {member.label: _mean_square(member) for member in collection.members}
    squares = {label: square for label, square in squares.items() if _known(square)}
    if not squares:
        return None
    shown = dict(list(squares.items())[:MOST_MATRICES])
    columns = len(shown) if len(shown) <= 4 else 4 - (len(shown) % 4 != 0)
    rows = math.ceil(len(shown) / columns)
    num_tasks = max(map(len, shown.values()))
    side = min(4.4, 0.9 + 0.34 * num_tasks) if columns == 1 else 6.3 / columns - 0.3
    width = side + 1.0 if columns == 1 else draw.WIDTH
    figure = draw.new_figure(rows * (side + (0.3 if columns > 1 else 0.0)) + 0.5, width=width)
    grid = figure.subplots(rows, columns, squeeze=False)
    known = [value for square in shown.values() for value in _known(square)]
    low, high = min(known), max(known)
    if high - low < 1e-9:
        low, high = low - 1, high + 1
    cells = list(grid.flat)
    meshes = []
    for axes, (label, square) in zip(cells, shown.items(), strict=False):
        meshes.append(_draw_square(axes, square, num_tasks, low=low, high=high))
        if num_tasks <= MOST_WRITTEN and num_tasks * columns <= 20:
            _write_scores(axes, square, meshes[-1], size=6.5 if columns == 1 else 6 - columns / 4)
        if len(shown) > 1:
            axes.set_title(shortened(clean(label), 30))
    for axes in cells[len(shown) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel("after task")
    if columns == 1:
        cells[0].set_xlabel("test score of task")
    else:
        figure.supxlabel("test score of task")
    label = f"test {collection.score_name}"
    draw.add_colour_bar(figure, meshes[-1], cells, label, shrink=0.9, aspect=30, pad=0.02)
    left_out = len(squares) - len(shown)
    more = f" {left_out} more are in the table." if left_out else ""
    return Picture(
        "matrix",
        "Every task after every task",
        "Row i has the test scores of all tasks so far after task i. A column with one colour from "
        f"top to bottom is a task of which nothing was forgotten.{more}",
        f"Accuracy matrix of {draw.in_words(list(squares))}; scores from {min(known):.2f} to "
        f"{max(known):.2f}.",
        figure,
        _table_of_squares(squares, collection.names),
    )


def _mean_square(member: Member) -> Square:
    num = max(len(run.scores) for run in member.runs)
    rows: Square = []
    for i in range(num):
        spreads = over_runs([run.scores[i] for run in member.runs if i < len(run.scores)])
        rows.append([s.mean if s else None for s in spreads])
    return rows


def _known(square: Square) -> list[float]:
    return [value for row in square for value in row if value is not None]


def _draw_square(
    axes: Axes, square: Square, num_tasks: int, *, low: float, high: float
) -> QuadMesh:
    values = [draw.finite([*row, *[None] * (num_tasks - len(row))]) for row in square]
    edges = [index + 0.5 for index in range(num_tasks + 1)]
    mesh = axes.pcolormesh(
        edges,
        edges[: len(square) + 1],
        values,
        cmap=draw.ORDERED,
        vmin=low,
        vmax=high,
        rasterized=num_tasks > 60,
        # Neighbours without a border leave a gap of less than a pixel.
        lw=0.4 if num_tasks <= 20 else 0.6,
        edgecolor=draw.PAPER if num_tasks <= 20 else "face",
    )
    # On a dark page the darkest colour is almost that of the page.
    corners = [(0.5, 0.5)]
    for index in range(1, len(square) + 1):
        corners += [(index + 0.5, index - 0.5), (index + 0.5, index + 0.5)]
    corners.append((0.5, len(square) + 0.5))
    axes.add_patch(Polygon(corners, fill=False, ec=draw.LINE, lw=1.2, zorder=0))
    axes.set_aspect("equal")
    axes.set_ylim(num_tasks + 0.5, 0.5)
    draw.number_tasks(axes, num_tasks)
    axes.set_xlabel("")
    axes.set_yticks(axes.get_xticks())
    draw.without_frame(axes)
    return mesh


def _write_scores(axes: Axes, square: Square, mesh: QuadMesh, *, size: float) -> None:
    for i, row in enumerate(square):
        for j, value in enumerate(row):
            if value is not None:
                colour = draw.on(draw.colour_of(mesh, value))
                text = f"{value:.1f}" if abs(value) < 99.95 else f"{value:.3g}"
                axes.text(j + 1, i + 1, text, size=size, color=colour, ha="center", va="center")


def _table_of_squares(squares: dict[str, Square], names: Sequence[str]) -> Table:
    several = len(squares) > 1
    num = max(map(len, squares.values()))
    header = [*(["method or run"] if several else []), "after", *map(clean, names[:num])]
    rows: list[tuple[Cell, ...]] = []
    for label, square in squares.items():
        for i, row in enumerate(square):
            cells = [None if value is None else Spread(value) for value in row]
            first = [clean(label)] if several else []
            rows.append((*first, clean(names[i]), *cells, *[None] * (num - len(cells))))
    return Table(tuple(header), tuple(rows))

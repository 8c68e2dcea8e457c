"""The figure of the accuracy matrix: every task after every task."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.patches import Polygon

from clnp.text import clean, shortened

from .collection import Collection, Member
from .measures import Rounded, Spread, over_runs
from .picture import Cell, Picture, Table, finite, in_words, new_figure, number_tasks
from .style import LINE, ORDERED, PAPER, WIDTH, colour_of, on

MOST_WRITTEN = 12
"""Tasks whose scores are written into the matrix."""
MOST_MATRICES = 9
"""Squares in a figure; more are in its table."""

Square = list[list[float | None]]


def draw_matrix(collection: Collection) -> Picture | None:
    """The score of every task after every task, a square for each member; None before the first."""
    squares = {member.label: _mean_square(member) for member in collection.members}
    squares = {label: square for label, square in squares.items() if _known(square)}
    if not squares:
        return None
    shown = dict(list(squares.items())[:MOST_MATRICES])
    columns = len(shown) if len(shown) <= 4 else 4 - (len(shown) % 4 != 0)
    rows = math.ceil(len(shown) / columns)
    num_tasks = max(map(len, shown.values()))
    side = min(4.4, 0.9 + 0.34 * num_tasks) if columns == 1 else 6.3 / columns - 0.3
    width = side + 1.0 if columns == 1 else WIDTH
    figure = new_figure(rows * (side + (0.3 if columns > 1 else 0.0)) + 0.5, width=width)
    grid = figure.subplots(rows, columns, squeeze=False)
    known = [value for square in shown.values() for value in _known(square)]
    low, high = min(known), max(known)
    if high - low < 1e-9:
        low, high = low - 1, high + 1
    mesh = None
    cells = list(grid.flat)
    for axes, (label, square) in zip(cells, shown.items(), strict=False):
        mesh = _draw_square(axes, square, num_tasks, low=low, high=high)
        if num_tasks <= MOST_WRITTEN and num_tasks * columns <= 20:
            _write_scores(axes, square, mesh, size=6.5 if columns == 1 else 6 - columns / 4)
        if len(shown) > 1:
            axes.set_title(shortened(clean(label), 30))
    for axes in cells[len(shown) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel("after learning task")
    if columns == 1:
        cells[0].set_xlabel("test score of task")
    else:
        figure.supxlabel("test score of task")
    assert mesh is not None
    bar = figure.colorbar(mesh, ax=cells, shrink=0.9, aspect=30, pad=0.02)
    bar.set_label(f"test {collection.score_name}")
    bar.outline.set_linewidth(0)
    left_out = len(squares) - len(shown)
    more = f" {left_out} more are in the table." if left_out else ""
    return Picture(
        "matrix",
        "Every task after every task",
        "Row i shows the test scores of the tasks so far once task i had been learnt. A column "
        f"that keeps its colour from top to bottom is a task that is not forgotten.{more}",
        f"Accuracy matrix of {in_words(list(squares))}; scores from {min(known):.2f} to "
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
    values = [finite([*row, *[None] * (num_tasks - len(row))]) for row in square]
    edges = [place + 0.5 for place in range(num_tasks + 1)]
    mesh = axes.pcolormesh(
        edges,
        edges[: len(square) + 1],
        values,
        cmap=ORDERED,
        vmin=low,
        vmax=high,
        rasterized=num_tasks > 60,
        # Neighbours without a border leave a gap of less than a pixel.
        lw=0.4 if num_tasks <= 20 else 0.6,
        edgecolor=PAPER if num_tasks <= 20 else "face",
    )
    # On a dark page the darkest colour is all but that of the page.
    corners = [(0.5, 0.5)]
    for place in range(1, len(square) + 1):
        corners += [(place + 0.5, place - 0.5), (place + 0.5, place + 0.5)]
    corners.append((0.5, len(square) + 0.5))
    axes.add_patch(Polygon(corners, fill=False, ec=LINE, lw=1.2, zorder=0))
    axes.set_aspect("equal")
    axes.set_ylim(num_tasks + 0.5, 0.5)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    number_tasks(axes, num_tasks)
    axes.set_xlabel("")
    axes.set_yticks(axes.get_xticks())
    axes.tick_params(length=0)
    return mesh


def _write_scores(axes: Axes, square: Square, mesh: QuadMesh, *, size: float) -> None:
    for i, row in enumerate(square):
        for j, value in enumerate(row):
            if value is not None:
                colour = on(colour_of(mesh, value))
                text = f"{value:.1f}" if abs(value) < 99.95 else f"{value:.3g}"
                axes.text(j + 1, i + 1, text, size=size, color=colour, ha="center", va="center")


def _table_of_squares(squares: dict[str, Square], names: Sequence[str]) -> Table:
    several = len(squares) > 1
    num = max(map(len, squares.values()))
    header = [*(["method or run"] if several else []), "after", *map(clean, names[:num])]
    rows: list[tuple[Cell, ...]] = []
    for label, square in squares.items():
        for i, row in enumerate(square):
            cells = [None if v is None else Rounded(Spread(v, 0.0, 1)) for v in row]
            first = [clean(label)] if several else []
            rows.append((*first, clean(names[i]), *cells, *[None] * (num - len(cells))))
    return Table(tuple(header), tuple(rows))

"""Figures of scores: each task when learnt and now, the average, and the accuracy matrix."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon

from .collection import Collection, Member
from .labels import clean, shortened
from .measures import Spread, average_after, by_task, over_runs
from .picture import (
    Cell,
    Picture,
    Table,
    add_legend,
    counted,
    finite,
    fit_scores,
    in_words,
    name_tasks,
    new_figure,
    number_tasks,
)
from .style import INK, LINE, MARKERS, MUTED, ORDERED, PAPER, WIDTH, categories, colour_of, on

MOST_DODGED = 80
"""Pairs of marks that stand beside one another; more of them are lines."""
MOST_WRITTEN = 12
"""Tasks whose scores are written into the matrix."""
MOST_MATRICES = 9


def draw_scores(collection: Collection) -> Picture | None:
    """The test score of each task when it was learnt and now; None before the first task."""
    members = [m for m in collection.members if any(_spreads(m)[1])]
    if not members:
        return None
    figure = new_figure(2.9)
    axes = figure.subplots()
    shown: list[float] = []
    bounds: list[float] = []
    colours = categories(len(members))
    dodged = collection.num_tasks * len(members) <= MOST_DODGED
    for place, member in enumerate(members):
        offset = (place - (len(members) - 1) / 2) * 0.7 / len(members) if dodged else 0.0
        before, now = _spreads(member)
        drawn = _draw_pair(axes, before, now, colours[place], offset=offset, dodged=dodged)
        shown, bounds = [*shown, *drawn[0]], [*bounds, *drawn[1]]
    name_tasks(axes, collection.names[: collection.num_tasks])
    axes.set_xlim(0.4, collection.num_tasks + 0.6)
    axes.set_ylabel(f"test {collection.score_name}")
    fit_scores(axes, shown, bounds, percent="accuracy" in collection.score_name)
    if len(members) == 1:
        _draw_mean(axes, _spreads(members[0])[1])
    handles = [
        Line2D([], [], color=MUTED, marker="o", mfc=PAPER, ms=6, ls="", label="when learnt"),
        Line2D([], [], color=INK, marker="o", ms=3.2, ls="", label="now"),
    ]
    if not dodged:
        handles[0].set(linestyle="--", marker="")
        handles[1].set(linestyle="-", marker="")
    if len(members) > 1:
        handles += [
            Line2D([], [], color=colour, lw=3, label=shortened(clean(m.label), 30))
            for colour, m in zip(colours, members, strict=True)
        ]
    add_legend(figure, handles)
    seeds = _seeds(members)
    marks = "Bars" if dodged else "Bands"
    bars = f" {marks} are standard deviations over {seeds}." if seeds else ""
    then, last = ("ring", "dot") if dodged else ("dashed", "solid")
    inside = "A dot inside its ring" if dodged else "A line that hides its dashes"
    words = (
        f"Test score of every task when it had just been learnt ({then}) and after the last task "
        f"({last}). {inside} is a task of which nothing was forgotten."
    )
    return Picture(
        "accuracy",
        "Each task when learnt and now",
        f"{words}{bars}",
        _describe_scores(members),
        figure,
        _table_of_scores(members, collection.names),
    )


def _draw_mean(axes: Axes, now: Sequence[Spread | None]) -> None:
    """A line at the average, with the number beside it."""
    means = [s.mean for s in now if s is not None]
    mean = sum(means) / len(means)
    axes.axhline(mean, color=MUTED, lw=0.7, ls=(0, (4, 3)), zorder=1)
    axes.annotate(
        f"average\n{mean:.2f}",
        (1, mean),
        xycoords=("axes fraction", "data"),
        xytext=(4, 0),
        textcoords="offset points",
        size=7,
        color=MUTED,
        va="center",
    )


def _spreads(member: Member) -> tuple[list[Spread | None], list[Spread | None]]:
    return by_task(member, lambda t: t.test_score), by_task(member, lambda t: t.now)


def _draw_pair(
    axes: Axes,
    before: Sequence[Spread | None],
    now: Sequence[Spread | None],
    colour: str,
    *,
    offset: float,
    dodged: bool,
) -> tuple[list[float], list[float]]:
    """Rings and dots, or lines where they would be too many; what was drawn, and its bounds."""
    x = [place + 1 + offset for place in range(len(now))]
    then_y, now_y = (finite([s and s.mean for s in row]) for row in (before, now))
    errors = [0.0 if s is None else s.deviation for s in now]
    if dodged:
        axes.vlines(x, then_y, now_y, color=colour, lw=1, alpha=0.5)
        axes.plot(x, then_y, "o", ms=6, mfc=PAPER, mec=colour, mew=0.9)
        if any(errors):
            axes.errorbar(x, now_y, errors, fmt="none", ecolor=colour, elinewidth=0.8)
        axes.plot(x, now_y, "o", ms=3.2, color=colour)
    else:
        axes.plot(x, then_y, "--", color=colour, lw=0.8)
        axes.plot(x, now_y, "-", color=colour, lw=1.3)
        low = [y - e for y, e in zip(now_y, errors, strict=True)]
        high = [y + e for y, e in zip(now_y, errors, strict=True)]
        axes.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
    bounds = [y + sign * e for y, e in zip(now_y, errors, strict=True) for sign in (-1, 1)]
    return [*then_y, *now_y], bounds


def _describe_scores(members: Sequence[Member]) -> str:
    parts = []
    for member in members:
        before, now = _spreads(member)
        means = [s.mean for s in now if s is not None]
        lost = [b.mean - n.mean for b, n in zip(before, now, strict=True) if b and n]
        worst = max(lost, default=0.0)
        change = "no score has changed" if worst == 0 else f"the largest loss is {worst:.2f}"
        parts.append(
            f"{clean(member.label)}: {counted(len(means), 'task')}, now from {min(means):.2f} to "
            f"{max(means):.2f}, {change}"
        )
    return "; ".join(parts) + "."


def _table_of_scores(members: Sequence[Member], names: Sequence[str]) -> Table:
    header = ["task"]
    for member in members:
        label = f"{clean(member.label)}: " if len(members) > 1 else ""
        header += [f"{label}when learnt", f"{label}now"]
    pairs = [_spreads(member) for member in members]
    rows = []
    for place in range(max(len(now) for _, now in pairs)):
        row: list[Cell] = [clean(names[place])]
        for before, now in pairs:
            for spreads in (before, now):
                spread = spreads[place] if place < len(spreads) else None
                row.append(spread.text() if spread else None)
        rows.append(tuple(row))
    return Table(tuple(header), tuple(rows))


def _seeds(members: Sequence[Member]) -> str:
    most = max(len(member.runs) for member in members)
    return f"{most} seeds" if most > 1 else ""


def draw_average(collection: Collection) -> Picture | None:
    """The average score of the tasks learnt so far, after each task; None for fewer than two."""
    lines = {
        member.label: over_runs([average_after(run) for run in member.runs])
        for member in collection.members
    }
    lines = {label: line for label, line in lines.items() if any(line)}
    num_tasks = max(map(len, lines.values()), default=0)
    if num_tasks < 2:
        return None
    figure = new_figure(2.5)
    axes = figure.subplots()
    shown: list[float] = []
    bounds: list[float] = []
    for place, (label, line) in enumerate(lines.items()):
        colour = categories(len(lines))[place]
        y = finite([s and s.mean for s in line])
        errors = [0.0 if s is None else s.deviation for s in line]
        x = range(1, len(y) + 1)
        low = [a - b for a, b in zip(y, errors, strict=True)]
        high = [a + b for a, b in zip(y, errors, strict=True)]
        if any(errors):
            axes.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
        mark = MARKERS[place % len(MARKERS)] if num_tasks <= 25 else ""
        axes.plot(x, y, color=colour, marker=mark, label=shortened(clean(label), 30))
        shown, bounds = [*shown, *y], [*bounds, *low, *high]
    number_tasks(axes, num_tasks)
    axes.set_xlabel("tasks learnt")
    axes.set_ylabel(f"average test {collection.score_name}")
    fit_scores(axes, shown, bounds, percent="accuracy" in collection.score_name)
    if len(lines) > 1:
        add_legend(figure, [line for line in axes.lines if line.get_marker() is not None])
    names = [clean(label) for label in lines]
    ends = [(name, line[-1]) for name, line in zip(names, lines.values(), strict=True)]
    seeds = _seeds(collection.members)
    bands = f" Bands are standard deviations over {seeds}." if seeds else ""
    header = ("tasks learnt", *(names if len(names) > 1 else ["average"]))
    rows: list[tuple[Cell, ...]] = []
    for k in range(num_tasks):
        at = [line[k] if k < len(line) else None for line in lines.values()]
        rows.append((k + 1, *(s.text() if s else None for s in at)))
    return Picture(
        "average",
        "Average over the tasks so far",
        "Mean test score of all tasks learnt so far, after each of them. It falls when tasks are "
        f"forgotten, and when later tasks are harder.{bands}",
        "At the end: " + ", ".join(f"{n} {s.text() if s else 'unknown'}" for n, s in ends) + ".",
        figure,
        Table(header, tuple(rows)),
    )


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


Square = list[list[float | None]]


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
            cells = [None if v is None else f"{v:.2f}" for v in row]
            first = [clean(label)] if several else []
            rows.append((*first, clean(names[i]), *cells, *[None] * (num - len(cells))))
    return Table(tuple(header), tuple(rows))

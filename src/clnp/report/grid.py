"""The figure of the grid: every candidate of every task, and the one that was chosen."""

import math
import textwrap

from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.patches import Rectangle

from clnp.runs.records import CandidateHistory
from clnp.text import clean, shortened

from .collection import Collection, Member
from .measures import Spread, spread_of
from .picture import Cell, Picture, Table, counted, name_tasks, new_figure
from .style import INK, LINE, ORDERED, PAPER, colour_of, on

MOST_WRITTEN = 10
"""Tasks whose candidates are written into their places."""
MOST_ROWS = 40


def draw_grid(collection: Collection) -> Picture | None:
    """Score and neurons kept of every candidate; None unless a task has several, or runs differ."""
    if len(collection.members) > 1:
        return None
    member = collection.members[0]
    if all(len(task.candidates) < 2 for run in member.runs for task in run.tasks):
        return None
    names = list(
        dict.fromkeys(c.name for run in member.runs for t in run.tasks for c in t.candidates)
    )
    shown = names[:MOST_ROWS]
    tasks = collection.names
    figure = new_figure(0.32 * len(shown) + 1.15)
    axes = figure.subplots()
    values = [[_behind(member, place, name) for place in range(len(tasks))] for name in shown]
    edges = [place + 0.5 for place in range(len(tasks) + 1)]
    rows = [place - 0.5 for place in range(len(shown) + 1)]
    lowest = min((v for row in values for v in row if math.isfinite(v)), default=-1.0)
    mesh = axes.pcolormesh(
        edges, rows, values, cmap=ORDERED, vmin=min(lowest, -0.01), vmax=0, lw=0.6, edgecolor=PAPER
    )
    for row, name in enumerate(shown):
        for place in range(len(tasks)):
            _mark(axes, member, place, name, row, mesh=mesh, written=len(tasks) <= MOST_WRITTEN)
    axes.set_yticks(range(len(shown)), [_wrapped(name) for name in shown])
    axes.set_ylim(len(shown) - 0.45, -0.55)
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    name_tasks(axes, tasks, width=4.6)
    bar = figure.colorbar(mesh, ax=axes, aspect=16, pad=0.015)
    bar.set_label("against the best")
    bar.outline.set_linewidth(0)
    bar.ax.tick_params(length=0)
    seeds = len(member.runs)
    written = ""
    if len(tasks) <= MOST_WRITTEN:
        written = ", its score and, below it, the neurons that it keeps when pruned"
    chosen = "The chosen one has " + ("a frame" if len(tasks) <= MOST_WRITTEN else "a dot")
    over = f" Means over {seeds} seeds." if seeds > 1 else ""
    many = f" The first {MOST_ROWS} of {len(names)} are drawn." if len(names) > MOST_ROWS else ""
    return Picture(
        "grid",
        "The grid",
        "Every candidate of every task: its validation score before pruning against the best of "
        f"the task (colour){written}. {chosen}; a cross is one that diverged.{over}{many}",
        f"{counted(len(names), 'candidate')} and {counted(len(tasks), 'task')}.",
        figure,
        _table(member),
    )


def _wrapped(name: str) -> str:
    """The name of a candidate on two lines, where each layer has an alpha of its own."""
    return "\n".join(textwrap.wrap(shortened(clean(name), 70), 36))


def _found(member: Member, place: int, name: str) -> list[tuple[CandidateHistory, bool]]:
    """The candidate of that name in every run, and whether it was chosen there."""
    return [
        (candidate, candidate is task.chosen)
        for task in member.task(place)
        for candidate in task.candidates
        if candidate.name == name
    ]


def _score(member: Member, place: int, name: str) -> Spread | None:
    return spread_of(c.score for c, _ in _found(member, place, name))


def _behind(member: Member, place: int, name: str) -> float:
    """The score less the best of its task; `nan` where there is none."""
    names = {c.name for task in member.task(place) for c in task.candidates}
    known = [s.mean for s in (_score(member, place, each) for each in names) if s is not None]
    own = _score(member, place, name)
    return own.mean - max(known) if own is not None else math.nan


def _mark(
    axes: Axes, member: Member, place: int, name: str, row: int, *, mesh: QuadMesh, written: bool
) -> None:
    """Write the numbers of a candidate into its place, and frame the one that was chosen."""
    found = _found(member, place, name)
    x = place + 1
    if not found:
        return
    score = _score(member, place, name)
    if score is None:
        axes.text(x, row, "\u00d7", color=INK, ha="center", va="center")
        axes.add_patch(Rectangle((x - 0.5, row - 0.5), 1, 1, fill=False, ec=LINE, lw=0.6))
        return
    colour = on(colour_of(mesh, _behind(member, place, name)))
    num_chosen = sum(chosen for _, chosen in found)
    kept = spread_of(c.pruning.num_kept for c, _ in found if c.pruning is not None)
    if written:
        text = f"{score.mean:.1f}" + (f"\n{kept.mean:.0f}" if kept else "")
        axes.text(x, row, text, size=6, color=colour, ha="center", va="center", linespacing=1.1)
    if num_chosen and not written:
        axes.plot(x, row, "o", color=colour, ms=2.5, mew=0)
    elif num_chosen:
        corner = (x - 0.5 + 0.06, row - 0.5 + 0.07)
        axes.add_patch(Rectangle(corner, 0.88, 0.86, fill=False, ec=colour, lw=1.3))


def _table(member: Member) -> Table:
    several = len(member.runs) > 1
    rows: list[tuple[Cell, ...]] = []
    for run in member.runs:
        for task in run.tasks:
            for candidate in task.candidates:
                pruning = candidate.pruning
                state = "chosen" if candidate is task.chosen else ""
                head: list[Cell] = [f"seed {run.seed}"] if several else []
                rows.append(
                    (
                        *head,
                        clean(task.name),
                        candidate.alpha,
                        None if candidate.lr is None else f"{candidate.lr:g}",
                        None if candidate.score is None else f"{candidate.score:.2f}",
                        None if pruning is None else pruning.num_kept,
                        f"diverged: {clean(candidate.diverged)}" if candidate.diverged else state,
                    )
                )
    first = ("run", "task") if several else ("task",)
    return Table((*first, "alpha", "lr", "validation score", "neurons kept", ""), tuple(rows))

"""Figures of scores: each task when learnt and now, and the average over the tasks so far."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from clnp.text import clean, shortened

from .collection import Collection, Member
from .measures import Spread, average_after, by_task, over_runs, rounded
from .picture import (
    Cell,
    Picture,
    Table,
    add_legend,
    counted,
    finite,
    fit_scores,
    in_words,
    member_colours,
    name_tasks,
    new_figure,
    number_tasks,
    seeds_of,
)
from .style import INK, MARKERS, MUTED, PAPER

MOST_DODGED = 80
"""Pairs of marks that stand beside one another; more of them are lines."""


def draw_scores(collection: Collection) -> Picture | None:
    """The test score of each task when it was learnt and now; None before the first task."""
    members = [m for m in collection.members if any(_spreads(m)[1])]
    if not members:
        return None
    figure = new_figure(2.9)
    axes = figure.subplots()
    shown: list[float] = []
    bounds: list[float] = []
    colours = [member_colours(collection)[member.label] for member in members]
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
    at_once = [clean(m.label) for m in members if not any(_spreads(m)[0])]
    if len(at_once) == len(members):
        handles = handles[1:]
    if len(members) > 1:
        handles += [
            Line2D([], [], color=colour, lw=3, label=shortened(clean(m.label), 30))
            for colour, m in zip(colours, members, strict=True)
        ]
    add_legend(figure, handles)
    seeds = seeds_of(members)
    marks = "Bars" if dodged else "Bands"
    bars = f" {marks} are standard deviations over {seeds}." if seeds else ""
    then, last = ("ring", "dot") if dodged else ("dashed", "solid")
    inside = "A dot inside its ring" if dodged else "A line that hides its dashes"
    words = (
        f"Test score of every task when it had just been learnt ({then}) and after the last task "
        f"({last}). {inside} is a task of which nothing was forgotten."
    )
    if len(at_once) == len(members):
        words = f"Test score of every task after the last task ({last})."
    if at_once:
        who = f" of {in_words(at_once)}" if len(members) > 1 else ""
        words += f" The tasks{who} were learnt at the same time: they have no score of before."
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
        if not lost:
            change = "all learnt at the same time"
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
                row.append(rounded(spread))
        rows.append(tuple(row))
    return Table(tuple(header), tuple(rows))


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
        colour = member_colours(collection)[label]
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
    seeds = seeds_of([m for m in collection.members if m.label in lines])
    bands = f" Bands are standard deviations over {seeds}." if seeds else ""
    header = ("tasks learnt", *(names if len(names) > 1 else ["average"]))
    rows: list[tuple[Cell, ...]] = []
    for k in range(num_tasks):
        at = [line[k] if k < len(line) else None for line in lines.values()]
        rows.append((k + 1, *map(rounded, at)))
    return Picture(
        "average",
        "Average over the tasks so far",
        "Mean test score of all tasks learnt so far, after each of them. It falls when tasks are "
        f"forgotten, and when later tasks are harder.{bands}",
        "At the end: " + ", ".join(f"{n} {s.text() if s else 'unknown'}" for n, s in ends) + ".",
        figure,
        Table(header, tuple(rows)),
    )

"""The figure of test scores: each task when it was learned and now, and the average so far."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from clnp.palette import INK, MUTED, PAPER
from clnp.report import draw
from clnp.report.collection import Collection, Member
from clnp.report.draw import Picture
from clnp.report.measures import average_after, by_task, over_runs
from clnp.studies.tables import Mean, Table
from clnp.text import clean, shortened

MOST_LARGE = 80
"""Pairs of marks beside one another. If there are more, the marks are smaller."""


@dataclass(frozen=True)
class Line:
    """The scores of a member: of each task when learned and now, and the average so far."""

    member: Member
    colour: str
    then: list[Mean | None]
    now: list[Mean | None]
    average: list[Mean | None]


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
    names = collection.names[: max(len(line.now) for line in lines)]
    figure = draw.new_figure(4.3)
    upper, lower = figure.subplots(2, 1, height_ratios=[1.5, 1.0])
    _draw_scores(upper, lines)
    draw.name_tasks(upper, names)
    upper.set_ylabel(f"test {collection.score_name}")
    _draw_averages(lower, lines)
    draw.number_tasks(lower)
    lower.set(xlim=upper.get_xlim(), xlabel="number of tasks learned", ylabel="average so far")
    for axes in (upper, lower):
        draw.fit_scores(axes, percent=collection.is_accuracy)
    handles = [
        Line2D([], [], color=MUTED, marker="o", mfc=PAPER, ms=6, ls="", label="when learned"),
        Line2D([], [], color=INK, marker="o", ms=3.2, ls="", label="now"),
    ]
    if len(lines) > 1:
        handles += [
            Line2D([], [], color=line.colour, lw=3, label=shortened(line.member.label, 30))
            for line in lines
        ]
    draw.add_legend(figure, handles)
    together = " Tasks without a ring were learned at the same time."
    return Picture(
        "accuracy",
        "Each task when learned and now",
        "Test score of each task when it was learned (ring) and after the last task (dot). A dot "
        "inside its ring means that nothing was forgotten."
        f"{'' if all(any(line.then) for line in lines) else together} Below: the mean score of all "
        "tasks so far." + draw.averaged(members, "Bars and bands are standard deviations over {}."),
        "; ".join(_describe(line, members) for line in lines) + ".",
        figure,
        _table(lines, names),
    )


def _draw_scores(axes: Axes, lines: Sequence[Line]) -> None:
    crowded = sum(len(line.now) for line in lines) > MOST_LARGE
    for index, line in enumerate(lines):
        offset = (index - (len(lines) - 1) / 2) * 0.7 / len(lines)
        x = [number + offset for number in range(1, len(line.now) + 1)]
        then, now = draw.means_of(line.then), draw.means_of(line.now)
        axes.vlines(x, then, now, color=line.colour, lw=1, alpha=0.5)
        ring = 3.5 if crowded else 6.0
        axes.plot(x, then, "o", ms=ring, mfc=PAPER, mec=line.colour, mew=0.15 * ring)
        errors = draw.deviations_of(line.now)
        axes.errorbar(x, now, errors, fmt="none", ecolor=line.colour, elinewidth=0.8)
        axes.plot(x, now, "o", ms=0.53 * ring, color=line.colour)


def _draw_averages(axes: Axes, lines: Sequence[Line]) -> None:
    for line in lines:
        x = range(1, len(line.average) + 1)
        means, errors = draw.means_of(line.average), draw.deviations_of(line.average)
        low, high = ([m + sign * e for m, e in zip(means, errors, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=line.colour, alpha=0.18, lw=0)
        axes.plot(x, means, color=line.colour, marker="o" if len(means) <= 25 else "", ms=3)


def _describe(line: Line, members: Sequence[Member]) -> str:
    means = [spread.mean for spread in line.now if spread is not None]
    lost = [b.mean - n.mean for b, n in zip(line.then, line.now, strict=True) if b and n]
    worst = max(lost, default=0.0)
    change = f"the largest loss is {worst:.2f}" if worst else "no score has changed"
    if not lost:
        change = "all learned at the same time"
    tasks = f"{draw.named(line.member, members)}{draw.count(len(means), 'task')}"
    average = f", average {line.average[-1]}" if line.average[-1] else ""
    return f"{tasks}, now from {min(means):.2f} to {max(means):.2f}{average}; {change}"


def _table(lines: Sequence[Line], names: Sequence[str]) -> Table:
    members = [line.member for line in lines]
    titles = ("when learned", "now", "average so far")
    header = [f"{draw.named(m, members)}{title}" for m in members for title in titles]
    columns = [column for line in lines for column in (line.then, line.now, line.average)]
    rows = [
        (clean(name), *(column[index] if index < len(column) else None for column in columns))
        for index, name in enumerate(names)
    ]
    return Table(("task", *header), tuple(rows))

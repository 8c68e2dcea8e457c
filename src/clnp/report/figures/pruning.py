"""The figure of pruning: the score against the neurons kept, task by task."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from clnp.core.pruning.plan import PruningPlan
from clnp.palette import INK, MARGIN, MUTED
from clnp.report import draw
from clnp.report.collection import Collection, Member
from clnp.report.draw import Picture
from clnp.runs.history import CandidateHistory
from clnp.studies.tables import Cell, Mean, Table
from clnp.text import clean, shortened

BELOW = 6
"""Margins below the best score that are shown. Curves continue further down."""
BEYOND = 3
"""How many times the neurons kept are shown. Curves continue further to the right."""


@dataclass(frozen=True)
class Pruning:
    """A candidate that was pruned: the plan, and whether the task ended with it."""

    member: Member
    seed: int | None
    index: int
    candidate: CandidateHistory
    plan: PruningPlan
    chosen: bool

    @property
    def best(self) -> float:
        """The score of the best candidate before pruning."""
        known = self.plan.best
        return max(point.score for point in self.plan.curve) if known is None else known

    @property
    def points(self) -> list[tuple[int, float]]:
        """The numbers of neurons that were tried, and how far the score was from the best."""
        return sorted((p.num_kept, p.score - self.best) for p in self.plan.curve)

    @property
    def lowest(self) -> float:
        """The lowest difference that is shown."""
        floor = -BELOW * max(self.plan.margin or 0.0, 0.25)
        return max(min(y for _, y in self.points), floor)


def draw_pruning(collection: Collection) -> Picture | None:
    """Draw score against neurons kept for each task; None if nothing was pruned."""
    found = _prunings(collection)
    if not found:
        return None
    names, colours = collection.names, draw.member_colours(collection)
    members = [m for m in collection.members if any(pruning.member is m for pruning in found)]
    pruned = sorted({pruning.index for pruning in found})
    shown = pruned[: draw.MOST_PANELS]
    figure = draw.new_figure(draw.panels_height(len(shown)) + 0.75)
    titles = draw.task_titles(names)
    panels = draw.add_panels(figure, [titles[index] for index in shown])
    for axes, index in zip(panels, shown, strict=True):
        own = [pruning for pruning in found if pruning.index == index]
        axes.axhspan(-max(p.plan.margin or 0.0 for p in own), 0, color=MARGIN, alpha=0.22, lw=0)
        for pruning in own:
            _draw_curve(axes, pruning, colours[pruning.member.label])
    _fit(panels[0], found)
    figure.supxlabel("neurons kept in all layers")
    figure.supylabel(
        "difference from best, points" if collection.is_accuracy else "difference from best score"
    )
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=MUTED, marker="o", ms=2, lw=1, label="evaluated"),
        Line2D([], [], color=INK, marker="*", ms=7, ls="", label="chosen"),
        Patch(color=MARGIN, alpha=0.22, lw=0, label="within the margin"),
    ]
    if len(members) > 1:
        handles += [
            Line2D([], [], color=colours[m.label], lw=3, label=shortened(m.label, 24))
            for m in members
        ]
    draw.add_legend(figure, handles)
    others = " Other candidates that were pruned are pale."
    return Picture(
        "pruning",
        "Score against neurons kept",
        "Validation score of each task for every set of neurons that was evaluated, compared with "
        "the best candidate before pruning. The sparsest network within the margin is chosen."
        f"{'' if all(pruning.chosen for pruning in found) else others} Curves continue outside the "
        "frame; scores far outside the margin may be from a part of the validation data."
        f"{draw.averaged(members, 'There is a curve and a star for each of {}.')}"
        f"{draw.left_out(len(pruned), len(shown), 'tasks')}",
        "; ".join(_describe(member, members, found) for member in members) + ".",
        figure,
        _table(collection, found),
    )


def _prunings(collection: Collection) -> list[Pruning]:
    """Return what was chosen for each task, and for a single run also the other candidates."""
    return [
        Pruning(member, run.seed, index, candidate, candidate.plan, candidate is task.chosen)
        for member in collection.members
        for run in member.runs
        for index, task in enumerate(run.tasks)
        for candidate in task.candidates
        if candidate.plan is not None and candidate.plan.curve
        if candidate is task.chosen or collection.single is not None
    ]


def _draw_curve(axes: Axes, pruning: Pruning, colour: str) -> None:
    x, y = zip(*pruning.points, strict=True)
    alpha = 1.0 if pruning.chosen else 0.4
    axes.plot(x, y, color=colour, marker="o", ms=1.8, lw=0.8, alpha=alpha)
    if pruning.chosen and pruning.plan.score is not None:
        end = (pruning.plan.num_kept, pruning.plan.score - pruning.best)
        axes.plot(*end, "*", ms=6, color=INK, mew=0, zorder=4, clip_on=False)


def _fit(axes: Axes, found: Sequence[Pruning]) -> None:
    """Show the curves as far as they tell something about the choice."""
    low = min(-0.5, *(pruning.lowest for pruning in found))
    high = max(y for pruning in found for _, y in pruning.points)
    axes.set_ylim(1.05 * low, max(-0.18 * low, 1.1 * high))
    last = max(x for pruning in found for x, _ in pruning.points)
    kept = max(pruning.plan.num_kept for pruning in found)
    axes.set_xlim(0, 1.05 * min(last, BEYOND * kept) or 1.0)


def _describe(member: Member, members: Sequence[Member], found: Sequence[Pruning]) -> str:
    own = [pruning for pruning in found if pruning.member is member]
    kept = [pruning.plan.num_kept for pruning in own]
    curves = draw.count(len(own), "curve")
    return f"{draw.named(member, members)}{curves}; {min(kept)} to {max(kept)} neurons are kept"


def _table(collection: Collection, found: Sequence[Pruning]) -> Table:
    """Return all thresholds that were evaluated, from the lowest, and which was chosen."""
    several = collection.single is None
    rows: list[tuple[Cell, ...]] = []
    for pruning in sorted(found, key=lambda pruning: pruning.index):
        plan = pruning.plan
        for point in sorted(plan.curve, key=lambda point: -point.num_kept):
            same = (point.num_kept, point.score) == (plan.num_kept, plan.score)
            theta = "one for each layer" if point.theta is None else f"{point.theta:.4g}"
            rows.append(
                (
                    *([f"{pruning.member.label}, seed {pruning.seed}"] if several else []),
                    clean(collection.names[pruning.index]),
                    clean(pruning.candidate.name),
                    "keep all" if point.theta == -1 else theta,
                    point.num_kept,
                    Mean(point.score),
                    "chosen" if same and pruning.chosen else "",
                )
            )
    first = ("run", "task", "candidate") if several else ("task", "candidate")
    return Table((*first, "threshold", "neurons kept", "validation score", ""), tuple(rows))

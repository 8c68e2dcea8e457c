"""The figure of capacity: new, reused and free neurons of each layer after each task."""

from collections.abc import Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from clnp.palette import EARLIER, NEW, PAPER, REUSED
from clnp.report import draw
from clnp.report.collection import Collection, Member
from clnp.report.draw import Picture
from clnp.report.measures import (
    claimed_shares,
    counted,
    free_shares,
    over_runs,
    reused_share,
    spread_of,
    used_share,
)
from clnp.studies.tables import Cell, Table
from clnp.text import clean


def draw_capacity(collection: Collection) -> Picture | None:
    """Draw new, reused and free neurons of each layer after each task; None without neurons."""
    members = collection.with_neurons
    if not members:
        return None
    layers = [
        (member, group, share) for member in members for group, share in free_shares(member).items()
    ]
    shown = layers[: draw.MOST_PANELS]
    titles = [f"{clean(group)}: {share:.0f} % free" for _, group, share in shown]
    if len(members) > 1:
        labels = [member.label for member, _, _ in shown]
        titles = [f"{label}\n{title}" for label, title in zip(labels, titles, strict=True)]
    figure = draw.new_figure(draw.panels_height(len(shown)) + 0.75)
    panels = draw.add_panels(figure, titles)
    for axes, (member, group, _) in zip(panels, shown, strict=True):
        _draw_stack(axes, member, group)
    num_tasks = max(member.num_tasks for member in members)
    draw.number_tasks(panels[0], most=14 if len(shown) < 4 else 5)
    panels[0].set(xlim=(0.4, num_tasks + 0.6), ylim=(0, 100), xlabel="")
    figure.supxlabel("task, in the order learned")
    figure.supylabel("neurons of the layer, %")
    handles = [
        Patch(color=NEW, lw=0, label="new"),
        Patch(color=EARLIER, lw=0, label="of earlier tasks, not used"),
        Patch(color=REUSED, lw=0, label="of earlier tasks, reused"),
    ]
    draw.add_legend(figure, handles)
    return Picture(
        "capacity",
        "New, reused and free neurons",
        "Neurons of each layer after each task: those that the task claimed (new), those of "
        "earlier tasks that it uses (reused), and those that it does not use. The rest is free. A "
        "neuron is reused if it is among the fewest that together give a layer of the task 99 % of "
        "what it receives: mean |activation| times the sum of the |weights| that read it."
        f"{draw.averaged(members)}{draw.left_out(len(layers), len(shown), 'layers')}",
        "; ".join(_describe(member, members) for member in members) + ".",
        figure,
        _table(members, collection.names),
    )


def _draw_stack(axes: Axes, member: Member, group: str) -> None:
    """Draw bars of reused, unused and new neurons."""
    size = member.sizes[group]
    before = 0.0
    for index, new in enumerate(claimed_shares(member, group)):
        counts = [t.reused.get(group) or 0 for t in member.learned(index) if group in t.new]
        reused = min(100 * fmean(counts) / size if counts else 0.0, before)
        parts = ((0.0, reused, REUSED), (reused, before - reused, EARLIER), (before, new, NEW))
        for bottom, height, colour in parts:
            axes.bar(index + 1, height, 0.78, bottom, color=colour, edgecolor=PAPER, lw=0.3)
        before += new


def _describe(member: Member, members: Sequence[Member]) -> str:
    """Return the free neurons of each layer, and how many of the active ones were reused."""
    parts = []
    for group, share in free_shares(member).items():
        tasks = [task for run in member.runs for task in run.learned[1:]]
        reused = spread_of(reused_share(task, group) for task in tasks)
        more = f" ({reused.mean:.0f} % reused)" if reused else ""
        parts.append(f"{clean(group)} {share:.0f} % free{more}")
    num_tasks = draw.count(member.num_tasks, "task")
    return f"{draw.named(member, members)}after {num_tasks}, {draw.in_words(parts, 20)}"


def _table(members: Sequence[Member], names: Sequence[str]) -> Table:
    several = len(members) > 1
    rows: list[tuple[Cell, ...]] = []
    for member in members:
        for index in range(member.num_tasks):
            tasks = member.learned(index)
            for group in member.sizes:
                used = over_runs([used_share(run, group)[1:] for run in member.runs], 1)
                rows.append(
                    (
                        *([member.label] if several else []),
                        clean(names[index]),
                        clean(group),
                        counted(task.new.get(group) for task in tasks),
                        counted(task.reused.get(group) for task in tasks),
                        spread_of((reused_share(task, group) for task in tasks), 1),
                        used[index] if index < len(used) else None,
                    )
                )
    first = ("run", "task", "layer") if several else ("task", "layer")
    header = (*first, "new", "reused", "reused, % of active", "claimed, % of layer")
    return Table(header, tuple(rows))

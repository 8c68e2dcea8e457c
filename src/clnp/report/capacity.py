"""The figure of capacity: which task claimed the neurons of each layer, and which are free."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from clnp.text import all_shortened, clean, shortened, without_common_start

from .collection import Collection, Member
from .measures import Rounded, Spread, claimed_shares, over_runs, rounded, spread_of
from .picture import Cell, Picture, Table, add_legend, counted, in_words, new_figure, seeds_of
from .style import LINE, MUTED, PAPER, SOFT, in_order, on

MOST_MEMBERS = 6


def draw_usage(collection: Collection) -> Picture | None:
    """One bar for each group, in segments by task, and the free rest; None without neurons."""
    members = collection.with_neurons[:MOST_MEMBERS]
    if not members:
        return None
    num_tasks = max(member.num_tasks for member in members)
    bar = 0.3 if len(collection.groups) <= 6 else 0.22
    heights = [bar * len(m.groups) + 0.3 for m in members]
    figure = new_figure(sum(heights) + 0.7)
    grid = figure.subplots(
        len(members), 1, squeeze=False, sharex=True, gridspec_kw={"height_ratios": heights}
    )
    colours = in_order(num_tasks)
    for axes, member in zip(grid.flat, members, strict=True):
        _draw_bars(axes, member, colours)
        if len(members) > 1:
            axes.set_title(shortened(clean(member.label), 60))
    for axes in grid.flat[:-1]:
        axes.tick_params(axis="x", length=0)
    grid.flat[-1].set_xlabel("neurons of the layer, %")
    _add_task_key(figure, list(grid.flat), collection.names[:num_tasks], colours)
    return Picture(
        "capacity",
        "Capacity by the task that claimed it",
        "All neurons of each layer: the ones that each task claimed, in the order of the tasks, "
        f"and the free rest.{_averaged(members)}{_left_out(collection)}",
        "; ".join(_describe_bars(member, several=len(members) > 1) for member in members) + ".",
        figure,
        _table_of_bars(collection.with_neurons, collection.names[:num_tasks]),
    )


def _averaged(members: Sequence[Member]) -> str:
    seeds = seeds_of(members)
    return f" Means over {seeds}." if seeds else ""


def _left_out(collection: Collection) -> str:
    num = len(collection.with_neurons) - MOST_MEMBERS
    return f" {num} more are in the table." if num > 0 else ""


def _draw_bars(axes: Axes, member: Member, colours: Sequence[str]) -> None:
    groups = member.groups
    for row, group in enumerate(groups):
        left = 0.0
        for place, share in enumerate(claimed_shares(member, group)):
            axes.barh(
                row,
                share,
                left=left,
                height=0.74,
                color=colours[place],
                edgecolor=PAPER,
                # Borders would take up most of a narrow segment.
                lw=0.4 if share > 1.2 else 0.1,
            )
            label = str(place + 1)
            if share > 1.3 * len(label):
                x = left + share / 2
                axes.text(
                    x,
                    row,
                    label,
                    size=6,
                    color=on(colours[place]),
                    ha="center",
                    va="center_baseline",
                )
            left += share
        # On a dark page the darkest colour is all but that of the page.
        axes.barh(row, 100, height=0.74, color="none", edgecolor=LINE, lw=0.9, zorder=0.5)
        rest = max(100 - left, 0.0)
        axes.barh(row, rest, left=left, height=0.74, color=SOFT, edgecolor=LINE, lw=0.4)
        if rest > 9:
            axes.text(
                left + rest / 2,
                row,
                f"{rest:.0f} % free",
                size=6.5,
                color=MUTED,
                ha="center",
                va="center_baseline",
            )
    sizes = member.longest.sizes
    names = all_shortened(groups, 26)
    axes.set_yticks(
        range(len(groups)), [f"{n} ({sizes[g]})" for n, g in zip(names, groups, strict=True)]
    )
    axes.set_ylim(len(groups) - 0.45, -0.55)
    axes.set_xlim(0, 100)
    axes.grid(False)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "bottom"]].set_visible(False)


def _add_task_key(
    figure: Figure, all_axes: list[Axes], names: Sequence[str], colours: Sequence[str]
) -> None:
    """A legend while tasks are few; a scale where they are many."""
    if len(names) <= 12:
        start, rest = without_common_start(names)
        short = all_shortened(rest, 22)
        if rest == [str(number) for number in range(1, len(names) + 1)]:
            labels = [f"{start} {short[0]}", *short[1:]]
        else:
            labels = [f"{number}: {name}" for number, name in enumerate(short, 1)]
        handles = [
            Patch(facecolor=colour, edgecolor=LINE, lw=0.5, label=name)
            for colour, name in zip(colours, labels, strict=True)
        ]
        handles.append(Patch(facecolor=SOFT, edgecolor=LINE, label="free"))
        add_legend(figure, handles, solid=True)
        return
    edges = [place + 0.5 for place in range(len(names) + 1)]
    scale = ScalarMappable(BoundaryNorm(edges, len(names)), ListedColormap(list(colours)))
    bar = figure.colorbar(
        scale,
        ax=all_axes,
        location="top",
        aspect=60,
        shrink=0.6,
        anchor=(0.0, 0.0),
        pad=0.02,
    )
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 1000) if len(names) / s <= 10)
    bar.set_ticks(sorted({1, *range(step, len(names) + 1, step)}))
    bar.set_label("task that claimed them")
    bar.outline.set_linewidth(0)
    bar.minorticks_off()
    bar.ax.tick_params(length=0)


def _describe_bars(member: Member, *, several: bool) -> str:
    free = {g: 100 - sum(claimed_shares(member, g)) for g in member.groups}
    parts = [f"{clean(group)} {share:.0f} % free" for group, share in free.items()]
    who = f"{clean(member.label)}: " if several else ""
    return f"{who}after {counted(member.num_tasks, 'task')}, {in_words(parts, 20)}"


def _table_of_bars(members: Sequence[Member], names: Sequence[str]) -> Table:
    several = len(members) > 1
    first = ["run", "layer"] if several else ["layer"]
    rows: list[tuple[Cell, ...]] = []
    for member in members:
        for group in member.groups:
            new = _new(member, group)
            size = member.longest.sizes[group]
            cells = [_neurons(s) for s in new] + [None] * (len(names) - len(new))
            head: list[Cell] = [clean(member.label)] if several else []
            free, share = _free(member, group)
            rows.append((*head, clean(group), size, *cells, _neurons(free), rounded(share, 1)))
    return Table((*first, "neurons", *map(clean, names), "free", "free, %"), tuple(rows))


def _new(member: Member, group: str) -> list[Spread | None]:
    return [
        spread_of(task.new.get(group) for task in member.task(place) if task.learnt)
        for place in range(member.num_tasks)
    ]


def _free(member: Member, group: str) -> tuple[Spread | None, Spread | None]:
    """How many neurons of the group are free after the last task, and in percent of it."""
    used = over_runs([run.used(group) for run in member.runs])[-1]
    if used is None:
        return None, None
    size = member.longest.sizes[group]
    free = Spread(size - used.mean, used.deviation, used.num)
    return free, Spread(100 * free.mean / size, 100 * free.deviation / size, free.num)


def _neurons(spread: Spread | None) -> Rounded | None:
    """A count over several runs: as it is, or with a digit after the point where it is a mean."""
    return rounded(spread, 0 if spread is None or spread.num == 1 else 1)

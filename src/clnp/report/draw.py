"""Figures in one style: colours, labels that fit, legends, and a panel for each task or layer.

Figures have the colours of the palette. On the page, variables of the style sheet replace them, so
the same drawing serves light and dark mode. For narrow screens each figure is drawn a second time,
with fewer panels in a row.
"""

import contextlib
import contextvars
import math
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib import font_manager, style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure, FigureBase
from matplotlib.ticker import MaxNLocator

from clnp.palette import CLNP, INK, LINE, MUTED, OTHERS, PAPER, VARIABLES
from clnp.records import OURS
from clnp.studies.tables import Mean, Table
from clnp.text import all_shortened, clean, shortened, without_common_start

from .collection import Collection, Member

THEMED = {colour: name for name, colour in VARIABLES.items()}
"""The variables of the style sheet by their colours in a figure for a paper."""
WIDTH = 6.8
"""Inches: the text width of most papers."""
PHONE = 3.7
"""Inches of a figure that a phone shows at full size."""
CHARACTER = 4.4
"""Average width of a character in a small label, in points."""
MOST_NAMES = 20
"""Tasks that are named along an axis. If there are more, they are numbered."""
MOST_PANELS = 40

WIDER_FONTS = ("Noto Sans CJK", "Noto Sans CJK JP", "Noto Sans CJK SC", "WenQuanYi Micro Hei")
"""For names in scripts that DejaVu Sans lacks, if one is installed."""

_LOCK = threading.RLock()
_width = contextvars.ContextVar("width", default=WIDTH)

_SETTINGS: dict[str, object] = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": INK,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 8,
    "figure.facecolor": PAPER,
    "figure.labelsize": 8,
    "font.family": "sans-serif",
    "font.size": 8,
    "grid.color": LINE,
    "grid.linewidth": 0.5,
    "legend.borderaxespad": 0.2,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "pdf.fonttype": 42,  # Journals refuse Type 3.
    "savefig.facecolor": PAPER,
    "text.color": INK,
    # A task may be named $x.
    "text.parse_math": False,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 7,
    "xtick.major.size": 2.5,
    "xtick.major.width": 0.6,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 7,
    "ytick.major.size": 2.5,
    "ytick.major.width": 0.6,
}


@dataclass(frozen=True)
class Picture:
    """A figure with its words and numbers; `name` is that of its files.

    `description` is the alternative text. `data` has more numbers than a page can show, for the CSV
    file, which otherwise contains the table.
    """

    name: str
    title: str
    caption: str
    description: str
    figure: Figure
    table: Table
    data: Table | None = None


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Draw in the style of a report, whatever the user's own settings; one thread at a time."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    fonts = ["DejaVu Sans", *(name for name in WIDER_FONTS if name in installed)]
    settings = {**_SETTINGS, "font.sans-serif": fonts}
    with _LOCK, style.context(settings, after_reset=True), warnings.catch_warnings():
        # The page shows every letter; a figure for a paper shows a box for one that no font has.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


@contextlib.contextmanager
def for_a_phone() -> Iterator[None]:
    """Draw narrow figures."""
    token = _width.set(PHONE)
    try:
        yield
    finally:
        _width.reset(token)


def new_figure(height: float) -> Figure:
    """Return an empty figure whose parts make room for one another."""
    return Figure(figsize=(_width.get(), height), layout="constrained")


def categories(num: int) -> list[str]:
    """Return colours for things without an order; if there are many, they are shades of a scale."""
    if num <= len(OTHERS):
        return list(OTHERS[:num])
    scale = matplotlib.colormaps["viridis"]
    # The lightest yellow is left out: it is invisible on white paper.
    return [to_hex(scale(0.93 * index / (num - 1))) for index in range(num)]


def member_colours(collection: Collection) -> dict[str, str]:
    """Return the colour of each member by its label, the same in every figure.

    That of neural pruning belongs to its first member.
    """
    ours = [member.label for member in collection.members if member.runs[0].method == OURS][:1]
    others = [member.label for member in collection.members if member.label not in ours]
    return dict(zip([*ours, *others], [*[CLNP] * len(ours), *categories(len(others))], strict=True))


def add_legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """Add a legend above the figure, in as many columns as fit."""
    widest = max(len(str(handle.get_label())) for handle in handles) * CHARACTER + 40
    columns = max(int(72 * figure.get_figwidth() / widest), 1)
    figure.legend(handles=list(handles), loc="outside upper left", ncols=columns)


def name_tasks(axes: Axes, names: Sequence[str]) -> None:
    """Label an axis with the names of tasks 1, 2, ..., or with numbers if there are many."""
    start, rest = without_common_start(names)
    axes.set_xlim(0.4, len(names) + 0.6)
    if len(names) > MOST_NAMES * _width.get() / WIDTH:
        number_tasks(axes)
        return
    labels = all_shortened(rest, 18)
    fits = max(map(len, labels)) * CHARACTER < 72 * (_width.get() - 0.9) / len(names) - 4
    axes.set_xticks(range(1, len(names) + 1), labels)
    if not fits:
        axes.tick_params(axis="x", labelrotation=35, pad=1)
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    common = f": {shortened(start, int(72 * _width.get() / CHARACTER) - 50)} …" if start else ""
    axes.set_xlabel(f"task, in the order learned{common}")


def number_tasks(axes: Axes, *, most: int = 14) -> None:
    """Label an axis with the numbers of tasks, at `most` places."""
    num = max(5, int(most * _width.get() / WIDTH))
    axes.xaxis.set_major_locator(MaxNLocator(min(most, num), integer=True))
    axes.set_xlabel("task, in the order learned")


def fit_scores(axes: Axes, *, percent: bool) -> None:
    """Show half a point around accuracies, and none above 100 percent, where a deviation may be."""
    if percent:
        low, high = axes.get_ylim()
        low -= 0.5
        axes.set_ylim(low, min(high + 0.5, 100 + 0.03 * (100 - low)))


def panels_height(num: int) -> float:
    """Return the height of `num` panels in inches."""
    rows, columns = _panel_grid(num)
    if _width.get() < WIDTH:
        return rows * (2.0 if rows == 1 else 1.5 if columns <= 2 else 1.1)
    return rows * (2.0 if columns <= 2 or rows == 1 else 1.5 if columns <= 5 else 0.9)


def add_panels(figure: FigureBase, titles: Sequence[str]) -> list[Axes]:
    """Add a small panel for each title of one or two lines; all panels have the same scales."""
    rows, columns = _panel_grid(len(titles))
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    panels: list[Axes] = list(grid.flat)
    for empty in panels[len(titles) :]:
        empty.remove()
    # The panel above an empty cell is the last of its column.
    for last in panels[max(len(titles) - columns, 0) : len(titles)]:
        last.tick_params(labelbottom=True)
    longest = int(72 * (_width.get() - 0.7) / columns / CHARACTER) - 3
    for axes, title in zip(panels, titles, strict=False):
        lines = [shortened(line, longest) for line in title.split("\n")]
        axes.set_title("\n".join(lines), pad=2, size=7)
        axes.tick_params(labelsize=6)
        axes.locator_params(nbins=2 if columns > 5 * _width.get() / WIDTH else 4)
    return panels[: len(titles)]


def _panel_grid(num: int) -> tuple[int, int]:
    """Return the rows and columns for `num` panels, with few empty cells."""
    most = 5 if num <= 20 else 10
    if _width.get() < WIDTH:
        most = 2 if num <= 12 else 4
    rows = math.ceil(num / most)
    return rows, math.ceil(num / rows)


def task_titles(names: Sequence[str]) -> list[str]:
    """Return a title for the panel of each task: its number, and its name if it has one."""
    _, rest = without_common_start(names)
    return [
        f"task {number}" if name == str(number) else f"{number}: {name}"
        for number, name in enumerate(rest, 1)
    ]


def left_out(num: int, shown: int, things: str) -> str:
    """Return a sentence, after a space, if some things have no panel; otherwise nothing."""
    return f" Only the first {shown} of {num} {things} are shown." if shown < num else ""


def finite(values: Sequence[float | None]) -> list[float]:
    """Return the values, with `nan`, which is not drawn, instead of None and infinity."""
    return [value if value is not None and math.isfinite(value) else math.nan for value in values]


def means_of(spreads: Sequence[Mean | None]) -> list[float]:
    """Return the means, with `nan` for None."""
    return finite([None if spread is None else spread.mean for spread in spreads])


def deviations_of(spreads: Sequence[Mean | None]) -> list[float]:
    """Return the standard deviations, with 0 for None."""
    return [0.0 if spread is None else spread.deviation for spread in spreads]


def count(num: int, thing: str) -> str:
    """Return a number with a noun: `1 task`, `2 tasks`."""
    return f"{num} {thing}" if num == 1 else f"{num} {thing}s"


def seeds_of(members: Sequence[Member]) -> str:
    """Return `3 seeds`, or `1 to 3 seeds` if members differ; empty if each has one."""
    nums = sorted({len(member.runs) for member in members})
    if nums[-1] == 1:
        return ""
    return f"{nums[-1]} seeds" if len(nums) == 1 else f"{nums[0]} to {nums[-1]} seeds"


def averaged(members: Sequence[Member], sentence: str = "Means over {}.") -> str:
    """Return the sentence with the number of seeds, after a space; empty for one run each."""
    seeds = seeds_of(members)
    return f" {sentence.format(seeds)}" if seeds else ""


def named(member: Member, members: Sequence[Member]) -> str:
    """Return the label of a member before a colon, if there are several; otherwise nothing."""
    return f"{member.label}: " if len(members) > 1 else ""


def in_words(names: Sequence[str], most: int = 6) -> str:
    """Return the names with commas between them; if there are many, the rest is counted."""
    shown = [shortened(clean(name), 40) for name in names[:most]]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shown) + more

"""Figures in one style: colours, labels that fit, legends, and a panel for each task or layer.

Figures for a paper have the inks below. On the page, variables of the style sheet replace them, so
that one drawing serves light and dark mode.
"""

import contextlib
import math
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colorbar import Colorbar
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure, FigureBase

from clnp.text import all_shortened, clean, shortened, without_common_start

from .collection import Collection, Member
from .measures import Spread

INK, MUTED, LINE, SOFT, PAPER = "#1f2328", "#59636d", "#d0d7dd", "#eef1f3", "#fefefe"
CATEGORIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8f8f8f")
"""The colours of Okabe and Ito, without the yellow that is invisible on white paper."""
MORE = ("#5a00ff", "#784b1e", "#d2b469", "#b44bff", "#4b5a5a")
"""As different from one another and from those above, with any kind of colour vision."""
MARKERS = "osD^vPX"
THEMED = {
    INK: "--ink",
    MUTED: "--muted",
    LINE: "--line",
    SOFT: "--soft",
    PAPER: "--paper",
    CATEGORIES[0]: "--blue",
    MORE[0]: "--violet",
    MORE[1]: "--brown",
    MORE[4]: "--slate",
}
"""Variables of the style sheet: these colours are too dark for a dark page."""
ORDERED = "viridis"

WIDTH = 6.8
"""Inches: the text width of most papers."""
CHARACTER = 4.4
"""Average width of a character in a small label, in points."""
MOST_NAMES = 20
"""Tasks that are named along an axis. If there are more, they are numbered."""
MOST_PANELS = 60

WIDER_FONTS = ("Noto Sans CJK", "Noto Sans CJK JP", "Noto Sans CJK SC", "WenQuanYi Micro Hei")
"""For names in scripts that the first font lacks, if one is installed."""

_LOCK = threading.RLock()

_SETTINGS: dict[str, Any] = {
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
    "xtick.minor.visible": False,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 7,
    "ytick.major.size": 2.5,
    "ytick.major.width": 0.6,
}

Cell = str | float | int | Spread | None


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers under a header. The first cell of a row names it."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


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
    defaults: dict[str, Any] = {
        name: value
        for name, value in matplotlib.rcParamsDefault.items()
        if not name.startswith(("backend", "webagg", "date.", "toolbar", "interactive"))
    }
    installed = {font.name for font in font_manager.fontManager.ttflist}
    fonts = ["DejaVu Sans", *(name for name in WIDER_FONTS if name in installed)]
    settings: Any = {**defaults, **_SETTINGS, "font.sans-serif": fonts}
    with _LOCK, matplotlib.rc_context(settings), warnings.catch_warnings():
        # The page shows every letter; a figure for a paper shows a box for one that no font has.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def new_figure(height: float, *, width: float = WIDTH) -> Figure:
    """Return an empty figure whose parts make room for one another."""
    return Figure(figsize=(width, height), layout="constrained")


def categories(num: int) -> list[str]:
    """Return colours for things without an order; beyond twelve they are shades of one scale."""
    known = [*CATEGORIES, *MORE]
    return known[:num] if num <= len(known) else ordered(num)


def ordered(num: int) -> list[str]:
    """Return colours for things in an order, from dark to light, also when printed in grey."""
    scale = matplotlib.colormaps[ORDERED]
    # The lightest yellow is left out: it is invisible on white paper.
    return [to_hex(scale(0.93 * index / max(num - 1, 1))) for index in range(num)]


def in_order(num: int) -> list[str]:
    """Return colours for layers or tasks: categories for a few, otherwise a scale."""
    return categories(num) if num < len(CATEGORIES) else ordered(num)


def member_colours(collection: Collection) -> dict[str, str]:
    """Return the colour of each member by its label, the same in every figure."""
    labels = [member.label for member in collection.members]
    return dict(zip(labels, categories(len(labels)), strict=True))


def on(colour: Any) -> str:
    """Return black or white, whichever is legible on the colour."""
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)
    )
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 else "#ffffff"


def colour_of(mesh: QuadMesh, value: float) -> Any:
    """Return the colour of a value in a map."""
    return mesh.to_rgba(np.array([value]))[0]


def add_colour_bar(figure: FigureBase, mesh: Any, axes: Any, label: str, **options: Any) -> None:
    """Add the scale of a map, without a frame."""
    bar: Colorbar = figure.colorbar(mesh, ax=axes, **options)
    bar.set_label(label)
    bar.outline.set_linewidth(0)
    bar.minorticks_off()
    bar.ax.tick_params(length=0)


def without_frame(axes: Axes) -> None:
    """Remove spines, ticks and grid: the axes of a map need none."""
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def add_legend(
    figure: Figure, handles: Sequence[Artist], *, solid: bool = False, dashed: bool = False
) -> None:
    """Add a legend above the figure, in as many columns as fit."""
    # Points of the sample: small for a patch, longer for a line, and longer for its dashes.
    sample, length = (20, 1.0) if solid else (45, 3.4) if dashed else (30, 1.6)
    widths = [len(str(handle.get_label())) * CHARACTER + sample for handle in handles]
    room = 72 * figure.get_figwidth() - 10
    columns = next(
        n for n in range(len(widths), 0, -1) if n == 1 or _legend_width(widths, n) <= room
    )
    figure.legend(
        handles=list(handles),
        loc="outside upper left",
        ncols=columns,
        handlelength=length,
        columnspacing=1.2,
    )


def _legend_width(widths: Sequence[float], columns: int) -> float:
    """Return the width of a legend whose first columns are an entry longer than the rest."""
    rows, longer = divmod(len(widths), columns)
    starts = [index * rows + min(index, longer) for index in range(columns + 1)]
    return sum(max(widths[start:end]) for start, end in pairwise(starts))


def name_tasks(axes: Axes, names: Sequence[str], *, width: float = WIDTH) -> None:
    """Label an axis with the names of tasks 1, 2, ..., or with numbers if there are many."""
    start, rest = without_common_start(names)
    if len(names) > MOST_NAMES:
        number_tasks(axes, len(names))
        return
    room = 72 * (width - 0.9) / max(len(names), 1) - 4
    labels = all_shortened(rest, 24)
    upright = max(map(len, labels)) * CHARACTER <= room
    axes.set_xticks(range(1, len(names) + 1), labels if upright else all_shortened(rest, 18))
    if not upright:
        axes.tick_params(axis="x", labelrotation=35, pad=1)
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    common = f": {shortened(start, 60)} …" if start else ""
    axes.set_xlabel(f"task, in the order learned{common}")


def number_tasks(axes: Axes, num: int, *, most: int = 14) -> None:
    """Label an axis with the numbers of tasks, as many as fit."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 500, 10**9) if num / s <= most)
    start = 1 if step <= 2 else step
    axes.set_xticks(sorted({1, *range(start, num + 1, step)}))
    axes.set_xlabel("task, in the order learned")


def fit_scores(
    axes: Axes, means: Sequence[float], bounds: Sequence[float] = (), *, percent: bool
) -> None:
    """Show all means and bounds with some room around them, and nothing beyond 100 percent.

    A bound, which is a mean plus its deviation, may be larger.
    """
    known = [value for value in means if math.isfinite(value)]
    ends = [*known, *(value for value in bounds if math.isfinite(value))]
    if not known:
        return
    low, high = min(ends), max(ends)
    whole = percent and max(known) <= 100
    if whole:
        high = min(high, 100.0)
    room = max(0.08 * (high - low), 0.5 if percent else 0.02 * max(abs(low), abs(high), 0.1))
    axes.set_ylim(low - room, min(high + room, 100 + 0.3 * room) if whole else high + room)


@dataclass(frozen=True)
class Panels:
    """Small axes for tasks or layers, which share their scales; `shown` has their indices."""

    axes: list[Axes]
    shown: list[int]
    thing: str

    @property
    def note(self) -> str:
        """A sentence, after a space, that says which tasks or layers are missing, if any are."""
        num = len(self.shown)
        if self.shown == list(range(num)):
            return ""
        return f" Only the first {num - num // 2} and the last {num // 2} {self.thing} are shown."


def shown_panels(indices: Sequence[int], *, most: int = MOST_PANELS) -> list[int]:
    """Return the indices, without those in the middle if there are too many panels."""
    half = most // 2
    return list(indices) if len(indices) <= most else [*indices[:half], *indices[-half:]]


def panel_rows(num: int) -> tuple[int, float]:
    """Return the number of rows of panels, and the height of each in inches."""
    columns = num_columns(num)
    rows = math.ceil(num / columns)
    height = {1: 2.2, 2: 1.9, 3: 1.6}.get(columns, 1.2 if columns <= 5 else 0.78)
    return rows, max(height, 1.5) if rows == 1 else height  # The label of the axis has to fit.


def add_panels(
    figure: FigureBase, names: Sequence[str], shown: list[int], *, thing: str = "tasks"
) -> Panels:
    """Add a panel for each index that is shown."""
    columns, (rows, _) = num_columns(len(shown)), panel_rows(len(shown))
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    cells: list[Axes] = list(grid.flat)
    for axes in cells[len(shown) :]:
        axes.remove()
    # The panel above an empty cell is the last of its column.
    for axes in cells[len(shown) - columns : len(shown)] if rows > 1 else []:
        axes.tick_params(labelbottom=True)
    _, rest = without_common_start(names)
    room = int(72 * (WIDTH - 0.7) / columns / CHARACTER) - 3
    crowded = columns > 5
    for axes, index in zip(cells, shown, strict=False):
        number = str(index + 1)
        title = clean(names[index])
        if thing == "tasks":
            title = number if crowded else f"task {number}"
            if rest[index] != number and not crowded:
                title = f"{number}: {clean(rest[index])}"
        axes.set_title(shortened(title, max(room, 4)), pad=2, size=7)
        axes.tick_params(labelsize=6)
        axes.locator_params(nbins=2 if crowded else 3 if columns > 3 else 5)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    return Panels(cells[: len(shown)], shown, thing)


def num_columns(num: int) -> int:
    """Return the number of panels in a row: few empty cells, and no panel too small."""
    if num <= 5:
        return max(num, 1)
    choices = (3, 4, 5) if num <= 9 else (4, 5) if num <= 20 else (8, 9, 10)
    return min(choices, key=lambda columns: (-num % columns, -columns))


def finite(values: Sequence[float | None]) -> list[float]:
    """Return the values, with `nan`, which is not drawn, instead of None and infinity."""
    numbers = [math.nan if value is None else float(value) for value in values]
    return [math.nan if math.isinf(number) else number for number in numbers]


def means_of(spreads: Sequence[Spread | None]) -> list[float]:
    """Return the means, with `nan` for None."""
    return finite([None if spread is None else spread.mean for spread in spreads])


def draw_line(
    axes: Axes, x: Sequence[float], spreads: Sequence[Spread | None], colour: str, **options: Any
) -> list[float]:
    """Draw means as a line with a band of standard deviations; return the bounds of the band."""
    y = means_of(spreads)
    errors = [0.0 if spread is None else spread.deviation for spread in spreads]
    low, high = ([m + sign * e for m, e in zip(y, errors, strict=True)] for sign in (-1, 1))
    if any(errors):
        draw_band(axes, x, low, high, colour)
    axes.plot(x, y, color=colour, **options)
    return [*low, *high]


def draw_band(
    axes: Axes, x: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str
) -> None:
    """Fill the area between two lines: standard deviations around a mean."""
    axes.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)


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

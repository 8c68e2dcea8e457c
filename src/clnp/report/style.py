"""How figures look: colours that everybody can tell apart, fonts that every reader has.

The inks below are drawn in figures for a paper as they are. In the page they are replaced by
variables of the style sheet, so that one drawing serves light and dark.
"""

import contextlib
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex, to_rgb

INK, MUTED, LINE, SOFT, PAPER = "#1f2328", "#59636d", "#d0d7dd", "#eef1f3", "#fefefe"
CATEGORIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8f8f8f")
"""Okabe and Ito's, without the yellow that white paper swallows."""
MORE = ("#5a00ff", "#784b1e", "#d2b469", "#b44bff", "#4b5a5a")
"""As far from one another and from those as those are, with any kind of colour vision."""
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
"""What takes the place of each ink in the page; these colours are too dark for a dark one."""
NEW, REUSED = CATEGORIES[1], CATEGORIES[0]
ORDERED = "viridis"

WIDTH = 6.8
"""Inches: the text width of most papers."""
CHARACTER = 4.4
"""Points that a character of a small label takes on average."""

WIDER_FONTS = ("Noto Sans CJK", "Noto Sans CJK JP", "Noto Sans CJK SC", "WenQuanYi Micro Hei")
"""For names in scripts that the first font has no letters of, where one is installed."""

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
    "hatch.linewidth": 0.5,
    "legend.borderaxespad": 0.2,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "pdf.fonttype": 42,  # Journals refuse Type 3.
    "savefig.facecolor": PAPER,
    "text.color": INK,
    # A task may be called $x.
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


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Draw in the style of a report, whatever the user's own settings; one thread at a time."""
    defaults: dict[str, Any] = {
        name: value
        for name, value in matplotlib.rcParamsDefault.items()
        if not name.startswith(("backend", "webagg", "date.", "toolbar", "interactive"))
    }
    fonts = {"font.sans-serif": ["DejaVu Sans", *_wider_fonts()]}
    settings: Any = {**defaults, **_SETTINGS, **fonts}
    with _LOCK, matplotlib.rc_context(settings), warnings.catch_warnings():
        # The page shows every letter; a figure for a paper shows a box for one that no font on
        # this machine has.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def _wider_fonts() -> list[str]:
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return [name for name in WIDER_FONTS if name in installed]


def categories(num: int) -> list[str]:
    """Colours for `num` things without an order; beyond twelve they are shades of one scale."""
    known = [*CATEGORIES, *MORE]
    return known[:num] if num <= len(known) else ordered(num)


def ordered(num: int) -> list[str]:
    """Colours for `num` things in an order, from dark to light, even in print without colours."""
    scale = matplotlib.colormaps[ORDERED]
    # The lightest yellow is left out: on white paper it is no colour.
    return [to_hex(scale(0.93 * place / max(num - 1, 1))) for place in range(num)]


def in_order(num: int) -> list[str]:
    """Colours for layers or tasks: categories while they are few, otherwise a scale."""
    return categories(num) if num <= len(CATEGORIES) - 1 else ordered(num)


def on(colour: Any) -> str:
    """Black or white, whichever can be read on the colour."""
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)
    )
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 else "#ffffff"


def colour_of(mesh: QuadMesh, value: float) -> Any:
    """The colour that a value has in a map."""
    return mesh.to_rgba(np.array([value]))[0]


def apart(values: Sequence[float], gap: float, *, low: float, high: float) -> list[float]:
    """The values moved as little as needed to be `gap` apart, within bounds if they fit."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    placed = [0.0] * len(values)
    edge = low - gap
    for place in order:
        edge = placed[place] = max(values[place], edge + gap)
    edge = high + gap
    for place in reversed(order):
        edge = placed[place] = min(placed[place], edge - gap)
    return placed

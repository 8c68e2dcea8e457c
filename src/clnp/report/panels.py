"""A small panel for each task, as many as a page can show."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clnp.text import clean, shortened, without_common_start

from .picture import new_figure
from .style import CHARACTER, WIDTH

MOST_PANELS = 60


@dataclass(frozen=True)
class Panels:
    """A figure of panels and the places of the tasks that they show."""

    figure: Figure
    axes: list[Axes]
    shown: list[int]

    @property
    def note(self) -> str:
        """Which tasks are left out, if some are; a sentence after a space."""
        num = len(self.shown)
        return f" The first {num // 2} and the last {num - num // 2} tasks are shown." * self._cut

    @property
    def _cut(self) -> bool:
        return self.shown != list(range(len(self.shown)))


def task_panels(names: Sequence[str], *, has_data: Callable[[int], bool]) -> Panels:
    """A panel for each task that has something to show, the same scale for all of them."""
    shown = [place for place in range(len(names)) if has_data(place)]
    if len(shown) > MOST_PANELS:
        half = MOST_PANELS // 2
        shown = [*shown[:half], *shown[-half:]]
    columns = num_columns(len(shown))
    rows = math.ceil(len(shown) / columns)
    height = {1: 2.4, 2: 1.9, 3: 1.6}.get(columns, 1.2 if columns <= 5 else 0.78)
    if rows == 1:
        height = max(height, 1.5)  # The label of the axis has to fit.
    figure = new_figure(rows * height + 0.75)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    cells: list[Axes] = list(grid.flat)
    for axes in cells[len(shown) :]:
        axes.remove()
    # The panel above a place that is left empty is the last of its column.
    for axes in cells[len(shown) - columns : len(shown)] if rows > 1 else []:
        axes.tick_params(labelbottom=True)
    _, rest = without_common_start(names)
    for axes, place in zip(cells, shown, strict=False):
        room = int(72 * (WIDTH - 0.7) / columns / CHARACTER) - 3
        number = str(place + 1)
        own = rest[place] != number
        title = f"{number}: {clean(rest[place])}" if own else f"task {number}"
        crowded = columns > 5
        axes.set_title(number if crowded else shortened(title, max(room, 4)), pad=2, size=7)
        axes.tick_params(labelsize=6)
        axes.locator_params(nbins=2 if crowded else 3 if columns > 3 else 5)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    return Panels(figure, cells[: len(shown)], shown)


def num_columns(num: int) -> int:
    """How many panels stand abreast: few empty places, and none too small."""
    if num <= 5:
        return max(num, 1)
    choices = (3, 4, 5) if num <= 9 else (4, 5) if num <= 20 else (8, 9, 10)
    return min(choices, key=lambda columns: (-num % columns, -columns))

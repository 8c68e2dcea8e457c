"""Bars, curves and tables made of characters, in as many columns as a terminal has."""

import math
import shutil
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TextIO


@dataclass(frozen=True)
class Glyphs:
    """The characters that bars and curves are made of.

    `owners` are those of a bar that is stacked by task: where there are but a few, they take turns,
    and otherwise each task has its own. `levels` go from low to high, `broken` stands for what is
    not a finite number.
    """

    owners: str
    in_turn: bool
    free: str
    done: str
    left: str
    levels: str
    broken: str
    ellipsis: str


BLOCKS = Glyphs("█▓▒", True, "·", "━", "─", "▁▂▃▄▅▆▇█", "!", "…")
ASCII = Glyphs(
    "123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    False,
    ".",
    "#",
    "-",
    "_.-~=+*#",
    "x",
    "...",
)


def glyphs_for(stream: TextIO) -> Glyphs:
    """Block characters, or plain ASCII where the stream cannot encode them."""
    try:
        "".join(str(part) for part in vars(BLOCKS).values()).encode(stream.encoding or "ascii")
    except (UnicodeError, LookupError):
        return ASCII
    return BLOCKS


def stacked(counts: Sequence[int], size: int, *, width: int, glyphs: Glyphs) -> str:
    """A bar of `size` neurons: those of each task in order, then the free ones.

    Every character is the owner of the neuron in the middle of its stretch.
    """
    ends = list(accumulate(counts))
    claiming = [place for place, count in enumerate(counts) if count]
    marks = {}
    for turn, place in enumerate(claiming):
        number = turn if glyphs.in_turn else place
        marks[place] = glyphs.owners[number % len(glyphs.owners)]
    bar = []
    for cell in range(width):
        neuron = (cell + 0.5) * size / width
        owner = next((place for place in claiming if neuron < ends[place]), None)
        bar.append(glyphs.free if owner is None else marks[owner])
    return "".join(bar)


def progress(fraction: float, *, width: int, glyphs: Glyphs) -> str:
    """A bar of what is done, and what is left; full only when all is done."""
    done = min(width, max(0, int(fraction * width)))
    return glyphs.done * done + glyphs.left * (width - done)


def sparkline(values: Sequence[float], *, width: int, glyphs: Glyphs) -> str:
    """A curve in one line, from its lowest value to its highest.

    Where there are more values than columns, a column is the mean of its values.
    """
    if len(values) > width:
        edges = [round(place * len(values) / width) for place in range(width + 1)]
        columns = [_mean(values[edges[i] : edges[i + 1]]) for i in range(width)]
    else:
        columns = list(values)
    known = [value for value in columns if math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    top = len(glyphs.levels) - 1
    # Half of each, so that no difference of two numbers overflows.
    reach = high / 2 - low / 2
    line = []
    for value in columns:
        if not math.isfinite(value):
            line.append(glyphs.broken)
            continue
        height = (value / 2 - low / 2) / reach if reach else 0.5
        line.append(glyphs.levels[round(height * top)])
    return "".join(line)


def _mean(values: Sequence[float]) -> float:
    return sum(value / len(values) for value in values)


def cells(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def plain(text: str) -> str:
    """The text in one line, without what would move a cursor or change a colour."""
    return "".join(c if c.isprintable() else "?" for c in text)


def shortened(text: str, width: int, *, glyphs: Glyphs) -> str:
    """The text in at most so many columns; what is left out is in the middle.

    Names of tasks and directories often differ at their ends only.
    """
    clean = plain(text)
    if cells(clean) <= width:
        return clean
    room = width - cells(glyphs.ellipsis)
    if room < 2:
        return _cut(clean, width)
    front = _cut(clean, room // 2)
    back = _cut(clean[::-1], room - cells(front))[::-1]
    return f"{front}{glyphs.ellipsis}{back}"


def _cut(text: str, width: int) -> str:
    found = ""
    for character in text:
        if cells(found + character) > width:
            break
        found += character
    return found


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, the first column to the left and the others to the right."""
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        parts = []
        for place, (text, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - cells(text))
            parts.append(text + space if place == 0 else space + text)
        lines.append("  ".join(parts).rstrip())
    return lines


@dataclass(frozen=True)
class Screen:
    """How many columns and lines there are to show something in, and what it is made of."""

    width: int = 80
    height: int = 40
    glyphs: Glyphs = BLOCKS

    def short(self, text: str, width: int) -> str:
        """The text in one line of at most so many columns."""
        return shortened(text, width, glyphs=self.glyphs)

    def wrapped(self, text: str, *, indent: int = 0) -> list[str]:
        """The text in lines of this width, all but the first indented.

        What has no space in it, a path for instance, stays whole.
        """
        lines: list[str] = []
        for word in plain(text).split():
            longer = f"{lines[-1]} {word}" if lines else word
            if not lines or cells(longer) <= self.width:
                lines[-1:] = [longer]
            else:
                lines.append(" " * indent + word)
        return lines


def screen_of(stream: TextIO) -> Screen:
    """The terminal that there is, or 80 columns of 40 lines; 40 columns at least, 120 at most."""
    width, height = shutil.get_terminal_size((80, 40))
    return Screen(min(max(width, 40), 120), height, glyphs_for(stream))

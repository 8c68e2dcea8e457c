"""A table of results as CSV, Markdown, LaTeX and text.

Nothing here imports PyTorch.
"""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from clnp.core.layers.ledger import aligned
from clnp.text import clean

KINDS = ("csv", "md", "tex")
"""The suffixes of the files of a table."""
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "…": r"\ldots{}",
}


@dataclass(frozen=True)
class Mean:
    """A mean over `num` runs and its standard deviation, with `digits` after the point as text."""

    mean: float
    deviation: float = 0.0
    num: int = 1
    digits: int = 2

    def __str__(self) -> str:
        # Rounding would leave a minus before zero: -0.00.
        mean = self.mean if round(self.mean, self.digits) else 0.0
        deviation = "" if self.num == 1 else f" ± {self.deviation:.{self.digits}f}"
        return f"{mean:.{self.digits}f}{deviation}"

    @property
    def number(self) -> float | int:
        """The mean with all digits; the count of a single run is an integer."""
        counted = self.digits == 0 and self.num == 1 and self.mean.is_integer()
        return int(self.mean) if counted else self.mean


Cell = str | float | int | Mean | None


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers under a header. The first cell of a row names it.

    `name` is that of its files and of its label in LaTeX, `caption` a sentence, `keys` the titles
    of the columns in CSV. `best` are the row and column of the cells that are in bold. `sources`
    say where the settings of each row come from, in a footnote.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    name: str = ""
    caption: str = ""
    keys: tuple[str, ...] = ()
    best: frozenset[tuple[int, int]] = frozenset()
    sources: tuple[str | None, ...] = ()

    @property
    def names(self) -> list[str]:
        """The first cell of each row, with the number of its footnote: "ewc [1]"."""
        numbers = {note: f" [{number}]" for number, note in enumerate(self._notes, 1)}
        marks = [numbers.get(source or "", "") for source in self.sources]
        marks += [""] * (len(self.rows) - len(marks))
        return [f"{_line(row[0])}{mark}" for row, mark in zip(self.rows, marks, strict=True)]

    @property
    def footnotes(self) -> list[str]:
        """The notes below the table, on the settings of the rows: "[1] default settings."."""
        return [f"[{number}] {note}." for number, note in enumerate(self._notes, 1)]

    @property
    def _notes(self) -> list[str]:
        return list(dict.fromkeys(source for source in self.sources if source))

    def texts(self) -> list[list[str]]:
        """Return the cells of the rows as text on one line; an unknown value is a dash."""
        return [
            [name, *("-" if cell is None else _line(cell) for cell in row[1:])]
            for name, row in zip(self.names, self.rows, strict=True)
        ]

    def written(self) -> dict[str, str]:
        """Return the table in every format, by the suffix of its file."""
        return {"csv": to_csv(self), "md": to_markdown(self), "tex": to_latex(self)}


def _line(cell: Cell) -> str:
    return "" if cell == "" else clean(cell)


def to_text(table: Table) -> str:
    """Return the table for a text file, with spaces between its columns."""
    return "\n".join([aligned([table.header, *table.texts()]), *table.footnotes, ""])


def to_csv(table: Table) -> str:
    """Return the table with all digits, means and standard deviations in columns of their own."""
    columns: list[list[Cell]] = []
    by_column = list(zip(*table.rows, strict=True)) or [() for _ in table.header]
    keys = table.keys or tuple(map(_key, table.header))
    for key, cells in zip(keys, by_column, strict=True):
        values = [cell if isinstance(cell, Mean) else None for cell in cells]
        means = [cell.number if isinstance(cell, Mean) else cell for cell in cells]
        if all(value is None or value.num == 1 for value in values):
            columns.append([key, *means])
            continue
        deviations = [v.deviation if v is not None and v.num > 1 else None for v in values]
        columns += [[f"{key}_mean", *means], [f"{key}_std", *deviations]]
    if any(table.sources):
        columns.append(["settings", *table.sources])
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(zip(*columns, strict=True))
    return file.getvalue()


def _key(title: str) -> str:
    """Return the title of a column in small letters, with underscores for all other characters."""
    return re.sub(r"\W+", "_", title.lower()).strip("_")


def to_markdown(table: Table) -> str:
    """Return the table in Markdown, with the best values in bold."""
    rows = [[cell.replace("|", r"\|") for cell in row] for row in table.texts()]
    for row, column in table.best:
        rows[row][column] = f"**{rows[row][column]}**"
    head, *rest = (f"| {' | '.join(row)} |" for row in [list(table.header), *rows])
    notes = "\n\n" + "  \n".join(table.footnotes) if any(table.sources) else ""
    return "\n".join([head, "|" + "---|" * len(table.header), *rest]) + f"{notes}\n"


def to_latex(table: Table) -> str:
    """Return a table environment of booktabs, with a caption and a label, the best values in bold.

    Numbers are in math mode, where a minus is not a hyphen.
    """
    body = []
    for index, row in enumerate(table.rows):
        cells = [
            _latex_cell(cell, bold=(index, column) in table.best)
            for column, cell in enumerate([table.names[index], *row[1:]])
        ]
        body.append("  " + " & ".join(cells) + r" \\")
    head = " & ".join(map(to_latex_text, table.header)) + r" \\"
    whole = rf"\multicolumn{{{len(table.header)}}}{{l}}{{\footnotesize "
    notes = [rf"{whole}{to_latex_text(note)}}} \\" for note in table.footnotes]
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{to_latex_text(table.caption)}}}",
        rf"  \label{{tab:{table.name}}}",
        rf"  \begin{{tabular}}{{{_alignment(table.rows, len(table.header))}}}",
        *(f"  {line}" for line in (r"\toprule", head, r"\midrule", *body, r"\bottomrule", *notes)),
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "% Needs \\usepackage{booktabs}.\n" + "\n".join(lines) + "\n"


def _alignment(rows: Sequence[Sequence[Cell]], num: int) -> str:
    """Return l for each column with text, and r for numbers."""
    columns = list(zip(*rows, strict=True)) or [("",)] * num
    return "".join(
        "l" if any(isinstance(c, str) and c for c in cells) else "r" for cells in columns
    )


def _latex_cell(cell: Cell, *, bold: bool) -> str:
    if cell is None:
        return "--"
    if isinstance(cell, str):
        return to_latex_text(_line(cell))
    text = (f"{cell:.6g}" if isinstance(cell, float) else str(cell)).replace("±", r"\pm")
    return rf"$\mathbf{{{text}}}$" if bold else f"${text}$"


def to_latex_text(text: str) -> str:
    """Return the text with the characters escaped that mean something in LaTeX."""
    return "".join(_LATEX.get(character, character) for character in text)


def best_of(rows: Sequence[Sequence[Cell]], column: int, *, highest: bool) -> set[tuple[int, int]]:
    """Return the cells of a column that show the best value; none if all show the same."""
    known = {index: row[column] for index, row in enumerate(rows) if isinstance(row[column], Mean)}
    values = {i: round(v.mean, v.digits) for i, v in known.items() if isinstance(v, Mean)}
    if len(set(values.values())) < 2:
        return set()
    best = (max if highest else min)(values.values())
    return {(index, column) for index, value in values.items() if value == best}

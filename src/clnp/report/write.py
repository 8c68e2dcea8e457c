"""A report on disk: one page, and each figure in the formats of papers."""

import csv
import importlib.util
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clnp import extras
from clnp.errors import FAILURE, ArgumentError, RunError
from clnp.runs.directory import expanded
from clnp.storage.atomic import replace_file

if TYPE_CHECKING:
    from .draw import Cell, Picture, Table

PAGE = "report.html"
FIGURES = "figures"
FORMER = ("average", "grid", "growth", "loss", "matrix", "reuse", "threshold", "validation")
"""Figures of earlier versions, which a report removes."""
DEFAULT = "report"
"""The directory of a report within the directory of its run."""


def write_report(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    out: str | os.PathLike[str] | None = None,
) -> list[Path]:
    """Write a report about runs, series or comparisons.

    Args:
        paths: The directory of a run, a series or a comparison, or a list of them, which are
            overlaid in the same figures.
        out: The directory for the report. By default it is `report` in the directory of the run;
            several runs need one.

    Returns:
        The paths of all files, the page first.

    Raises:
        RunError: If matplotlib is not installed, there is no run, or a file cannot be written. If
            some of several runs cannot be read, after the report of the others.

    Example:
        >>> clnp.write_report("runs/permuted-digits-seed0")
        >>> clnp.write_report(["runs/margin-1", "runs/margin-2"], out="margins")
    """
    several = _as_list(paths)
    directory = _directory(several, out)
    if importlib.util.find_spec("matplotlib") is None:
        raise RunError(
            "The figures of a report need matplotlib, which is not installed. Install it with "
            f"{extras.command('report')}."
        )
    from .collection import read_collection
    from .draw import drawing
    from .page import make_page

    collection = read_collection(several)
    with drawing():
        files = list(_write(directory, *make_page(collection)))
    if collection.left_out:
        error = RunError(
            f"{' '.join(collection.left_out)} The report of the others is in {files[0]}."
        )
        error.code = FAILURE
        raise error
    return files


def _as_list(paths: object) -> list[str | os.PathLike[str]]:
    """Return the paths in a list, also a single one."""
    several = paths if isinstance(paths, Iterable) and not isinstance(paths, str) else [paths]
    found: list[str | os.PathLike[str]] = []
    for path in several:
        if not isinstance(path, str | os.PathLike):
            raise ArgumentError(
                f"{path!r} is not a path. Give the directory of a run, or a list of them.",
                argument="paths",
            )
        found.append(path)
    if not found:
        raise RunError(
            "There is no run to report on. Give the directory of a run, a series or a comparison."
        )
    return found


def _directory(paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str] | None) -> Path:
    if out is not None:
        return expanded(out)
    if len(paths) > 1:
        raise RunError(
            f"A report about {len(paths)} runs needs a directory. Choose one with --out DIR, or "
            "out= in Python."
        )
    return expanded(paths[0]) / DEFAULT


def _write(directory: Path, page: str, pictures: Mapping[str, "Picture | None"]) -> Iterator[Path]:
    from .render import FORMATS, render

    try:
        figures = directory / FIGURES
        figures.mkdir(parents=True, exist_ok=True)
        replace_file(directory / PAGE, page.encode())
        yield directory / PAGE
        # An earlier report may have had more figures.
        for name, picture in (dict.fromkeys(FORMER) | dict(pictures)).items():
            if picture is None:
                for kind in (*FORMATS, "csv"):
                    (figures / f"{name}.{kind}").unlink(missing_ok=True)
                continue
            contents = {kind: render(picture.figure, kind) for kind in FORMATS}
            contents["csv"] = to_csv(picture.data or picture.table).encode()
            for kind, content in contents.items():
                file = figures / f"{name}.{kind}"
                replace_file(file, content)
                yield file
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(
            f"The report cannot be written to {directory}: {reason}. Choose another directory with "
            "--out DIR."
        ) from error


def to_csv(table: "Table") -> str:
    """Return the table with all digits, means and standard deviations in columns of their own."""
    from .measures import Spread

    columns: list[list[Cell]] = []
    by_column = list(zip(*table.rows, strict=True)) or [() for _ in table.header]
    for title, cells in zip(table.header, by_column, strict=True):
        spreads = [cell if isinstance(cell, Spread) else None for cell in cells]
        means = [cell.number if isinstance(cell, Spread) else cell for cell in cells]
        if all(spread is None or spread.num == 1 for spread in spreads):
            columns.append([title, *means])
            continue
        deviations = [s.deviation if s is not None and s.num > 1 else None for s in spreads]
        columns += [[f"{title}, mean", *means], [f"{title}, std", *deviations]]
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(zip(*columns, strict=True))
    return file.getvalue()

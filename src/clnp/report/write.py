"""A report on disk: one page, and every figure in the formats that papers take."""

import csv
import importlib.util
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clnp.errors import ArgumentError, RunError
from clnp.runs.directory import expanded
from clnp.storage.atomic import replace_file

if TYPE_CHECKING:
    from .picture import Picture, Table

PAGE = "report.html"
FIGURES = "figures"
DEFAULT = "report"
"""The directory in a run that its report is written to."""


def write_report(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    out: str | os.PathLike[str] | None = None,
) -> list[Path]:
    """Write a report about runs, series or comparisons; its files, the page first.

        clnp.write_report("runs/permuted-digits-seed0")
        clnp.write_report(["runs/margin-1", "runs/margin-2"], out="margins")

    Several are overlaid. `out` is the directory for the report; for one run it need not be named,
    and is `report` in that run's directory.
    """
    several = _listed(paths)
    place = _place(several, out)
    if importlib.util.find_spec("matplotlib") is None:
        raise RunError(
            "the figures of a report are drawn by matplotlib, which is not installed: "
            "pip install 'clnp[report]'"
        )
    from .collection import read_collection
    from .page import make_page
    from .style import drawing

    collection = read_collection(several)
    with drawing():
        return list(_write(place, *make_page(collection)))


def _listed(paths: Any) -> list[str | os.PathLike[str]]:
    """The paths in a list, also a single one."""
    several = list(paths) if isinstance(paths, Iterable) and not isinstance(paths, str) else [paths]
    for path in several:
        if not isinstance(path, str | os.PathLike):
            message = f"{path!r} is no directory of a run; name one, or give a list of them"
            raise ArgumentError(message, argument="paths")
    return several


def _place(paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str] | None) -> Path:
    if out is not None:
        return expanded(out)
    if len(paths) > 1:
        raise RunError(
            f"a report about {len(paths)} runs belongs to none of them: name its directory, "
            "--out DIR"
        )
    if not paths:
        raise RunError("name a run to report on")
    return expanded(paths[0]) / DEFAULT


def _write(place: Path, page: str, pictures: Sequence["Picture"]) -> Iterator[Path]:
    from .rendering import FORMATS, render

    try:
        figures = place / FIGURES
        figures.mkdir(parents=True, exist_ok=True)
        for old in _of_earlier(figures, {picture.name for picture in pictures}):
            old.unlink()
        replace_file(place / PAGE, page.encode())
        yield place / PAGE
        for picture in pictures:
            for kind in FORMATS:
                file = figures / f"{picture.name}.{kind}"
                replace_file(file, render(picture.figure, kind))
                yield file
            file = figures / f"{picture.name}.csv"
            replace_file(file, _csv(picture.data or picture.table).encode())
            yield file
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(
            f"cannot write the report to {place}: {reason}; name another directory, --out DIR"
        ) from error


NAMES = (
    "accuracy",
    "average",
    "capacity",
    "grid",
    "growth",
    "loss",
    "matrix",
    "pruning",
    "reuse",
    "threshold",
    "validation",
)
"""What figures are called."""


def _of_earlier(figures: Path, names: set[str]) -> list[Path]:
    """The files of figures that an earlier report had and this one has not."""
    kinds = ("svg", "pdf", "png", "csv")
    gone = (figures / f"{name}.{kind}" for name in NAMES if name not in names for kind in kinds)
    return [file for file in gone if file.exists()]


def _csv(table: "Table") -> str:
    """The table with all digits; means and deviations in columns of their own."""
    from .measures import Rounded

    columns: list[list[Any]] = []
    by_column = list(zip(*table.rows, strict=True)) or [() for _ in table.header]
    for title, cells in zip(table.header, by_column, strict=True):
        spreads = [cell.spread if isinstance(cell, Rounded) else None for cell in cells]
        if not any(spreads):
            columns.append([title, *cells])
            continue
        means = [cell.number if isinstance(cell, Rounded) else cell for cell in cells]
        if all(s is None or s.num == 1 for s in spreads):
            columns.append([title, *means])
            continue
        deviations = [s.deviation if s is not None and s.num > 1 else None for s in spreads]
        columns += [[f"{title}, mean", *means], [f"{title}, std", *deviations]]
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(zip(*columns, strict=True))
    return file.getvalue()

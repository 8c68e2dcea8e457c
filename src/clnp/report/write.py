"""A report on disk: one page, and each figure in the formats of papers."""

import importlib.util
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clnp import extras
from clnp.errors import FAILURE, ArgumentError, RunError
from clnp.runs.directory import expanded
from clnp.storage.atomic import replace_file
from clnp.studies.tables import KINDS

if TYPE_CHECKING:
    from .page import Page

PAGE = "report.html"
FIGURES = "figures"
TABLE = "comparison"
"""The table of several members, as in a comparison."""
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
        files = list(_write(directory, make_page(collection)))
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


def _write(directory: Path, page: "Page") -> Iterator[Path]:
    from .render import FORMATS, render

    try:
        figures = directory / FIGURES
        figures.mkdir(parents=True, exist_ok=True)
        replace_file(directory / PAGE, page.text.encode())
        yield directory / PAGE
        for name in dict.fromkeys([*page.pictures, *page.tables, TABLE]):
            picture, table = page.pictures.get(name), page.tables.get(name)
            contents: dict[str, bytes] = {}
            if picture is not None:
                contents |= {kind: render(picture.figure, kind) for kind in FORMATS}
            if table is not None:
                contents |= {kind: text.encode() for kind, text in table.written().items()}
            for kind in (*FORMATS, *KINDS):
                file = figures / f"{name}.{kind}"
                if kind in contents:
                    replace_file(file, contents[kind])
                    yield file
                else:  # An earlier report may have had it.
                    file.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(
            f"The report cannot be written to {directory}: {reason}. Choose another directory with "
            "--out DIR."
        ) from error

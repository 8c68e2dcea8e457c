"""What the commands of `clnp` that learn do: each gives back what `--json` prints, and text."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clnp.devices import find_device
from clnp.errors import RunError
from clnp.recipes.schema import to_toml
from clnp.runs.directory import CONFIG, FORMAT, RECIPE, expanded, has_learnt, writing
from clnp.studies.comparison import go_on_comparing, read_comparison
from clnp.studies.launch import (
    HEADER,
    Answer,
    Circumstances,
    Source,
    add_tasks,
    begin,
    data_of,
    go_on_with,
)
from clnp.studies.series import add_seeds, begin_series, go_on_with_series, is_longer, read_series
from clnp.terminal.progress import Silence


def start(
    source: Source,
    place: Circumstances,
    *,
    seed: int | None,
    num_seeds: int | None,
    search_once: bool,
    num_jobs: int,
    out: str | None,
    console: Silence,
) -> Answer:
    """Begin a run of a recipe, or one for each of several seeds, and carry it out."""
    loaded = source.load(seed)
    first, short = loaded.recipe.seed, loaded.name
    find_device(place.device)  # Before anything is made.
    if num_seeds is None:
        if search_once or num_jobs > 1:
            option = "--search-once" if search_once else "--jobs"
            raise RunError(f"{option} is for a series: name the number of seeds, --seeds 5")
        with _directory(out, f"{short}-seed{first}") as path:
            if os.path.isfile(path / CONFIG) and has_learnt(path):
                return add_tasks(loaded, path, place, console)
            return begin(loaded, path, place, console)
    seeds = list(range(first, first + num_seeds))
    series = {
        "format": FORMAT,
        "recipe": short,
        "seeds": seeds,
        "search_once": search_once,
        "data": data_of(place.data),
    }
    with _directory(out, f"{short}-{num_seeds}seeds") as path:
        if is_longer(path, series, loaded.recipe):
            add_seeds(path, read_series(path), seeds)
        else:
            begin_series(path, series, to_toml(loaded.recipe, header=HEADER))
    return go_on_with_series(path, source, place, num_jobs=num_jobs, console=console)


def resume(path: str, place: Circumstances, *, num_jobs: int, console: Silence) -> Answer:
    """Go on with a run, or a series of them, that was stopped, killed or lost its machine."""
    run = expanded(path)
    if read_comparison(run):
        return go_on_comparing(run, place, num_jobs=num_jobs, console=console)
    if read_series(run):
        source = Source(str(run / RECIPE))
        return go_on_with_series(run, source, place, num_jobs=num_jobs, console=console)
    if num_jobs > 1:
        raise RunError(f"--jobs is for a series, and {path} is one run")
    return go_on_with(run, place, console)


@contextmanager
def _directory(out: str | None, stem: str) -> Iterator[Path]:
    """The directory that was named; else one of its own, which goes again if it stays empty."""
    if out is not None:
        yield expanded(out)
        return
    folder = Path("runs")
    is_new = not folder.exists()
    path = _claimed(folder, stem)
    try:
        yield path
    finally:
        with suppress(OSError):  # It is not empty.
            path.rmdir()
            if is_new:
                folder.rmdir()


def _claimed(folder: Path, stem: str) -> Path:
    """A directory that was not there, made: others that are started now take another."""
    path, number = folder / stem, 1
    with writing(path):
        while True:
            try:
                path.mkdir(parents=True)
                return path
            except FileExistsError:
                if not os.path.lexists(path):
                    raise  # The folder is what cannot be made.
            number += 1
            path = folder / f"{stem}-{number}"

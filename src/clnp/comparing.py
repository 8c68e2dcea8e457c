"""A recipe carried out with several methods, whose runs are compared."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .atomic import TEMPORARY, replace_file
from .baselines.methods import NAMES
from .carrying import HEADER, Answer, Circumstances, Source, data_of
from .compare import COMPARISON, TABLE, read_comparison, rows, texts
from .console import Silence
from .errors import RunError, unknown_name
from .ours import OURS
from .recipe import difference
from .runs import CONFIG, FORMAT, LOCK, RECIPE, command, expanded, locked, to_json, writing
from .schema import to_toml
from .series import SERIES, finished_results, read_series, run_of
from .several import Member, add_seeds, begin_series, carry_out_together, check_data, summarise

WORDS = {
    "recipe": "recipe is",
    "seeds": "seeds are",
    "search_once": "--search-once is",
}
"""What a comparison is, and stays, but for seeds that are added."""


def compare(
    source: Source,
    place: Circumstances,
    *,
    methods: Sequence[str],
    seed: int | None,
    num_seeds: int | None,
    search_once: bool,
    num_jobs: int,
    out: str | None,
    console: Silence,
) -> Answer:
    """Carry out a recipe with several methods, and compare what they come to.

    Unless their number is given, seeds are those that the comparison has: one, if it begins.
    """
    for method in methods:
        if method not in NAMES:
            raise RunError(unknown_name("method", method, NAMES))
    loaded = source.load(seed)
    path = expanded(out) if out is not None else Path("runs") / f"{loaded.name}-compared"
    with _alone(path):
        before = read_comparison(path)
        if not before:
            _check_empty(path)
        held = before.get("seeds", [])
        first, num_all = loaded.recipe.seed, num_seeds or len(held) or 1
        known: dict[str, Any] = {
            "format": FORMAT,
            "recipe": loaded.name,
            "seeds": list(range(first, first + num_all)),
            "search_once": search_once,
            "data": data_of(place.data),
            # Methods may be added to a comparison later, and seeds.
            "methods": list(dict.fromkeys([*before.get("methods", []), *methods])),
        }
        for key, words in WORDS.items():
            grows = key == "seeds" and held == known["seeds"][: len(held)]
            if before and before.get(key) != known[key] and not grows:
                raise RunError(
                    f"{path} is another comparison: its {words} {_in_words(before.get(key))}, not "
                    f"{_in_words(known[key])}; name another directory"
                )
        begun = [m for m in before.get("methods", []) if _has_begun(path / m, held)]
        for method in (m for m in begun if (path / m / RECIPE).is_file()):
            now = source.with_method(method).load(first).recipe
            if found := difference(now, Source(str(path / method / RECIPE)).load().recipe):
                key, values = found
                raise RunError(
                    f"{path} is another comparison: {key} of its {method} is {values}; name "
                    "another directory"
                )
        recipe = to_toml(loaded.recipe, header=HEADER)
        return _carry_out(
            path, known, methods, place, num_jobs=num_jobs, console=console, recipe=recipe
        )


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes away from the comparison; a directory that stays empty goes again."""
    is_new = not path.exists()
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        lock = locked(path)
    try:
        yield
    finally:
        lock.release()
        if is_new and not (path / COMPARISON).exists():
            with suppress(OSError):
                (path / LOCK).unlink(missing_ok=True)
                path.rmdir()


def go_on_comparing(path: Path, place: Circumstances, *, num_jobs: int, console: Silence) -> Answer:
    """Carry out all runs of a comparison that are not finished; the table of all methods."""
    with _alone(path):
        known = read_comparison(path)
        methods = known["methods"]
        return _carry_out(path, known, methods, place, num_jobs=num_jobs, console=console)


def _carry_out(
    path: Path,
    known: Mapping[str, Any],
    methods: Sequence[str],
    place: Circumstances,
    *,
    num_jobs: int,
    console: Silence,
    recipe: str | None = None,
) -> Answer:
    """Carry out all runs of these methods that are not finished; the table of all methods.

    What is finished is in the table's files also if some runs fail or are stopped. A comparison
    keeps its `recipe`: the user's own may be another by the time that a method begins.
    """
    _check_data(path, known, methods, place, console)
    with writing(path):
        if recipe is not None:
            replace_file(path / RECIPE, recipe.encode())
        replace_file(path / COMPARISON, to_json(known, indent=1).encode())
    runs = []
    for method in methods:
        series = read_series(path / method)
        if series and _has_begun(path / method, known["seeds"]):
            add_seeds(path / method, series, known["seeds"])
        else:
            _begin_method(path / method, known)
        source = Source(str(path / method / RECIPE))
        runs += [
            Member(path / method, seed, source, f"{method}, seed {seed}") for seed in known["seeds"]
        ]
    # Where the first run of a grid searches for the others, it comes first.
    searching = [run for run in runs if known.get("search_once") and run.series.name == OURS]
    first, failed = [run for run in searching if run.seed == known["seeds"][0]], None
    try:
        try:
            carry_out_together(path, first, place, num_jobs=num_jobs, console=console)
        except RunError as error:
            failed = error
        left = [run for run in runs if run not in (first if failed is None else searching)]
        carry_out_together(path, left, place, num_jobs=num_jobs, console=console)
        if failed is not None:
            raise failed
    except BaseException:
        with suppress(RunError):  # What it broke off with says more.
            _write_table(path)
        raise
    found, text = _write_table(path)
    for method in methods:
        summarise(path / method)
    text += f"\nThe runs are in {path}, the table in {path / TABLE}.*"
    num_seeds = len(known["seeds"])
    others = [m for m in known["methods"] if len(finished_results(path / m)) < num_seeds]
    if others:
        again = command("resume", path)
        text += f"\nSeeds of {', '.join(others)} are missing; carry them out with: {again}"
    return found, text


def _begin_method(path: Path, known: Mapping[str, Any]) -> None:
    """Write down what the series of a method is, also if its runs are there and that was lost."""
    series = {**known, "methods": [path.name]}
    source = Source(str(path.parent / RECIPE)).with_method(path.name)
    text = to_toml(source.load(known["seeds"][0]).recipe, header=HEADER)
    if not _has_begun(path, known["seeds"]):
        begin_series(path, series, text)
        return
    first = run_of(path, known["seeds"][0])  # It began with the recipe of the series.
    held = [place / RECIPE for place in (path, first) if (place / RECIPE).is_file()]
    with writing(path):
        replace_file(path / RECIPE, held[0].read_bytes() if held else text.encode())
        replace_file(path / SERIES, to_json(series, indent=1).encode())


def _check_empty(path: Path) -> None:
    """Refuse to write a comparison beside something else."""
    with writing(path):
        found = list(path.iterdir()) if path.exists() else []
    if any(file.name != LOCK and TEMPORARY not in file.name for file in found):
        raise RunError(f"{path} is not empty; give the comparison a directory of its own")


def _has_begun(path: Path, seeds: Sequence[int]) -> bool:
    """Whether a run of the series is there."""
    return any(os.path.isfile(run_of(path, seed) / CONFIG) for seed in seeds)


def _check_data(
    path: Path,
    known: Mapping[str, Any],
    methods: Sequence[str],
    place: Circumstances,
    console: Silence,
) -> None:
    """Refuse to begin runs with other data than the runs of the comparison that are there have."""
    runs = {m: [run_of(path / m, seed) for seed in known["seeds"]] for m in known["methods"]}
    begun = [run for own in runs.values() for run in own if (run / CONFIG).is_file()]
    wanted = [m for m in methods if begun and not set(runs[m]) <= set(begun)]
    if wanted:
        held = {m: read_series(path / m) for m in wanted if _has_begun(path / m, known["seeds"])}
        places = (place.data or {**known, **held.get(m, {})}.get("data") for m in wanted)
        check_data(begun[0], places, console)


def _write_table(path: Path) -> tuple[list[dict[str, Any]], str]:
    """The table of a comparison as far as it is finished, in its files; its rows and its text."""
    found = rows(path)
    written = texts(found)
    with writing(path):
        replace_file(path / f"{TABLE}.json", (to_json(found, indent=1) + "\n").encode())
        for ending, text in written.items():
            replace_file(path / f"{TABLE}.{ending}", text.encode())
    return found, written["txt"]


def _in_words(value: Any) -> str:
    """A value of a comparison's file, lists and all, in one line."""
    if isinstance(value, list):
        return " ".join(_in_words(each) for each in value) or "none"
    return str(value)

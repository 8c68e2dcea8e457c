"""A series or a comparison in a directory: its config, its recipe and its runs.

series.json             the `SeriesConfig` of a series: the recipe's name, the seeds, the data
compare.json            that of a comparison, which also has methods
recipe.toml             the recipe with every default
seed0/, seed1/, ...     a run for each seed of a series
clnp/, ewc/, ...        a series for each method of a comparison

Nothing here imports PyTorch.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from clnp.errors import RunError
from clnp.plain import to_json
from clnp.records import RunResult, SeriesConfig, SettingsSource, TuningRecord
from clnp.runs.directory import (
    CONFIG,
    LOCK,
    RECIPE,
    locked,
    read_record,
    read_result,
    removed,
    restored,
    warn,
    writing,
)
from clnp.storage.atomic import replace_file

SERIES = "series.json"
COMPARISON = "compare.json"
TUNING = "tuning.json"


@dataclass(frozen=True)
class Member:
    """A run of a series, and its title among those of the series or comparison."""

    series: Path
    seed: int
    title: str

    @property
    def path(self) -> Path:
        """The directory of the run."""
        return run_of(self.series, self.seed)

    @property
    def started(self) -> bool:
        """Whether the directory has a run."""
        return os.path.isfile(self.path / CONFIG)


def run_of(path: Path, seed: int) -> Path:
    """Return the directory of the run with this seed."""
    return path / f"seed{seed}"


def has_started(path: Path, seeds: Sequence[int]) -> bool:
    """Whether a series has a run with one of these seeds."""
    return any(Member(path, seed, "").started for seed in seeds)


def read_series(path: Path) -> SeriesConfig | None:
    """Return the config of the series at `path`; None if there is none."""
    return read_study(path / SERIES)


def read_comparison(path: Path) -> SeriesConfig | None:
    """Return the config of the comparison at `path`; None if there is none."""
    return read_study(path / COMPARISON)


def read_study(file: Path) -> SeriesConfig | None:
    """Return the config of a series or comparison in this file; None if there is none."""
    config = read_record(file, SeriesConfig) if os.path.isfile(file) else None
    if config is not None:
        for key in ("seeds", "methods") if file.name == COMPARISON else ("seeds",):
            if not getattr(config, key):
                raise RunError(
                    f"{file} is damaged: it has no {key}. Restore a copy of it, or start again in "
                    "another directory."
                )
    return config


def members_of(path: Path, config: SeriesConfig, methods: Sequence[str] = ()) -> list[Member]:
    """Return the runs of a series, or those of these methods of a comparison."""
    if not methods:
        return [Member(path, seed, f"seed {seed}") for seed in config.seeds]
    return [
        Member(path / method, seed, f"{method}, seed {seed}")
        for method in methods
        for seed in config.seeds
    ]


@contextmanager
def in_use(path: Path) -> Iterator[None]:
    """Lock the directory of a series or comparison, and remove a new one that stays empty."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        is_new = not any(path.iterdir())
        lock = locked(path)
    try:
        yield
    finally:
        lock.release()
        if is_new and not any((path / name).exists() for name in (SERIES, COMPARISON)):
            with suppress(OSError):
                (path / LOCK).unlink(missing_ok=True)
                path.rmdir()


@contextmanager
def kept(*files: Path) -> Iterator[None]:
    """Write files again that disappear while runs are working; the first is in their directory."""
    path = files[0].parent
    contents = {file: file.read_bytes() for file in files if file.is_file()}
    try:
        yield
    finally:
        if not path.is_dir():
            raise RunError(removed(path))
        lost = [file for file in contents if not file.exists()]
        with writing(path):
            for file in lost:
                file.parent.mkdir(exist_ok=True)
                replace_file(file, contents[file])
        if lost:
            warn(restored(path, [str(file.relative_to(path)) for file in lost]))


def settings_sources(path: Path, methods: Sequence[str]) -> dict[str, SettingsSource | None]:
    """Return where the settings of these methods of a comparison come from, as far as is known."""
    return {name: (read_series(path / name) or SeriesConfig()).settings for name in methods}


def tuning_path(path: Path, method: str) -> Path:
    """Return the directory of the trials of a method of the comparison at `path`."""
    return path / "tuning" / method


def trial_path(path: Path, method: str, number: int) -> Path:
    """Return the directory of a trial, which counts from 0."""
    return tuning_path(path, method) / f"trial-{number:03}"


def read_tuning(path: Path, method: str) -> TuningRecord | None:
    """Return the trials of a method of the comparison at `path`; None if it is not tuned."""
    file = tuning_path(path, method) / TUNING
    return read_record(file, TuningRecord) if os.path.isfile(file) else None


def open_trials(path: Path, method: str) -> list[Member]:
    """Return the runs of the trials that have no score yet."""
    record = read_tuning(path, method) or TuningRecord()
    return [
        Member(trial_path(path, method, n), seed, f"{method}, trial {n}, seed {seed}")
        for n, trial in enumerate(record.trials)
        for seed in record.seeds
        if trial.status == "open"
    ]


def write_study(file: Path, config: SeriesConfig, recipe: str | None = None) -> None:
    """Write the config of a series or comparison, after its recipe if that is given."""
    path = file.parent
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        if recipe is not None:
            replace_file(path / RECIPE, recipe.encode())
        replace_file(file, to_json(config, indent=1).encode())


def finished_results(path: Path) -> list[RunResult]:
    """Return the results of all finished runs of a series, in the order of the seeds."""
    config = read_series(path) or SeriesConfig()
    results = [read_result(run_of(path, seed)) for seed in config.seeds]
    return [result for result in results if result is not None and result.finished]

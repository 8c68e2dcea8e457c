"""A run, a series or a comparison on one screen: its progress, scores, capacity and choices."""

import sys
from collections.abc import Sequence
from pathlib import Path

from clnp.records import OURS, ComparisonRow, Environment, RunConfig, RunResult, SeriesConfig
from clnp.runs.directory import (
    RESULT,
    checkpoint_problem,
    command,
    expanded,
    read_config,
    read_environments,
    read_result,
    reading,
    resume_command,
)
from clnp.runs.status import FAILED, FINISHED, STOPPED, read_status
from clnp.studies.study import (
    COMPARISON,
    SERIES,
    finished_results,
    read_study,
    read_tuning,
    settings_sources,
)
from clnp.studies.summaries import aggregate, comparison_table, described, rows_of
from clnp.text import duration

from .summary import FULL, Part, choices, everything, figures, proofs, room, stored
from .tables import Screen, blocks, plain_screen
from .watch import WAITING, Watcher, news, state_of, unfinished

Answer = dict[str, object]
"""Records by their name."""


def inspect(
    path: str, *, in_full: bool = False, screen: Screen | None = None
) -> tuple[Answer, str]:
    """Describe a run, a series or a comparison.

    Args:
        path: Its directory.
        in_full: Give all details of a run instead of one screen.
        screen: The screen to fill. Default: the terminal.

    Returns:
        The records of the run, and a text.
    """
    directory = expanded(path)
    with reading(directory):
        for name in (COMPARISON, SERIES):
            if (study := read_study(directory / name)) is not None:
                is_comparison, on = name == COMPARISON, screen or plain_screen(sys.stdout)
                return _several(directory, study, on, is_comparison=is_comparison)
    config, result = read_config(directory), read_result(directory)
    environments = read_environments(directory)
    answer: Answer = {
        **{"config": config, "environment": environments},
        **{"result": result, "status": read_status(directory)},
    }
    parts: list[Part] = [progress_of(directory, config, environments, result)]
    if in_full:
        return answer, FULL.page([*parts, *everything(config.settings, environments, result)])
    screen = screen or plain_screen(sys.stdout)
    notes: Part = []
    if result is not None:
        parts += figures(result, screen)
        problem = checkpoint_problem(directory) if result.tasks else None
        notes += [] if problem is None else [f"Damaged: the {problem}"]
        notes += [*choices(config.settings, result), *room(result)]
        notes += [*stored(result), *proofs(directory, result)]
    return answer, screen.page([*parts, [*notes, *environment_of(environments)]])


def compared(rows: Sequence[ComparisonRow], screen: Screen) -> str:
    """Return the table of a comparison as text."""
    made = comparison_table(rows)
    return screen.page([*([block] for block in blocks(made, screen)), made.footnotes])


def _several(
    path: Path, config: SeriesConfig, screen: Screen, *, is_comparison: bool
) -> tuple[Answer, str]:
    scene = Watcher(path).look()
    answer: Answer = {str(scene.kind): config}
    methods, text = "", ""
    if is_comparison:
        names = config.methods or ()
        methods = f" with {', '.join(names)}"
        found = {name: finished_results(path / name) for name in names}
        answer["table"] = rows = rows_of(found, settings_sources(path, names))
        text = compared(rows, screen) if rows else ""
    else:
        results = finished_results(path)
        answer["summary"] = summary = aggregate(results) if results else None
        text = described(summary) if summary else ""
    title = f"{path}: {config.recipe}{methods}, {scene.finished}"
    tunings = [read_tuning(path, name) for name in config.tuned or ()]
    if tunings:
        answer["tuning"] = tunings
    searched = [record.described for record in tunings if record is not None]
    lines = "\n".join([title, *unfinished(scene), *searched])
    return answer, f"{lines}\n\n{text}" if text else lines


def progress_of(
    path: Path, config: RunConfig, environments: tuple[Environment, ...], result: RunResult | None
) -> Part:
    """Return what a run is, where it ran, and its state, in lines."""
    recipe = config.recipe or "an experiment"
    method = "" if config.method == OURS else f"{config.method}, "
    lines: Part = [f"{path}: {recipe}, {method}seed {config.seed}, head {config.head}"]
    if environments:
        last = environments[-1]
        times = "once" if len(environments) == 1 else f"{len(environments)} times"
        lines.append(
            f"started {times}, last {_known(last.began)} on {_known(last.gpu or last.cpu)}, "
            f"torch {_known(last.torch)}, clnp {_known(last.clnp)}"
        )
    scene, resume = Watcher(path).look(), resume_command(path)
    [run] = scene.runs
    num_done = f"{len(result.tasks) if result else 0} of {len(config.tasks)} tasks"
    if result is not None and result.finished:
        return [*lines, f"finished: {num_done} in {duration(result.timings.seconds)}"]
    if run.state in (WAITING, FINISHED):
        return [*lines, f"finished, but its {RESULT} is missing. Restore it with {resume}."]
    if run.state == FAILED:
        lines.append(f"failed after {num_done}: {run.status.reason}")
        if not run.status.mendable:
            remedy = "Change the recipe, and start a new run."
            if result and result.tasks and config.method == OURS:
                again = f"`{command('run RECIPE --out', path)}`" if config.recipe else resume
                remedy = (
                    f"Change that task or its settings, or leave it out, and resume with {again}."
                )
            lines.append(f"Resuming it would fail again. {remedy}")
        elif resume not in (run.status.reason or ""):
            lines.append(f"Resume with {resume} once that is solved.")
        return lines
    if run.state == STOPPED or run.dead:
        return [*lines, state_of(run)]
    lines.append(f"not finished: {num_done}")
    if run.status.open is not None:
        lines.append(f"now: {state_of(run)}")
    return [*lines, news(scene)]


def environment_of(environments: tuple[Environment, ...]) -> list[str]:
    """Return the environment of the last start, as far as the state of the run leaves it out."""
    if not environments:
        return []
    last = environments[-1]
    cuda = [f"CUDA {last.cuda}"] if last.cuda else []
    threads = f"{_known(last.num_threads)} thread{'' if last.num_threads == 1 else 's'}"
    commit = last.commit or "not known"
    # A commit that ends with a plus has files that differ from it.
    parts = [f"Python {_known(last.python)}", f"NumPy {_known(last.numpy)}", *cuda]
    parts += [f"{_known(last.platform)}, {threads}"]
    parts.append(f"commit {commit[:12]}{'+' if commit.endswith('+') else ''}")
    return [f"Environment: {', '.join(parts)}."]


def _known(value: object) -> str:
    return "?" if value is None else str(value)

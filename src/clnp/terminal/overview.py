"""A run on one screen: its progress, scores, capacity and choices."""

import math
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from clnp.core.layers.ledger import free_fraction
from clnp.records import (
    OURS,
    Environment,
    LearnerSettings,
    RunConfig,
    RunResult,
    SeriesConfig,
    TaskRecord,
    alpha_text,
)
from clnp.runs.directory import (
    CHECKPOINT,
    COMPARISON,
    RECIPE,
    RESULT,
    SERIES,
    command,
    expanded,
    read_config,
    read_environments,
    read_record,
    read_result,
    reading,
    resume_command,
)
from clnp.runs.metrics import backward_transfer, forgetting
from clnp.runs.status import FAILED, FINISHED, STOPPED, read_status
from clnp.text import duration

from .summary import everything, guesses, part_of, sentence, verdict
from .tables import Screen, layers, measure, printable, screen_of, tasks
from .watch import Watcher, news, state_of, unfinished

MOST_CHOICES = 2
"""Winners of the grid that are spelled out."""
LEGEND = "Neurons: new ones that the task claimed + those of earlier tasks that it reuses"


def inspect(path: str, *, in_full: bool = False, screen: Screen | None = None) -> tuple[Any, str]:
    """Describe a run, a series or a comparison.

    Args:
        path: Its directory.
        in_full: Give all details of a run instead of one screen.
        screen: The screen to fill. Default: the terminal.

    Returns:
        The records of the run, and a text.
    """
    directory = expanded(path)
    if any(os.path.isfile(directory / name) for name in (COMPARISON, SERIES)):
        with reading(directory):
            return _several(directory)
    config, result = read_config(directory), read_result(directory)
    environments = read_environments(directory)
    answer = {
        **{"config": config, "environment": environments},
        **{"result": result, "status": read_status(directory)},
    }
    screen = screen or screen_of(sys.stdout)
    state = progress_of(directory, config, environments, result)
    if in_full:
        details = everything(config.settings, environments, result)
        lines = "\n\n".join(["\n".join(state), *details]).split("\n")
        return answer, "\n".join(map(printable, lines))
    return answer, overview(directory, config, environments, result, state, screen=screen)


def _several(directory: Path) -> tuple[Any, str]:
    from clnp.studies import comparison, series

    scene = Watcher(directory).look(patience=0.0)
    name = COMPARISON if scene.kind == "comparison" else SERIES
    config = read_record(directory / name, SeriesConfig) or SeriesConfig()
    answer: dict[str, Any] = {str(scene.kind): config}
    methods, text = "", ""
    if scene.kind == "comparison":
        methods = f" with {', '.join(config.methods or ())}"
        answer["table"] = rows = comparison.rows(directory)
        text = comparison.texts(rows)["txt"].rstrip() if rows else ""
    else:
        results = series.finished_results(directory)
        answer["summary"] = found = series.aggregate(results) if results else None
        text = series.described(found) if found else ""
    title = f"{directory}: {config.recipe}{methods}, {scene.finished}"
    lines = "\n".join([title, *unfinished(scene)])
    return answer, f"{lines}\n\n{text}" if text else lines


def progress_of(
    path: Path,
    config: RunConfig,
    environments: Sequence[Environment],
    result: RunResult | None,
) -> list[str]:
    """Return what a run is, where it ran, and its state, in lines."""
    recipe = config.recipe or "an experiment"
    method = "" if config.method == OURS else f"{config.method}, "
    lines = [f"{path}: {recipe}, {method}seed {config.seed}, head {config.head}"]
    if environments:
        last = environments[-1]
        times = "once" if len(environments) == 1 else f"{len(environments)} times"
        lines.append(
            f"started {times}, last {_known(last.began)} on {_known(last.gpu or last.cpu)}, "
            f"torch {_known(last.torch)}, clnp {_known(last.clnp)}"
        )
    scene = Watcher(path).look(patience=0.0)
    [run] = scene.runs
    status, resume = run.status, resume_command(path)
    num_done = f"{len(result.tasks) if result else 0} of {len(config.tasks)} tasks"
    if result is not None and result.finished:
        return [*lines, f"finished: {num_done} in {duration(result.timings.seconds)}"]
    if status is None or status.state == FINISHED:
        return [*lines, f"finished, but its {RESULT} is missing. Restore it with {resume}."]
    if status.state == FAILED:
        lines.append(f"failed after {num_done}: {status.reason}")
        if not status.mendable:
            remedy = "Change the recipe, and start a new run."
            if result and result.tasks and config.method == OURS:
                again = f"`{command('run RECIPE --out', path)}`" if config.recipe else resume
                remedy = (
                    f"Change that task or its settings, or leave it out, and resume with {again}."
                )
            lines.append(f"Resuming it would fail again. {remedy}")
        elif resume not in (status.reason or ""):
            lines.append(f"Resume with {resume} once that is solved.")
        return lines
    if status.state == STOPPED or run.dead:
        return [*lines, state_of(run)]
    lines.append(f"not finished: {num_done}")
    if status.open is not None:
        lines.append(f"now: {state_of(run)}")
    return [*lines, news(scene)]


def overview(
    path: Path,
    config: RunConfig,
    environments: Sequence[Environment],
    result: RunResult | None,
    state: Sequence[str],
    *,
    screen: Screen,
) -> str:
    """Return a run on one screen, below the lines about its state."""
    parts: list[list[Any]] = [[*state]]
    notes: list[str] = []
    if result is not None and result.tasks:
        parts.append(headline(result))
        groups = bool(result.capacity.sizes)
        parts.append([tasks(result, screen), *([LEGEND] if groups else [])])
        if groups:
            parts.append([layers(result, screen)])
        notes = [*choices(config.settings, result), *room(result), *stored(result)]
        notes += proofs(path, result)
    elif result is not None:
        parts.append(["No task has ended yet."])
        notes = room(result)
    parts.append([*notes, *last_environment(environments)])
    return "\n\n".join(screen.text(*lines) for lines in parts if lines)


def headline(result: RunResult) -> list[str]:
    """Return average, forgetting and free neurons, and whether that has been verified."""
    now = result.scores[-1] if result.scores else ()
    known = [score for score in now if score is not None]
    words = []
    if known:
        words.append(f"average {measure(result)}{part_of(known, result.tasks)} {fmean(known):.2f}")
    lost = forgetting(result.scores) if result.scores else None
    same = all(task.unchanged in (True, None) for task in result.tasks)
    if same and lost is not None and math.isfinite(lost):
        words.append("forgetting exactly 0" if lost == 0 else f"forgetting {lost:.2f}")
    elif lost is not None:
        words.append(f"forgetting {lost:.2f}")
        change = backward_transfer(result.scores)
        words += [] if change is None else [f"backward transfer {change:.2f}"]
    if result.capacity.sizes:
        free = free_fraction(result.capacity.free, result.capacity.sizes)
        words.append(f"layers {100 * free:.0f} % free on average")
    lines = [sentence(", ".join(words))] if words else []
    if any(task.unchanged is not None for task in result.tasks):
        lines.append(f"Checked after every task; {verdict(result)}.")
    return [*lines, *guesses(result.tasks)]


def choices(settings: LearnerSettings, result: RunResult) -> list[str]:
    """Return what pruning lost, and what was chosen from the grid."""
    records = result.tasks
    if result.method != OURS:
        return []
    changes = [
        record.score - record.best_score
        for record in records
        if record.best_score is not None and record.score is not None
    ]
    how = "one threshold for each layer" if settings.per_layer else "one threshold"
    text = f"Pruning: by {settings.importance}, {how}, margin {settings.margin:g}"
    if settings.tasks:
        text += " unless a task has its own"
    if changes:
        # Fine-tuning may make up for more than pruning lost.
        mean, worst = (f"{value:+.2f}" for value in (fmean(changes), min(changes)))
        text += f"; change in validation {mean} on average, {worst} at worst"
    if settings.fine_tuning is not None:
        rounds = Counter(record.num_rounds for record in records)
        kept = ", ".join(
            f"{times} by {count} task{'' if count == 1 else 's'}"
            for times, count in sorted(rounds.items())
        )
        text += f"; fine-tuning rounds kept: {kept}"
    return [f"{text}.", *_grid(records)]


def _grid(records: Sequence[TaskRecord]) -> list[str]:
    searched = [record for record in records if record.winner < len(record.candidates)]
    if not searched:
        return []
    tried = [len(record.candidates) for record in searched]
    diverged = sum(c.diverged is not None for record in searched for c in record.candidates)
    winners = Counter(
        f"alpha {alpha_text(winner.alpha)}, lr {winner.lr:g}"
        for winner in (record.candidates[record.winner] for record in searched)
    )
    sizes = str(tried[0])
    if len(set(tried)) > 1:
        rest = " or ".join(map(str, sorted(set(tried[1:]))))
        sizes = f"{tried[0]} for the first task, {rest} for the others"
    most = [
        f"{choice} ({count} of {len(records)} tasks)"
        for choice, count in winners.most_common(MOST_CHOICES)
    ]
    if len(winners) > MOST_CHOICES:
        most.append(f"{len(winners) - MOST_CHOICES} others")
    end = f"; {diverged} diverged" if diverged else ""
    return [f"Grid: candidates {sizes}; chosen: {'; '.join(most)}{end}."]


def room(result: RunResult) -> list[str]:
    """Return why the network is full, if it is, and the forecast."""
    full = [] if result.full is None else [f"Full: {result.full.partition('. ')[0]}."]
    known = result.tasks and result.method == OURS and result.forecast
    return [*full, f"Room: {result.forecast}."] if known else full


def stored(result: RunResult) -> list[str]:
    """Return the size of ended tasks on a disk, and the memory that the run took."""
    sizes = {name: count for name, count in result.stored_bytes.items() if count}
    parts = [f"{name.replace('_', ' ')} {count / 1e6:.2f} MB" for name, count in sizes.items()]
    if peak := result.timings.peak_bytes:
        parts.append(f"peak memory of the run {peak / 1e6:.0f} MB")
    return [f"Size: {', '.join(parts)}."] if parts else []


def proofs(path: Path, result: RunResult) -> list[str]:
    """Return how many tasks have a certificate, and how to recompute them."""
    digests = list(result.certificates.values())
    if not digests:
        return []
    num_tasks = "1 task reads" if len(digests) == 1 else f"{len(digests)} tasks read"
    how = f"`{command('verify', path)}`"
    if not (path / RECIPE).is_file():
        how = f"`clnp.load` of its {CHECKPOINT}"
    return [
        f"Certificates: SHA-256 of everything that {num_tasks}, the last {digests[-1][:12]}; "
        f"{how} recomputes them."
    ]


def last_environment(environments: Sequence[Environment]) -> list[str]:
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

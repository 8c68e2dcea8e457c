"""The results of a run as text: those for a screen, and all of them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from rich.console import RenderableType

from clnp.core.forecast import RECENT
from clnp.core.layers.ledger import free_fraction
from clnp.records import (
    OURS,
    CandidateRecord,
    Environment,
    LearnerSettings,
    RunResult,
    TaskRecord,
    alpha_text,
)
from clnp.runs.directory import CHECKPOINT, RECIPE, command
from clnp.runs.metrics import backward_transfer, forgetting

from .tables import UNLIMITED, Screen, layers, measure, number, table, tasks

MOST_TASKS = 5
"""Tasks that a sentence names."""
MOST_CHOICES = 2
"""Winners of the grid that are spelled out."""
AS_GOOD = (
    "Always naming the same class is as good. Train longer, with another learning rate, a smaller "
    "alpha or a smaller margin."
)
"""The remedy for tasks in which nothing was learned."""
LEGEND = "Neurons: new + reused (of earlier tasks, and needed for 99 % of a layer's input)"
FULL = Screen(UNLIMITED, UNLIMITED)
"""A screen for all details."""

Part = list[RenderableType]
"""Lines and tables that stand below one another without a gap."""


def summary(result: RunResult, screen: Screen) -> str:
    """Return the result of a run: scores then and now, neurons by task and layer, room left."""
    return screen.page([*figures(result, screen), [*room(result)]])


def figures(result: RunResult, screen: Screen) -> list[Part]:
    """Return the headline and the tables of a result."""
    if not result.tasks:
        return [["No task has ended yet."]]
    parts: list[Part] = [[*headline(result)], [tasks(result, screen)]]
    if result.capacity.sizes:
        parts[-1].append(LEGEND)
        parts.append([layers(result, screen)])
    return parts


def headline(result: RunResult) -> list[str]:
    """Return average, forgetting and free neurons, and whether that has been verified."""
    now = result.scores[-1] if result.scores else ()
    known = [score for score in now if score is not None]
    words = []
    if known:
        words.append(f"average {measure(result)}{part_of(known, result.tasks)} {fmean(known):.2f}")
    # Of a single task there was nothing to forget yet.
    several = len(result.tasks) > 1
    lost = forgetting(result.scores) if result.scores and several else None
    if lost is not None:
        same = all(task.unchanged in (True, None) for task in result.tasks)
        words.append("forgetting exactly 0" if same and lost == 0 else f"forgetting {lost:.2f}")
        change = None if same else backward_transfer(result.scores)
        words += [] if change is None else [f"backward transfer {change:.2f}"]
    if result.capacity.sizes:
        free = free_fraction(result.capacity.free, result.capacity.sizes)
        words.append(f"layers {100 * free:.0f} % free on average")
    lines = [sentence(", ".join(words))] if words else []
    if several and any(task.unchanged is not None for task in result.tasks):
        lines.append(f"Checked after every task; {verdict(result)}.")
    return [*lines, *guesses(result.tasks)]


def sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def part_of(known: Sequence[object], tasks: Sequence[object]) -> str:
    """Return of how many tasks something is known, if it is not all of them."""
    return "" if len(known) == len(tasks) else f" of {len(known)} of {len(tasks)} tasks"


def verdict(result: RunResult) -> str:
    """Return whether the outputs of all tasks are the same as when those ended."""
    if result.method == "joint":
        return "all tasks were learned together, so there was nothing to forget"
    judged = [task.unchanged for task in result.tasks if task.unchanged is not None]
    if all(judged):
        which = part_of(judged, result.tasks)
        outputs = f"the outputs{which}" if which else "all outputs"
        return f"nothing was forgotten: {outputs} are the same to the last bit"
    end = ": see clnp verify" if result.method == OURS else ""
    return f"outputs differ from when their task ended{end}"


def guesses(tasks: Iterable[TaskRecord]) -> list[str]:
    """Return a sentence about the tasks in which nothing was learned, if there are any."""
    found = [task.task for task in tasks if task.is_guess]
    if not found:
        return []
    more = f" and {len(found) - MOST_TASKS} more" if len(found) > MOST_TASKS else ""
    return [f"NOT LEARNED: {', '.join(found[:MOST_TASKS])}{more}. {AS_GOOD}"]


def room(result: RunResult) -> list[str]:
    """Return why the network is full, if it is, and the forecast."""
    found = []
    if result.full is not None:
        # The remedy after the first sentence is for Python programs.
        reason = result.full.partition(". ")[0]
        found.append(f"Full: {reason}. Give the network larger widths, or the tasks more margin.")
    if any(task.is_guess for task in result.tasks[-RECENT:]) and result.method == OURS:
        found.append(
            "Room: unknown. The forecast depends on the last tasks, in which nothing was learned."
        )
    elif result.tasks and result.method == OURS and result.forecast:
        found.append(f"Room: {result.forecast}.")
    return found


def choices(settings: LearnerSettings, result: RunResult) -> list[str]:
    """Return what pruning lost, and what was chosen from the grid."""
    records = result.tasks
    if not records or result.method != OURS:
        return []
    changes = [
        record.score - record.best_score
        for record in records
        if record.best_score is not None and record.score is not None
    ]
    how = "one threshold for each layer" if settings.per_layer else "one threshold"
    criterion = settings.importance.partition(" ")[0]  # Of a function, without its hash.
    text = f"Pruning: by {criterion}, {how}, margin {settings.margin:g}"
    if settings.tasks:
        text += " unless a task has its own"
    if changes:
        # Fine-tuning may make up for more than pruning lost.
        mean, worst = (f"{value:+.2f}" for value in (fmean(changes), min(changes)))
        text += f"; change in validation {mean} on average, {worst} at worst"
    if settings.fine_tuning is not None:
        rounds = Counter(record.num_rounds for record in records)
        kept = ", ".join(f"{times} by {_tasks(count)}" for times, count in sorted(rounds.items()))
        text += f"; fine-tuning rounds kept: {kept}"
    return [f"{text}.", *_grid(records)]


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def _grid(records: Sequence[TaskRecord]) -> list[str]:
    searched = [record for record in records if record.winner < len(record.candidates)]
    if not searched:
        return []
    candidates = [each for record in searched for each in record.candidates]
    diverged = sum(each.diverged is not None for each in candidates)
    winners = Counter(
        f"alpha {alpha_text(winner.alpha)}, lr {winner.lr:g}"
        for winner in (record.candidates[record.winner] for record in searched)
    )
    parts = [f"{choice} ({_tasks(count)})" for choice, count in winners.most_common(MOST_CHOICES)]
    if len(winners) > MOST_CHOICES:
        parts.append(f"{len(winners) - MOST_CHOICES} others")
    end = f" ({diverged} diverged)" if diverged else ""
    return [f"Grid: {len(candidates)} candidates{end} in all; chosen: {'; '.join(parts)}."]


def stored(result: RunResult) -> list[str]:
    """Return the size of ended tasks on a disk, and the memory that the run took."""
    if not result.tasks:
        return []
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
    reads = f"{_tasks(len(digests))} {'reads' if len(digests) == 1 else 'read'}"
    how = f"`{command('verify', path)}`"
    if not (path / RECIPE).is_file():
        how = f"`clnp.load` of its {CHECKPOINT}"
    return [
        f"Certificates: SHA-256 of everything that {reads}, the last {digests[-1][:12]}; "
        f"{how} recomputes them."
    ]


def everything(
    settings: LearnerSettings, environments: Sequence[Environment], result: RunResult | None
) -> list[Part]:
    """Return all details of a run: every task, candidate, threshold and certificate."""
    parts: list[Part] = []
    if result is not None:
        parts += [*figures(result, FULL), [*room(result)]]
    if result is not None and result.tasks:
        parts.append(["Candidates", candidates(result)])
    if result is not None and result.tasks and result.method == OURS:
        parts.append([f"Pruning, margin {settings.margin:g}", thresholds(result)])
        digests = [[digest, task] for task, digest in result.certificates.items()]
        title = "Certificates, SHA-256 of what each task reads"
        parts.append([title, table(["", ""], digests, "ll")])
    for index, environment in enumerate(environments):
        values = {**asdict(environment), "command": " ".join(environment.command)}
        rows = [f"{name}: {value}" for name, value in values.items() if value is not None]
        parts.append([f"Environment of start {index + 1}", *rows])
    return parts


def candidates(result: RunResult) -> RenderableType:
    """Return a table of every candidate of every task; a star marks the chosen one."""

    def row(record: TaskRecord, index: int, candidate: CandidateRecord) -> list[str]:
        score = "diverged" if candidate.diverged else number(candidate.score)
        chosen = "*" if index == record.winner else ""
        settings = [alpha_text(candidate.alpha), f"{candidate.lr:g}", str(candidate.num_epochs)]
        return [record.task, chosen, *settings, score]

    head = ["task", "chosen", "alpha", "lr", "epochs", "validation"]
    rows = [row(r, i, each) for r in result.tasks for i, each in enumerate(r.candidates)]
    return table(head, rows)


def thresholds(result: RunResult) -> RenderableType:
    """Return a table of the scores before and after pruning and at the end, and thresholds."""
    groups = list(result.capacity.sizes)

    def threshold(values: Mapping[str, float], group: str) -> str:
        return f"{values[group]:.4g}" if group in values else "-"

    rows = [
        [
            record.task,
            number(record.best_score),
            number(record.pruning.score),
            number(record.score),
            str(record.num_rounds),
            *(threshold(record.pruning.thresholds, group) for group in groups),
        ]
        for record in result.tasks
    ]
    return table(["task", "best", "pruned", "at the end", "rounds", *groups], rows)

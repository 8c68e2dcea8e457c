"""The history of a run for reports: tasks, candidates, curves and neurons.

The files may be from an older version, unfinished or damaged: a missing value is None or empty.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clnp.core.forecast import Forecast
from clnp.core.pruning.plan import PruningPlan
from clnp.errors import RunError
from clnp.records import (
    CandidateChosen,
    CandidatePruned,
    CandidateRecord,
    CandidateTrained,
    Environment,
    EpochEnded,
    Event,
    RunConfig,
    RunFailed,
    RunFinished,
    RunResult,
    TaskRecord,
    alpha_text,
    task_of,
)
from clnp.text import all_shortened, clean, shortened

from .directory import (
    EVENTS,
    RECIPE,
    checkpoint_problem,
    expanded,
    name_of,
    read_config,
    read_environments,
    read_events,
    read_result,
)

LONGEST_GROUP = 32
"""Characters of the name of a group in a forecast."""


def room_left(forecast: Forecast) -> str:
    """Return the forecast as a sentence, with shortened names of groups."""
    text = str(forecast)
    groups = {*forecast.free, str(forecast.bottleneck)}
    long = sorted((g for g in groups if shortened(clean(g), LONGEST_GROUP) != g), key=len)
    short = all_shortened(long, LONGEST_GROUP)
    for group, name in reversed(list(zip(long, short, strict=True))):  # The longest first.
        text = text.replace(group, name)
    return text


@dataclass(frozen=True)
class CandidateHistory:
    """A combination of the grid: its settings, its training and, if it was pruned, its plan."""

    alpha: str
    lr: float | None
    score: float | None
    diverged: str | None
    epochs: tuple[EpochEnded, ...]
    plan: PruningPlan | None

    @property
    def name(self) -> str:
        """Alpha and learning rate as text."""
        lr = "?" if self.lr is None else f"{self.lr:g}"
        return f"alpha {self.alpha}, lr {lr}"


@dataclass(frozen=True)
class TaskHistory:
    """A task: its scores, neurons and candidates.

    `learned` is False while it is being trained. `test_score` is from when it ended, None if all
    tasks were learned together; `now` is from after the last task. `tuning` are the epochs of all
    rounds of fine-tuning. `is_a_guess` means that always naming the same class is as good.
    """

    name: str
    learned: bool
    is_a_guess: bool
    classification: bool
    test_score: float | None
    now: float | None
    unchanged: bool | None
    new: Mapping[str, int]
    reused: Mapping[str, int | None]
    candidates: tuple[CandidateHistory, ...]
    winner: int | None
    tuning: tuple[EpochEnded, ...]
    certificate: str | None
    seconds: float | None

    @property
    def chosen(self) -> CandidateHistory | None:
        """The winner, once there is one."""
        known = self.winner is not None and self.winner < len(self.candidates)
        return self.candidates[self.winner] if known and self.winner is not None else None


@dataclass(frozen=True)
class RunHistory:
    """A run: all tasks that have started, and the accuracy matrix of those that have ended."""

    path: Path
    recipe: str
    method: str
    seed: int | None
    head: str
    num_tasks: int
    finished: bool
    verified: bool
    full: str | None
    failed: str | None
    tasks: tuple[TaskHistory, ...]
    scores: tuple[tuple[float | None, ...], ...]
    sizes: Mapping[str, int]
    outlook: str | None
    num_more: int | None
    stored_bytes: float | None
    seconds: float | None
    peak_bytes: float | None
    config: RunConfig
    sessions: tuple[Environment, ...]
    text: str
    num_events: int
    num_damaged: int
    damaged: str | None
    network: str | None

    @property
    def learned(self) -> tuple[TaskHistory, ...]:
        """The tasks that have ended."""
        return tuple(task for task in self.tasks if task.learned)

    def used(self, group: str) -> list[int]:
        """Return the number of claimed neurons of a group, at the start and after each task."""
        found = [0]
        for task in self.learned:
            found.append(found[-1] + task.new.get(group, 0))
        return found


def read_run(path: str | os.PathLike[str]) -> RunHistory:
    """Return the history of the run at `path`; raise a `RunError` if there is none."""
    directory = expanded(path)
    config = read_config(directory)
    damaged = None
    result: RunResult | None
    try:
        result = read_result(directory)
    except RunError as error:
        result, damaged = None, str(error)
    result = result or RunResult()
    events = read_events(directory)
    failures = [event.reason for event in events if isinstance(event, RunFailed)]
    tasks = _read_tasks(config, result, events)
    sizes, forecast = result.capacity.sizes, result.forecast
    failed = bool(failures) and isinstance(events[-1], RunFailed)
    return RunHistory(
        path=directory,
        recipe=config.recipe or name_of(directory),
        method=result.method if result.format else config.method,
        seed=config.seed,
        head=config.head,
        num_tasks=len(config.tasks),
        finished=result.finished,
        # The last event of a run comes after its certificates have been verified.
        verified=any(isinstance(event, RunFinished) for event in events),
        full=result.full,
        failed=failures[-1] if failed else None,
        tasks=tasks,
        scores=_square(result, num_tasks=sum(task.learned for task in tasks)),
        sizes={group: size for group, size in sizes.items() if size},
        outlook=room_left(forecast) if forecast and sizes and tasks else None,
        num_more=forecast.num_tasks if forecast else None,
        stored_bytes=sum(result.stored_bytes.values()) if result.stored_bytes else None,
        seconds=result.timings.seconds or None,
        peak_bytes=result.timings.peak_bytes or None,
        config=config,
        sessions=read_environments(directory),
        text=_recipe_text(directory),
        num_events=len(events),
        num_damaged=_num_lines(directory) - len(events),
        damaged=damaged,
        network=checkpoint_problem(directory) if result.tasks else None,
    )


def _num_lines(directory: Path) -> int:
    try:
        lines = (directory / EVENTS).read_bytes().splitlines()
    except OSError:
        return 0
    return sum(1 for line in lines if line.strip())


def _recipe_text(directory: Path) -> str:
    try:
        return (directory / RECIPE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _square(result: RunResult, *, num_tasks: int) -> tuple[tuple[float | None, ...], ...]:
    """Return the accuracy matrix; row i has i + 1 scores, whatever the file contains."""
    rows = result.scores[:num_tasks]
    return tuple((*row, *[None] * (i + 1))[: i + 1] for i, row in enumerate(rows))


def _learned_together(scores: Sequence[Sequence[float | None]]) -> bool:
    """Whether tasks have a score at the end, and none from when they ended."""
    if not scores:
        return False
    pairs = zip((row[-1] for row in scores), scores[-1], strict=True)
    return any(then is None and now is not None for then, now in pairs)


def _read_tasks(
    config: RunConfig, result: RunResult, events: Sequence[Event]
) -> tuple[TaskHistory, ...]:
    """Return the tasks that have ended, as in the result, and after them the open one."""
    logged: dict[str, list[Event]] = {}
    for event in events:
        if (name := task_of(event)) is not None:
            logged.setdefault(name, []).append(event)
    records = {record.task: record for record in result.tasks}
    objectives = {task.name: task.objective for task in config.tasks}
    started = [n for n, own in logged.items() if any(isinstance(e, EpochEnded) for e in own)]
    last = result.scores[-1] if result.scores else ()
    seconds = result.timings.tasks
    together = _learned_together(_square(result, num_tasks=len(records)))
    histories = []
    for index, name in enumerate(dict.fromkeys([*records, *started])):
        record, own = records.get(name, TaskRecord(name)), logged.get(name, [])
        candidates, winner = _candidates(record if name in records else None, own)
        histories.append(
            TaskHistory(
                name=name,
                learned=name in records,
                is_a_guess=record.is_guess,
                classification=(record.objective or objectives.get(name)) == "classification",
                test_score=None if together else record.test_score,
                now=last[index] if index < len(last) else None,
                unchanged=record.unchanged,
                new=record.new,
                reused=record.reused,
                candidates=candidates,
                winner=winner,
                tuning=tuple(e for e in own if isinstance(e, EpochEnded) and e.round is not None),
                certificate=result.certificates.get(name),
                seconds=seconds[index] if index < len(seconds) else None,
            )
        )
    return tuple(histories)


def _candidates(
    record: TaskRecord | None, events: Sequence[Event]
) -> tuple[tuple[CandidateHistory, ...], int | None]:
    """Return the grid of a task, and the index of its winner."""
    trained: dict[int, CandidateRecord] = dict(enumerate(record.candidates if record else ()))
    epochs: dict[int, list[EpochEnded]] = {}
    plans: dict[int, PruningPlan] = {}
    winner = record.winner if record else None
    for event in events:
        if isinstance(event, EpochEnded) and event.candidate is not None:
            epochs.setdefault(event.candidate, []).append(event)
        elif isinstance(event, CandidateTrained):
            candidate = CandidateRecord(
                event.alpha, event.lr, event.num_epochs, event.score, event.diverged
            )
            trained.setdefault(event.candidate, candidate)
        elif isinstance(event, CandidatePruned):
            plans[event.candidate] = event.plan
        elif isinstance(event, CandidateChosen) and winner is None:
            winner = event.candidate
    numbers = sorted({*trained, *epochs})
    histories = []
    for number in numbers:
        known = trained.get(number)
        histories.append(
            CandidateHistory(
                alpha="?" if known is None else alpha_text(known.alpha),
                lr=None if known is None else known.lr,
                score=None if known is None else known.score,
                diverged=None if known is None else known.diverged,
                epochs=tuple(epochs.get(number, ())),
                plan=plans.get(number),
            )
        )
    return tuple(histories), numbers.index(winner) if winner in numbers else None

"""The records of a run: one frozen dataclass for each event, and for each JSON file.

`events.jsonl` has an `Event` in each line. `config.json` has a `RunConfig`, `environment.json` a
list of `Environment`, `result.json` a `RunResult`; `series.json`, `summary.json`, `compare.json`
and `comparison.json` describe several runs. `clnp.plain` writes all of them, and reads them
leniently: a run may be older than this version, unfinished, or edited by hand.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from clnp.core.forecast import Forecast
from clnp.core.layers.ledger import Usage
from clnp.core.pruning.plan import PruningPlan
from clnp.plain import Tree, UnreadableError, omitted, read, to_plain

OURS = "clnp"
"""The method of this package."""
FORMAT = 1
"""Version of the files in a run directory."""

Alpha = float | Mapping[str, float]


def alpha_text(alpha: Alpha) -> str:
    """Return the strength of the penalty, or that of each layer."""
    if isinstance(alpha, Mapping):
        return ", ".join(f"{layer} {value:g}" for layer, value in alpha.items())
    return f"{alpha:g}"


def pruning_text(num_evaluations: int, kept: int, available: int) -> str:
    """Return how far the search for a plan has come."""
    plural = "" if num_evaluations == 1 else "s"
    return f"pruning: {num_evaluations} evaluation{plural}, {kept} of {available} neurons"


@dataclass(frozen=True)
class TaskDescription:
    """A task, in enough detail to recognise it: names of functions, checksums of data."""

    name: str
    num_outputs: int | None = None
    objective: str | None = None
    loss: object = None
    score: object = None
    prepare: object = None
    train: str | None = None
    validation: str | None = None
    test: str | None = None


@dataclass(frozen=True)
class RunConfig:
    """The experiment of a run. A run can only be resumed by an experiment with the same config.

    `recipe` is the name of the recipe and `data` the directory of its data sets; a run that was
    started from Python has neither.
    """

    format: int | None = None
    tasks: tuple[TaskDescription, ...] = ()
    model: tuple[str, ...] = ()
    head: str = "?"
    classifier: str | None = None
    seed: int | None = None
    learner: Tree = field(default_factory=dict)
    method: str = OURS
    baseline: Tree | None = None
    recipe: str | None = omitted()
    data: str | None = omitted()

    @property
    def settings(self) -> "LearnerSettings":
        """The settings of the learner that are shown."""
        return read(LearnerSettings, self.learner)


@dataclass(frozen=True)
class FineTuningSettings:
    """How many rounds of fine-tuning a task has at most, and the epochs of each."""

    rounds: int = 0
    epochs: int = 0


@dataclass(frozen=True)
class LearnerSettings:
    """The settings of the learner that are shown; `LearnerConfig` has all of them."""

    margin: float = float("nan")
    importance: str = "?"
    per_layer: bool = False
    tasks: Tree = field(default_factory=dict)
    fine_tuning: FineTuningSettings | None = None


@dataclass(frozen=True)
class Environment:
    """Everything that the numbers of a run may depend on, besides its config.

    `commit` ends with a plus if files differ from it. `variables` are those environment variables
    that change the arithmetic of libraries.
    """

    began: str | None = None
    command: tuple[str, ...] = ()
    clnp: str | None = None
    commit: str | None = None
    python: str | None = None
    torch: str | None = None
    numpy: str | None = None
    safetensors: str | None = None
    platform: str | None = None
    cpu: str | None = None
    instructions: str | None = None
    variables: str | None = None
    matmul: str | None = None
    num_cores: int | None = None
    num_threads: int | None = None
    device: str | None = None
    gpu: str | None = None
    cuda: str | None = None
    cudnn: int | None = None


@dataclass(frozen=True)
class CandidateRecord:
    """One combination of the grid after training; `diverged` says why it has no score."""

    alpha: Alpha = float("nan")
    lr: float = float("nan")
    num_epochs: int = 0
    score: float | None = None
    diverged: str | None = None


@dataclass(frozen=True)
class PruningRecord:
    """The first pruning of a task, with the thresholds of the last one."""

    score: float | None = None
    kept: Mapping[str, int] = field(default_factory=dict)
    thresholds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskRecord:
    """A task that has ended.

    `score` and `best_score` are validation scores at the end and of the best candidate before
    pruning, `guess` that of always naming the most frequent class. `outputs` is the SHA-256 of the
    outputs on the test data when the task ended, in the given `arithmetic`; `elsewhere` has those
    of other arithmetics that the run was resumed in. `unchanged` says whether they still are the
    same. `reused` counts the neurons of earlier tasks that are among the fewest which together give
    a layer of the task 99 % of what it receives.
    """

    task: str
    objective: str | None = None
    candidates: tuple[CandidateRecord, ...] = ()
    winner: int = 0
    best_score: float | None = None
    pruning: PruningRecord = field(default_factory=PruningRecord)
    num_rounds: int = 0
    score: float | None = None
    test_score: float | None = None
    guess: float | None = None
    new: Mapping[str, int] = field(default_factory=dict)
    reused: Mapping[str, int | None] = field(default_factory=dict)
    outputs: str | None = None
    arithmetic: str | None = None
    unchanged: bool | None = None
    elsewhere: Mapping[str, str | None] | None = omitted()

    @property
    def is_guess(self) -> bool:
        """Whether guessing is known to score as much on the validation data."""
        return self.score is not None and is_guess(self.score, self.guess)


@dataclass(frozen=True)
class CapacityRecord:
    """The neurons of each group: those that each task claimed or reused, and the free ones."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    usages: tuple[Usage, ...] = ()
    free: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class NetworkRecord:
    """The figures of a network: a baseline has neither neurons to claim nor certificates."""

    capacity: CapacityRecord = field(default_factory=CapacityRecord)
    forecast: Forecast | None = None
    certificates: Mapping[str, str] = field(default_factory=dict)
    stored_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Timings:
    """How long the run took, and each of its tasks; and the peak memory."""

    seconds: float = 0.0
    tasks: tuple[float, ...] = ()
    peak_bytes: int = 0


@dataclass(frozen=True)
class Metrics:
    """The metrics of continual learning, from the scores; `clnp.runs.metrics` defines them.

    One that needs a score that is not known is None. So is forward transfer in the result of a run,
    because it compares the run with another one, in which each task was learned alone.
    """

    average: float | None = None
    forgetting: float | None = None
    backward_transfer: float | None = None
    forward_transfer: float | None = omitted()


@dataclass(frozen=True)
class RunResult:
    """The results of a run so far. Those of two equal runs differ in `timings` only.

    `scores[i][j]` is the test score of task j after task i has ended, and `metrics` follows from
    it. `validation[j]` is its validation score at the end of a finished run. `full` says why no
    further task fits.
    """

    format: int | None = None
    finished: bool = False
    full: str | None = None
    num_tasks: int = 0
    method: str = OURS
    head: str = "?"
    seed: int | None = None
    tasks: tuple[TaskRecord, ...] = ()
    scores: tuple[tuple[float | None, ...], ...] = ()
    metrics: Metrics = field(default_factory=Metrics)
    validation: tuple[float | None, ...] = ()
    capacity: CapacityRecord = field(default_factory=CapacityRecord)
    forecast: Forecast | None = None
    certificates: Mapping[str, str] = field(default_factory=dict)
    stored_bytes: Mapping[str, int] = field(default_factory=dict)
    timings: Timings = field(default_factory=Timings)


@dataclass(frozen=True)
class RunState:
    """The part of the checkpoint of a run besides the network and the state of its method.

    `began` is the second of the run, and `told` the length of its log, when the open task started.
    """

    num_event_bytes: int = 0
    seconds: float = 0.0
    experiment: RunConfig = field(default_factory=RunConfig)
    done: tuple[TaskRecord, ...] = ()
    scores: tuple[tuple[float | None, ...], ...] = ()
    task_seconds: tuple[float, ...] = ()
    began: float = 0.0
    told: int = 0
    full: str | None = None
    peak_bytes: int = 0

    @property
    def finished(self) -> bool:
        """Whether no task is left, or none fits."""
        return self.full is not None or len(self.done) == len(self.experiment.tasks)


@dataclass(frozen=True)
class SettingsSource:
    """Where the settings of a method come from.

    `chosen_on` is "defaults", "validation" or "test" data, or "unknown". `num_trials` and `seeds`
    are those of the search. `changed` says that the experiment has been changed since.
    """

    chosen_on: str
    num_trials: int | None = omitted()
    seeds: tuple[int, ...] = ()
    changed: bool = False

    @property
    def note(self) -> str:
        """The source in words."""
        if self.chosen_on == "defaults":
            return "default settings, not tuned"
        if self.chosen_on not in ("validation", "test"):
            return "settings of the recipe, which does not say how they were chosen"
        text = f"settings chosen on {self.chosen_on} data"
        if self.num_trials is not None:
            text += f", {self.num_trials} trials"
        if self.seeds:
            text += f", seed{'s' if len(self.seeds) > 1 else ''} {' '.join(map(str, self.seeds))}"
        return f"{text}, before the recipe was changed" if self.changed else text


@dataclass(frozen=True)
class TrialRecord:
    """Settings of a method that were tried, by dotted key, and the mean validation score.

    `status` is "open", "finished" or "failed", for a `reason`. `seconds` are those of all its runs.
    """

    settings: Mapping[str, float | str | bool]
    status: str = "open"
    score: float | None = None
    seconds: float = 0.0
    reason: str | None = omitted()


@dataclass(frozen=True)
class TuningRecord:
    """A search for the settings of a method: the seeds of its runs, and all trials in order."""

    format: int | None = None
    method: str = "?"
    budget: int = 0
    seeds: tuple[int, ...] = ()
    trials: tuple[TrialRecord, ...] = ()
    best: int | None = None

    @property
    def finished(self) -> bool:
        """Whether the whole budget is spent."""
        return len(self.trials) >= self.budget and all(t.status != "open" for t in self.trials)

    @property
    def described(self) -> str:
        """The state of the search in one line."""
        ended = [trial for trial in self.trials if trial.status != "open"]
        text = f"tuning {self.method}: {len(ended)} of {self.budget} trials"
        if num_failed := sum(trial.status == "failed" for trial in ended):
            text += f", {num_failed} failed"
        if self.best is None:
            return text
        best = self.trials[self.best]
        values = ", ".join(f"{key} {value}" for key, value in best.settings.items())
        return f"{text}, best validation score {best.score:.2f} with {values}"


@dataclass(frozen=True)
class SeriesConfig:
    """Several runs of one recipe that differ in their seed.

    A comparison has `methods`, of which the `tuned` ones are searched with a `budget` of trials
    each. A method of a comparison has the source of its `settings`.
    """

    format: int | None = None
    recipe: str = "?"
    seeds: tuple[int, ...] = ()
    search_once: bool = False
    data: str | None = None
    methods: tuple[str, ...] | None = omitted()
    tuned: tuple[str, ...] | None = omitted()
    budget: int | None = omitted()
    settings: SettingsSource | None = omitted()  # noqa: RUF009


@dataclass(frozen=True)
class Spread:
    """Mean, and standard deviation of a sample; that of one value is 0."""

    mean: float
    deviation: float = 0.0


@dataclass(frozen=True)
class TaskSummary:
    """Mean and standard deviation of the test score of a task, over several seeds."""

    task: str
    mean: float
    deviation: float


@dataclass(frozen=True, kw_only=True)
class SeriesSummary:
    """Means and standard deviations over the finished runs of a series.

    `average` is the mean test score over the tasks at the end, `used` the percentage of claimed
    neurons of each group, `forgetting` the largest loss of a task since it ended. Where runs ended
    different numbers of tasks, the means are over those tasks that all of them ended.
    """

    seeds: tuple[int, ...]
    num_tasks: tuple[int, ...]
    num_tasks_in_all: int | None = omitted()
    average: Spread
    tasks: tuple[TaskSummary, ...]
    forgetting: float
    unchanged: bool
    used: Mapping[str, Spread]
    seconds: Spread


@dataclass(frozen=True)
class ComparisonRow:
    """One method of a comparison: mean and deviation over its seeds, in every column.

    `tasks` is the number of tasks that ended, where not every run ended all of them. `free` is the
    percentage of free neurons, averaged over the layers; `stored` and `peak` are in MB. `settings`
    says where the settings of the method come from, where that is known.
    """

    method: str
    seeds: tuple[int, ...]
    tasks: Spread | None = omitted()  # noqa: RUF009
    average: Spread | None = None
    forgetting: Spread | None = None
    backward_transfer: Spread | None = None
    forward_transfer: Spread | None = None
    free: Spread | None = None
    stored: Spread | None = None
    seconds: Spread | None = None
    peak: Spread | None = None
    settings: SettingsSource | None = omitted()  # noqa: RUF009


@dataclass(frozen=True, kw_only=True)
class Event:
    """An entry of the log of a run; `at` counts the seconds that the run has worked until then."""

    kind: ClassVar[str]
    logged: ClassVar[bool] = True
    """Whether it is in `events.jsonl`, or only shown while the run works."""
    at: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """A new run."""

    kind = "run"
    config: RunConfig


@dataclass(frozen=True, kw_only=True)
class TasksChecked(Event):
    """So many tasks are checked before the first one begins."""

    kind = "checked"
    logged = False
    number: int
    num_tasks: int


@dataclass(frozen=True, kw_only=True)
class TaskStarted(Event):
    """A task begins. Numbers of epochs assume that no candidate stops early.

    `number` counts from 1; `epochs_before` are those of earlier tasks, `epochs_of_run` those of
    all.
    """

    kind = "begin"
    task: str
    number: int
    num_tasks: int
    num_candidates: int
    num_epochs: int
    epochs_before: int
    epochs_of_run: int


@dataclass(frozen=True, kw_only=True)
class TaskResumed(TaskStarted):
    """A run resumes inside a task."""

    kind = "resumed"


@dataclass(frozen=True, kw_only=True)
class EpochEnded(Event):
    """An epoch of a candidate, or of a `round` of fine-tuning; `number` counts from 0."""

    kind = "epoch"
    task: str
    candidate: int | None = omitted()
    round: int | None = omitted()
    num_epochs: int
    number: int
    loss: float
    penalised_loss: float
    score: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CandidateTrained(Event):
    """A candidate is trained, or `diverged`."""

    kind = "candidate"
    task: str
    candidate: int
    alpha: Alpha
    lr: float
    num_epochs: int
    score: float | None = None
    diverged: str | None = None


@dataclass(frozen=True, kw_only=True)
class SubsetScored(Event):
    """A set of neurons is scored, in search of a plan; `number` counts from 1."""

    kind = "subset"
    logged = False
    task: str
    candidate: int | None = omitted()
    round: int | None = omitted()
    number: int
    kept: int
    available: int


@dataclass(frozen=True, kw_only=True)
class CandidatePruned(Event):
    """There is a plan to prune a candidate."""

    kind = "pruning"
    task: str
    candidate: int
    plan: PruningPlan


@dataclass(frozen=True, kw_only=True)
class CandidateChosen(Event):
    """The sparsest candidate is chosen and pruned."""

    kind = "chosen"
    task: str
    candidate: int
    kept: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RoundEnded(Event):
    """A round of fine-tuning. One that is not `kept` is rolled back, and is the last."""

    kind = "round"
    task: str
    round: int
    score: float | None = None
    kept: bool = True


@dataclass(frozen=True, kw_only=True)
class Warned(Event):
    """A Python warning in a task."""

    kind = "warning"
    task: str
    text: str


@dataclass(frozen=True, kw_only=True)
class TaskEnded(Event):
    """A task is frozen; `full` are the groups without a free neuron."""

    kind = "task"
    task: str
    new: Mapping[str, int] = field(default_factory=dict)
    full: tuple[str, ...] | None = omitted()
    score: float | None = None
    test_score: float | None = None
    guess: float | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """All ended tasks are evaluated on their test data, after `task`."""

    kind = "evaluation"
    task: str
    scores: tuple[float | None, ...] = ()
    new: Mapping[str, int] = field(default_factory=dict)
    reused: Mapping[str, int | None] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    free: Mapping[str, int] = field(default_factory=dict)
    forecast: Forecast | None = None


@dataclass(frozen=True, kw_only=True)
class NetworkFull(Event):
    """The task does not fit any more."""

    kind = "full"
    task: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RunFailed(Event):
    """An error ends the run. If it is `mendable`, the run can be resumed once it is fixed."""

    kind = "failed"
    task: str
    reason: str
    mendable: bool | None = omitted()


@dataclass(frozen=True, kw_only=True)
class RunStopped(Event):
    """The user stops the run."""

    kind = "stopped"


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    """All tasks have ended, and their certificates are verified."""

    kind = "finished"
    num_tasks: int


KINDS: Mapping[str, type[Event]] = {
    event.kind: event
    for event in (
        *(RunStarted, TaskStarted, TaskResumed, EpochEnded, CandidateTrained, CandidatePruned),
        *(CandidateChosen, RoundEnded, TaskEnded, Evaluated, NetworkFull, RunFailed, RunStopped),
        *(RunFinished, Warned),
    )
}
"""The events by the word that they begin with in `events.jsonl`."""


def event_to_plain(event: Event) -> dict[str, object]:
    """Return the event in the form of a line of `events.jsonl`."""
    plain = to_plain(event.config if isinstance(event, RunStarted) else event)
    plain.pop("at", None)
    at = {} if event.at is None else {"at": event.at}
    return {"event": event.kind, **plain, **at}


def read_event(data: object) -> Event:
    """Return the event of a line of `events.jsonl`; an `UnreadableError` if it is damaged."""
    kind = KINDS.get(str(data.get("event"))) if isinstance(data, Mapping) else None
    if kind is None:
        raise UnreadableError(f"{data!r} is not an event")
    if kind is RunStarted:
        return RunStarted(config=read(RunConfig, data), at=read(Event, data).at)
    return read(kind, data)


def task_of(event: Event) -> str | None:
    """Return the task that the event is about, if it is about one."""
    return getattr(event, "task", None)


def is_guess(score: float, guess: float | None) -> bool:
    """Whether guessing, where its score is known, scores as much."""
    return guess is not None and score <= guess


def guess_note(score: float, guess: float | None) -> str:
    """Return the end of a sentence where guessing scores as much; otherwise nothing."""
    if not is_guess(score, guess):
        return ""
    return f"; NO BETTER than always naming the same class, {guess:.2f}"

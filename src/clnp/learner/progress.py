"""The progress of a task, from which it resumes after a crash, and the report at its end."""

import math
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from clnp.core.forecast import full_note
from clnp.core.pruning.plan import PruningPlan
from clnp.core.record import OpenState
from clnp.plain import read, to_plain
from clnp.records import guess_note
from clnp.text import duration
from clnp.training.fit import Fit, FitState

from .grid import Candidate, Lane, LaneState


@dataclass(frozen=True)
class Choice:
    """The plan for a candidate, and the mean fraction of neurons that it leaves free."""

    candidate: int
    plan: PruningPlan
    free_fraction: float


class ProgressState(TypedDict):
    """A `Progress` as plain data and tensors, for a checkpoint."""

    trained: list[dict[str, Any]]
    fit: FitState | None
    group: list[LaneState]
    pruned: list[dict[str, Any]]
    winner: int | None
    plans: list[dict[str, Any]]
    round: int
    left_margin: bool
    before_round: dict[str, Any] | None


@dataclass
class Progress:
    """The progress of a task. Together with the network, it is enough to resume after a crash.

    Candidates are `trained` one by one: `fit` is the one in training, and `resumed` the state of
    one that was in training at the checkpoint. Several that are trained at the same time are in
    `lanes` and `resumed_lanes`. `pruned` has the plans so far. Then there is a `winner`, and
    `plans` has a plan for each time that it was pruned. `fit` is now the fine-tuning round number
    `round`, before which the open task was `before_round`. A round that `left_margin` is the last.
    """

    trained: list[Candidate] = field(default_factory=list)
    fit: Fit | None = None
    resumed: FitState | None = None
    lanes: list[Lane] = field(default_factory=list)
    resumed_lanes: list[LaneState] = field(default_factory=list)
    pruned: list[Choice] = field(default_factory=list)
    winner: int | None = None
    plans: list[PruningPlan] = field(default_factory=list)
    round: int = 0
    left_margin: bool = False
    before_round: OpenState | None = None

    def drop_states(self, *, below: float = -math.inf) -> None:
        """Drop the states of candidates whose score is more than `below` under the best one."""
        best = max((c.score for c in self.trained if c.score is not None), default=math.inf)
        for index, candidate in enumerate(self.trained):
            score = -math.inf if candidate.score is None else candidate.score
            if score < best - below:
                self.trained[index] = replace(candidate, state=None)

    def to_state(self) -> ProgressState:
        """Return the progress as plain data and tensors, for `from_state`."""
        before = self.before_round
        return {
            "trained": [{**vars(c), "state": c.state and c.state.to_state()} for c in self.trained],
            "fit": self.resumed if self.fit is None else self.fit.state(),
            "group": [lane.state() for lane in self.lanes] or self.resumed_lanes,
            "pruned": [{**vars(c), "plan": to_plain(c.plan)} for c in self.pruned],
            "winner": self.winner,
            "plans": [to_plain(plan) for plan in self.plans],
            "round": self.round,
            "left_margin": self.left_margin,
            "before_round": None if before is None else before.to_state(),
        }

    @staticmethod
    def from_state(state: ProgressState) -> "Progress":
        """Return the progress that `to_state` described, for `Learner.learn`."""

        def restored(open_state: dict[str, Any] | None) -> OpenState | None:
            return None if open_state is None else OpenState.from_state(open_state)

        return Progress(
            trained=[Candidate(**{**c, "state": restored(c["state"])}) for c in state["trained"]],
            resumed=state["fit"],
            resumed_lanes=state.get("group", []),  # Earlier versions did not save lanes.
            pruned=[Choice(**{**c, "plan": read(PruningPlan, c["plan"])}) for c in state["pruned"]],
            winner=state["winner"],
            plans=[read(PruningPlan, plan) for plan in state["plans"]],
            round=state["round"],
            left_margin=state["left_margin"],
            before_round=restored(state["before_round"]),
        )


@dataclass(frozen=True)
class TaskReport:
    """The result of learning a task, which `Learner.learn` returns.

    report = learner.learn(task)
    print(report)
    print(report.score, report.plan.kept)
    """

    task: str
    """Name of the task."""
    candidates: tuple[Candidate, ...]
    """All candidates of the grid, in its order."""
    winner: int
    """Index of the chosen candidate."""
    best_score: float
    """Highest validation score of a candidate before pruning."""
    plans: tuple[PruningPlan, ...]
    """Plans by which the winner was pruned: before fine-tuning, and before later rounds. The
    thresholds of the last one decide which neurons of earlier tasks count as reused."""
    score: float
    """Validation score of the ended task."""
    test_score: float | None
    """Test score of the ended task, if it has test data."""
    num_rounds: int
    """Number of rounds of fine-tuning that were kept."""
    seconds: float
    """Time that it took."""
    full: tuple[str, ...] = ()
    """Groups without a free neuron: the next task has no new neurons there."""
    guess: float | None = None
    """Validation score of always predicting the most frequent class, if it is known."""

    @property
    def plan(self) -> PruningPlan:
        """The first plan, made before fine-tuning."""
        return self.plans[0]

    def __str__(self) -> str:
        chosen = self.candidates[self.winner]
        test = "" if self.test_score is None else f", test {self.test_score:.2f}"
        return (
            f"learned {self.task}: validation {self.score:.2f}{test}"
            f"{guess_note(self.score, self.guess)}, best unpruned "
            f"{self.best_score:.2f}; alpha {chosen.alpha}, lr {chosen.lr:g}; "
            f"pruning: {self.plans[-1]}{full_note(self.full)}; {duration(self.seconds)}"
        )

"""The progress of a task, from which it resumes after a crash, and the report at its end."""

import math
from dataclasses import dataclass, field
from typing import Any, TypedDict

from clnp.core.forecast import full_note
from clnp.core.pruning.plan import PruningPlan
from clnp.core.record import OpenState
from clnp.plain import read, to_plain
from clnp.records import CandidateRecord, guess_note
from clnp.text import duration
from clnp.training.fit import FitState

from .grid import Lane, LaneState


@dataclass(frozen=True)
class Choice:
    """The plan for a candidate, and the mean fraction of neurons that it leaves free."""

    candidate: int
    plan: PruningPlan
    free_fraction: float


class ProgressState(TypedDict):
    """A `Progress` as plain data and tensors, for a checkpoint."""

    trained: list[dict[str, Any]]
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

    `trained` has the candidates so far, `states` the open tasks of those that may still be chosen,
    by index, and `pruned` their plans. Then there is a `winner`, and `plans` has a plan for each
    time that it was pruned. `round` is the number of the fine-tuning
    round, before which the open task was `before_round`. A round that `left_margin` is the last.

    What is in training, candidates or a round, is in `lanes`; `resumed` has the states of what was
    in training at the checkpoint.
    """

    trained: list[CandidateRecord] = field(default_factory=list)
    states: dict[int, OpenState] = field(default_factory=dict)
    lanes: list[Lane] = field(default_factory=list)
    resumed: list[LaneState] = field(default_factory=list)
    pruned: list[Choice] = field(default_factory=list)
    winner: int | None = None
    plans: list[PruningPlan] = field(default_factory=list)
    round: int = 0
    left_margin: bool = False
    before_round: OpenState | None = None

    def drop_states(self, margin: float) -> None:
        """Drop the states of candidates that are outside the margin of the best one so far."""
        scores = [-math.inf if c.score is None else c.score for c in self.trained]
        lowest = max(scores) - margin
        self.states = {n: state for n, state in self.states.items() if scores[n] >= lowest}

    def to_state(self) -> ProgressState:
        """Return the progress as plain data and tensors, for `from_state`."""
        before = self.before_round
        states = {number: state.to_state() for number, state in self.states.items()}
        trained = [{**vars(c), "state": states.get(n)} for n, c in enumerate(self.trained)]
        return {
            "trained": trained,
            "group": [lane.state() for lane in self.lanes] or self.resumed,
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
        before, lanes = state["before_round"], state.get("group", [])
        # Earlier versions saved a fit that was in training alone under this key.
        alone: FitState | None = dict(state).get("fit")  # type: ignore[assignment]
        if alone is not None:
            lanes = [LaneState(open=None, fit=alone, error=None)]
        return Progress(
            trained=[read(CandidateRecord, c) for c in state["trained"]],
            states={
                number: OpenState.from_state(c["state"])
                for number, c in enumerate(state["trained"])
                if c["state"] is not None
            },
            resumed=lanes,
            pruned=[Choice(**{**c, "plan": read(PruningPlan, c["plan"])}) for c in state["pruned"]],
            winner=state["winner"],
            plans=[read(PruningPlan, plan) for plan in state["plans"]],
            round=state["round"],
            left_margin=state["left_margin"],
            before_round=None if before is None else OpenState.from_state(before),
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
    candidates: tuple[CandidateRecord, ...]
    """All candidates of the grid, in its order."""
    winner: int
    """Index of the chosen candidate."""
    best_score: float
    """Highest validation score of a candidate before pruning."""
    plans: tuple[PruningPlan, ...]
    """Plans by which the winner was pruned: before fine-tuning, and before later rounds. The last
    one says how many neurons of earlier tasks are reused."""
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

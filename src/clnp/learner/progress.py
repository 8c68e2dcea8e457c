"""How far a task has come, so that it can be gone on with after a crash, and what came of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clnp.core.forecast import full_told
from clnp.core.net import ContinualNet
from clnp.core.pruning.thresholds import PruningPlan
from clnp.core.record import OpenState
from clnp.errors import DivergedError
from clnp.records import guess_note
from clnp.text import duration
from clnp.training.config import Alpha
from clnp.training.fit import Fit


@dataclass(frozen=True)
class Candidate:
    """One combination of the grid after training; `state` is there as long as it may be chosen."""

    alpha: Alpha
    lr: float
    num_epochs: int
    score: float | None
    diverged: str | None = None
    state: OpenState | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Choice:
    """A candidate after pruning: its plan, and the mean fraction of neurons that it leaves free."""

    candidate: int
    plan: PruningPlan
    free_fraction: float


@dataclass
class Group:
    """Candidates that are trained at the same time, each in a copy of the network.

    `errors` has what made one of them diverge.
    """

    nets: list[ContinualNet] = field(default_factory=list)
    fits: list[Fit] = field(default_factory=list)
    errors: list[DivergedError | None] = field(default_factory=list)

    def to_state(self) -> list[dict[str, Any]]:
        """Plain data and tensors of each candidate, to go on from between two epochs."""
        return [
            {"open": net.open_state().to_state(), "fit": fit.state(), "error": error and str(error)}
            for net, fit, error in zip(self.nets, self.fits, self.errors, strict=True)
        ]


@dataclass
class Progress:
    """How far a task has come: enough, with the network, to go on after a crash.

    `trained` are the candidates that are done, `fit` is the one in training, and `resumed` the
    state of one that was in training when the run broke off; so are `group` and `resumed_group` of
    several that are trained at the same time. `pruned` are those for which there is a plan. Once
    the winner is pruned, there is a plan for each time that it was: `plans`. What is in training
    then belongs to fine-tuning round number `round`, before which the open task was `before_round`;
    a round that `left_margin` was the last.
    """

    trained: list[Candidate] = field(default_factory=list)
    fit: Fit | None = None
    resumed: Mapping[str, Any] | None = None
    group: Group | None = None
    resumed_group: Sequence[Mapping[str, Any]] = field(default_factory=list)
    pruned: list[Choice] = field(default_factory=list)
    winner: int | None = None
    plans: list[PruningPlan] = field(default_factory=list)
    round: int = 0
    left_margin: bool = False
    before_round: OpenState | None = None

    def let_go(self, *, below: float | None = None) -> None:
        """Drop the states of candidates, or of those only that are further below the best."""
        best = max((c.score for c in self.trained if c.score is not None), default=math.inf)
        for place, candidate in enumerate(self.trained):
            score = -math.inf if candidate.score is None else candidate.score
            if below is None or score < best - below:
                self.trained[place] = replace(candidate, state=None)

    def to_state(self) -> dict[str, Any]:
        """Plain dictionaries, lists and tensors that `from_state` reads back."""
        fit = self.resumed if self.fit is None else self.fit.state()
        return {
            "trained": [{**vars(c), "state": c.state and c.state.to_state()} for c in self.trained],
            "fit": fit,
            "group": list(self.resumed_group) if self.group is None else self.group.to_state(),
            "pruned": [{**vars(c), "plan": c.plan.to_json()} for c in self.pruned],
            "winner": self.winner,
            "plans": [plan.to_json() for plan in self.plans],
            "round": self.round,
            "left_margin": self.left_margin,
            "before_round": self.before_round and self.before_round.to_state(),
        }

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> "Progress":
        """The progress that `to_state` described, to be handed to `Learner.learn`."""

        def restored(open_state: Mapping[str, Any] | None) -> OpenState | None:
            return None if open_state is None else OpenState.from_state(open_state)

        return Progress(
            trained=[Candidate(**{**c, "state": restored(c["state"])}) for c in state["trained"]],
            resumed=state["fit"],
            resumed_group=state.get("group", []),  # Earlier versions began a group again.
            pruned=[
                Choice(**{**c, "plan": PruningPlan.from_json(c["plan"])}) for c in state["pruned"]
            ],
            winner=state["winner"],
            plans=[PruningPlan.from_json(plan) for plan in state["plans"]],
            round=state["round"],
            left_margin=state["left_margin"],
            before_round=restored(state["before_round"]),
        )


@dataclass(frozen=True)
class TaskReport:
    """What was learnt: the winner of the grid and how it did, before and after pruning.

    There is a plan for each time that it was pruned: before the first round of fine-tuning, and
    before every other that was kept. What neurons of earlier tasks are reused goes by the last.
    """

    task: str
    candidates: tuple[Candidate, ...]
    winner: int
    best_score: float
    plans: tuple[PruningPlan, ...]
    score: float
    test_score: float | None
    num_rounds: int
    seconds: float
    full: tuple[str, ...] = ()
    """Groups that have no free neuron left: the next task learns without new ones there."""
    guess: float | None = None
    """What always naming the most frequent class of the validation data scores, if known."""

    @property
    def plan(self) -> PruningPlan:
        """The first pruning, that of what had been trained."""
        return self.plans[0]

    def __str__(self) -> str:
        chosen = self.candidates[self.winner]
        test = "" if self.test_score is None else f", test {self.test_score:.2f}"
        return (
            f"learnt {self.task}: validation {self.score:.2f}{test}"
            f"{guess_note(self.score, self.guess)}, best unpruned "
            f"{self.best_score:.2f}; alpha {chosen.alpha}, lr {chosen.lr:g}; "
            f"pruning: {self.plans[-1]}{full_told(self.full)}; {duration(self.seconds)}"
        )

"""Algorithm 1: the grid, the margin, the sparsest, and what follows pruning, for one task.

Every candidate (alpha, learning rate) is trained. The best validation score of all of them sets the
bar; each candidate within the margin of it is pruned with the highest threshold that stays within
the margin, and the sparsest wins: the one that leaves the largest fraction of its neurons free,
averaged over the groups, so that a small group counts as much as a large one (the narrow layers
are the ones that fill up). Ties go to the higher score, then to the earlier candidate.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .config import LearnerConfig
from .errors import ArgumentError, DivergedError, TaskError
from .net import ContinualNet
from .openstate import OpenState
from .pruning import KEEP_ALL, PruningPlan
from .seeds import derive
from .task import Task, TaskData, load
from .training import EVALUATION_BATCH, Alpha, Fit, Training, evaluate

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Candidate:
    """One combination of the grid after training; `state` is None when it diverged."""

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


@dataclass(frozen=True)
class TaskReport:
    """What was learnt: the winner of the grid and how it did, before and after pruning."""

    task: str
    candidates: tuple[Candidate, ...]
    winner: int
    best_score: float
    plan: PruningPlan
    score: float
    test_score: float | None
    num_rounds: int
    seconds: float


@dataclass
class Progress:
    """How far a task has come: enough, with the network, to go on after a crash.

    `trained` are the candidates that are done, `fit` is the one in training, and `resumed` the
    state of one that was in training when the run broke off. Once the winner is pruned there is a
    `plan`, and both belong to fine-tuning round number `round`, before which the open task was
    `before_round`; a round that `left_margin` was the last.
    """

    trained: list[Candidate] = field(default_factory=list)
    fit: Fit | None = None
    resumed: Mapping[str, Any] | None = None
    winner: int | None = None
    plan: PruningPlan | None = None
    round: int = 0
    left_margin: bool = False
    before_round: OpenState | None = None

    def to_state(self) -> dict[str, Any]:
        """Plain dictionaries, lists and tensors that `from_state` reads back."""
        fit = self.resumed if self.fit is None else self.fit.state()
        return {
            "trained": [{**vars(c), "state": c.state and c.state.to_state()} for c in self.trained],
            "fit": fit,
            "winner": self.winner,
            "plan": self.plan and self.plan.to_json(),
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
            winner=state["winner"],
            plan=None if state["plan"] is None else PruningPlan.from_json(state["plan"]),
            round=state["round"],
            left_margin=state["left_margin"],
            before_round=restored(state["before_round"]),
        )


class Learner:
    """Learns task after task in `net`, the way `config` says.

        learner = clnp.Learner(net, clnp.LearnerConfig(margin=0.5))
        report = learner.learn(task)

    `on_event` is told of every epoch, candidate and pruning; `on_progress` is handed what `learn`
    needs to be called with to go on from there.
    """

    def __init__(
        self,
        net: ContinualNet,
        config: LearnerConfig | None = None,
        *,
        on_event: Callable[[Event], None] = lambda event: None,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self.net = net
        self.config = config if config is not None else LearnerConfig()
        self.on_event, self.on_progress = on_event, on_progress
        self.kept: Training | None = None
        """The winner of the first task's grid, where the others use it."""

    def learn(self, task: Task, progress: Progress | None = None) -> TaskReport:
        """Learn the task and freeze it; if that fails, the network is as it was."""
        start = time.monotonic()
        config, net = self.config, self.net
        progress = progress if progress is not None else Progress()
        if net.open_task is not None and progress.resumed is None and progress.winner is None:
            raise TaskError(f"task {net.open_task!r} is open; end or abandon it before the next")
        data = load(
            task,
            net.device,
            seed=config.seed,
            validation_fraction=config.validation_fraction,
            resident=config.resident,
            num_workers=config.num_workers,
        )
        devices = [net.device] if net.device.type == "cuda" else []
        mode = net.training
        with torch.random.fork_rng(devices):
            try:
                self._check_inputs(data, progress)
                self._train_all(data, progress)
                self._prune_winner(data, progress)
                num_rounds = self._fine_tune(data, progress)
                return self._end(data, progress, num_rounds=num_rounds, start=start)
            except Exception:
                if net.open_task is not None:
                    net.abandon_task()
                raise
            finally:
                net.train(mode)

    def _open(self, data: TaskData, seed: int) -> None:
        torch.manual_seed(derive(seed, "init"))
        self.net.begin_task(data.task.name, data.num_outputs)

    def _check_inputs(self, data: TaskData, progress: Progress) -> None:
        """Refuse a task whose inputs do not fit the network, before anything is trained."""
        if progress.trained or progress.resumed is not None:
            return
        self._open(data, 0)
        try:
            inputs, _ = next(data.train.batches(2))
            with torch.no_grad():
                self.net.eval()(inputs)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ArgumentError(
                f"task {data.task.name!r}: inputs of shape {tuple(inputs.shape)} and "
                f"{inputs.dtype} do not fit the network: {error}"
            ) from error
        finally:
            self.net.abandon_task()

    def _train_all(self, data: TaskData, progress: Progress) -> None:
        """Train every candidate that has not been (Alg. 1, lines 2 and 3)."""
        name = data.task.name
        if progress.winner is not None:
            return
        for training in self._candidates()[len(progress.trained) :]:
            alpha = dict(training.alpha) if isinstance(training.alpha, Mapping) else training.alpha
            seed = derive(self.config.seed, "candidate", name, alpha, training.lr)
            number = len(progress.trained)
            if progress.resumed is None:
                self._open(data, seed)
            score, diverged, state = None, None, None
            try:
                self._fit(data, progress, training, seed=seed, candidate=number)
                score, state = self._unpruned_score(data), self.net.open_state()
            except DivergedError as error:
                diverged = str(error)
            fit = progress.fit
            assert fit is not None
            candidate = Candidate(
                training.alpha, training.lr, len(fit.epochs), score, diverged, state
            )
            self.net.abandon_task()
            progress.trained.append(candidate)
            progress.fit = None
            self._tell(
                progress,
                "candidate",
                candidate=number,
                alpha=candidate.alpha,
                lr=candidate.lr,
                num_epochs=candidate.num_epochs,
                score=score,
                diverged=diverged,
            )
        if all(candidate.score is None for candidate in progress.trained):
            reasons = "; ".join(
                f"alpha {c.alpha}, lr {c.lr:g}: {c.diverged}" for c in progress.trained
            )
            raise DivergedError(f"every candidate of task {name!r} diverged: {reasons}")

    def _fit(
        self, data: TaskData, progress: Progress, training: Training, *, seed: int, **where: int
    ) -> None:
        """Train in the open task, from where it broke off if it did; `where` marks its epochs."""
        progress.fit = fit = Fit(self.net, data, training, seed=seed)
        if progress.resumed is not None:
            fit.restore(progress.resumed)
            progress.resumed = None
        fit.run(lambda epoch: self._tell(progress, "epoch", **where, **vars(epoch)))

    def _candidates(self) -> list[Training]:
        return [self.kept] if self.kept is not None else self.config.candidates()

    def _score(self, data: TaskData) -> Callable[[Callable[..., Any]], float]:
        return lambda predict: evaluate(predict, data.validation, data.objective)

    def _unpruned_score(self, data: TaskData) -> float:
        """The score of the open task, computed the way that pruned ones are."""
        activity = self.net.measure_activity(data.train.batches(EVALUATION_BATCH))
        plan = self.net.plan_pruning(activity, self._score(data), thresholds=KEEP_ALL)
        assert plan.score is not None
        return plan.score

    def _plan(self, data: TaskData, best: float) -> PruningPlan:
        activity = self.net.measure_activity(data.train.batches(EVALUATION_BATCH))
        return self.net.plan_pruning(
            activity,
            self._score(data),
            margin=self.config.margin,
            best=best,
            per_layer=self.config.per_layer,
            resolution=self.config.resolution,
        )

    def _prune_winner(self, data: TaskData, progress: Progress) -> None:
        """Prune all candidates within the margin; open the sparsest, pruned (Alg. 1, line 5)."""
        if progress.winner is not None:
            return
        scores = [c.score if c.score is not None else -math.inf for c in progress.trained]
        best = max(scores)
        choices = []
        for number, candidate in enumerate(progress.trained):
            if candidate.state is None or scores[number] < best - self.config.margin:
                continue
            self._reopen(data, candidate.state)
            plan = self._plan(data, best)
            choices.append(Choice(number, plan, self._free_fraction(plan)))
            self.net.abandon_task()
            self._tell(progress, "pruning", candidate=number, plan=plan.to_json())
        chosen = max(choices, key=lambda c: (c.free_fraction, scores[c.candidate], -c.candidate))
        progress.winner, progress.plan = chosen.candidate, chosen.plan
        winner = progress.trained[chosen.candidate]
        assert winner.state is not None
        self._reopen(data, winner.state)
        self.net.prune(chosen.plan)
        if self.config.recalibrate:
            self.net.recalibrate(data.train.batches(self.config.training.batch_size))
        self._tell(progress, "chosen", candidate=chosen.candidate, kept=chosen.plan.kept)

    def _reopen(self, data: TaskData, state: OpenState) -> None:
        self._open(data, 0)
        self.net.set_open_state(state)

    def _free_fraction(self, plan: PruningPlan) -> float:
        ledger = self.net.ledger
        left = {group: free - plan.kept[group] for group, free in ledger.free().items()}
        return sum(left[group] / size for group, size in ledger.sizes.items()) / len(left)

    def _fine_tune(self, data: TaskData, progress: Progress) -> int:
        """Train the survivors, prune and train again; the number of rounds that were kept.

        A round that leaves the margin is rolled back and is the last one.
        """
        tuning = self.config.fine_tuning
        if tuning is None:
            return 0
        assert progress.plan is not None
        best = progress.plan.best
        assert best is not None
        bar = best - self.config.margin
        training = replace(
            self.config.training,
            epochs=tuning.epochs,
            lr=tuning.lr,
            alpha=tuning.alpha,
            schedule="constant",
            patience=None,
        )
        while progress.round < tuning.rounds and not progress.left_margin:
            number = progress.round
            seed = derive(self.config.seed, "fine-tuning", data.task.name, number)
            if progress.resumed is None:
                progress.before_round = self.net.open_state()
                if number > 0:
                    self.net.prune(self._plan(data, best))
            try:
                self._fit(data, progress, training, seed=seed, round=number)
                score = self._unpruned_score(data)
            except DivergedError:
                score = -math.inf
            progress.fit = None
            progress.left_margin = score < bar
            if progress.left_margin:
                assert progress.before_round is not None
                self.net.set_open_state(progress.before_round)
            else:
                progress.round += 1
            self._tell(progress, "round", round=number, score=score, kept=not progress.left_margin)
        return progress.round

    def _end(
        self, data: TaskData, progress: Progress, *, num_rounds: int, start: float
    ) -> TaskReport:
        """Freeze the survivors (Alg. 1, lines 6 to 8) and judge the task as it is from now on."""
        net, name = self.net, data.task.name
        if num_rounds and self.config.recalibrate:
            net.recalibrate(data.train.batches(self.config.training.batch_size))
        net.end_task()

        def predict(inputs: Tensor) -> Any:
            return net(inputs, task=name)

        test_score = None
        if data.test is not None:
            test_score = evaluate(predict, data.test, data.objective)
        assert progress.winner is not None
        assert progress.plan is not None
        winner = progress.trained[progress.winner]
        if self.config.search_on == "first" and self.kept is None:
            self.kept = replace(self.config.training, alpha=winner.alpha, lr=winner.lr)
        report = TaskReport(
            task=name,
            candidates=tuple(replace(c, state=None) for c in progress.trained),
            winner=progress.winner,
            best_score=max(c.score for c in progress.trained if c.score is not None),
            plan=progress.plan,
            score=evaluate(predict, data.validation, data.objective),
            test_score=test_score,
            num_rounds=num_rounds,
            seconds=time.monotonic() - start,
        )
        scores = {"score": report.score, "test_score": test_score}
        self.on_event({"event": "task", "task": name, **scores})
        return report

    def _tell(self, progress: Progress, event: str, **details: Any) -> None:
        self.on_event({"event": event, **details})
        self.on_progress(progress)

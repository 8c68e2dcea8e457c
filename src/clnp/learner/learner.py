"""Algorithm 1 for one task: train the grid, prune within the margin, choose the sparsest, freeze.

Every candidate (alpha, learning rate) is trained. The best validation score sets the bar. Each
candidate within the margin of it is pruned with the highest threshold that stays within the margin.
The sparsest one wins: it leaves the largest fraction of neurons free, averaged over the groups, so
that a small group counts as much as a large one, because narrow layers fill up first. Ties go to
the higher score, then to the earlier candidate.
"""

import itertools
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from clnp.checks import check_kind
from clnp.core.layers.initialisation import initialisation
from clnp.core.layers.ledger import free_fraction
from clnp.core.net import ContinualNet, check_net
from clnp.core.penalty import alpha_by_layer
from clnp.core.pruning.plan import CurvePoint, PruningPlan
from clnp.core.record import OpenState
from clnp.errors import ArgumentError, DivergedError, StoppedError, TaskError
from clnp.records import (
    CandidateChosen,
    CandidatePruned,
    CandidateTrained,
    EpochEnded,
    Event,
    RoundEnded,
    SubsetScored,
    TaskEnded,
    is_guess,
)
from clnp.training.config import LearnerConfig, Training
from clnp.training.fit import Epoch, evaluate
from clnp.training.optimizer import check_optimizers
from clnp.training.rng import derive, isolated, seed_all
from clnp.training.task import Task, TaskData, load

from .grid import Lane, LaneState, train_together
from .progress import Choice, Progress, TaskReport
from .scoring import Scorer


class Learner:
    """Learns one task after the other in a network, by Algorithm 1 of the paper.

        net = clnp.ContinualNet(model, example_input)
        learner = clnp.Learner(net, clnp.LearnerConfig(margin=0.5, alphas=(1e-4, 1e-3)))
        for task in tasks:
            print(learner.learn(task))

    The same seed gives the same tasks, bit for bit on a CPU.

    Args:
        net: Network to learn in. It is changed in place.
        config: Settings; `LearnerConfig()` by default.
        seed: Seed of everything that is random.
        on_event: Called with the record of each epoch, candidate, pruning and task, and of each set
            of neurons that pruning tries: a subclass of `clnp.records.Event`.
        on_progress: Called with the progress of the task whenever it may be saved. Save its
            `to_state()` with the network, and pass `Progress.from_state(...)` to `learn` to resume.
    """

    def __init__(
        self,
        net: ContinualNet,
        config: LearnerConfig | None = None,
        *,
        seed: int = 0,
        on_event: Callable[[Event], None] = lambda event: None,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        check_net(net)
        if config is not None:
            check_kind("config", config, LearnerConfig, "a LearnerConfig")
        self.net = net
        self.config = config if config is not None else LearnerConfig()
        self.seed = seed
        self.on_event, self.on_progress = on_event, on_progress
        self.kept: Training | None = None
        """The winner of the first task's grid, with `search_on="first"`."""

    def learn(self, task: Task, progress: Progress | None = None) -> TaskReport:
        """Learn a task and freeze it. If that fails, the network is as it was before.

            report = learner.learn(clnp.Task("flowers", (x, y), test=(x_test, y_test)))

        Args:
            task: Task to learn.
            progress: Progress of the task to resume from; the network then has the same open task
                as when the progress was saved.

        Returns:
            The result: scores, plans, and the candidates of the grid.

        Raises:
            ArgumentError: If data, settings and network do not fit together.
            DivergedError: If every candidate diverges.
            CapacityError: If a single head has no free neurons left.
            TaskError: If another task is open.
        """
        check_kind("task", task, Task, "a Task(name, (inputs, targets))")
        start = time.monotonic()
        net = self.net
        progress = progress if progress is not None else Progress()
        if net.open_task is not None and not progress.resumed and progress.winner is None:
            raise TaskError(f"task {net.open_task!r} is open. End or abandon it before the next")
        mode = net.training
        with isolated(net.device):
            data = load(task, net.device, self.config, seed=self.seed)
            scorer = Scorer(net, data, self.config, seed=self.seed)
            try:
                if not progress.trained and not progress.resumed:
                    self._check_trainable(data)
                if progress.winner is None:
                    self._train_all(scorer, progress)
                    self._prune_winner(scorer, progress)
                self._fine_tune(scorer, progress)
                return self._end(scorer, progress, start=start)
            except BaseException:
                if net.open_task is not None:
                    net.abandon_task()
                raise
            finally:
                net.train(mode)

    def check(self, task: Task) -> None:
        """Raise an `ArgumentError` if a task does not fit, without reading all of its data.

            learner.check(clnp.Task("flowers", (x, y)))

        Args:
            task: Task to check. Tensors are checked entirely, other data sets by their first
                samples. Without `num_outputs`, other data sets are not checked.
        """
        check_kind("task", task, Task, "a Task(name, (inputs, targets))")
        tensors = isinstance(task.train, tuple | list)
        if not tensors and task.num_outputs is None:
            return  # Counting the labels would read all samples.
        config = replace(self.config, check_data=False, resident=None if tensors else False)
        with isolated(self.net.device):
            data = load(task, self.net.device, config, seed=self.seed)
            mode = self.net.training
            try:
                self._check_trainable(data)
            finally:
                self.net.train(mode)

    def candidates(self, task: str) -> list[Training]:
        """Return the candidates of a task: its own grid, the common one, or the winner kept.

            num_epochs = sum(training.epochs for training in learner.candidates("flowers"))

        Args:
            task: Name of the task.

        Returns:
            A training for each combination of alpha and learning rate.
        """
        config = self.config.of(task)
        if self.kept is None or self.config.has_own_grid(task):
            return config.candidates()
        return [replace(self.kept, epochs=config.training.epochs)]

    def _open(self, net: ContinualNet, data: TaskData, seed: int) -> None:
        seed_all(derive(seed, "init"))
        initial = initialisation(self.config.training.initialisation)
        net.begin_task(data.task.name, data.num_outputs, initial=initial)

    def _reopen(self, data: TaskData, state: OpenState) -> None:
        self._open(self.net, data, 0)
        self.net.set_open_state(state)

    def _check_trainable(self, data: TaskData) -> None:
        """Raise an `ArgumentError` if a penalty, optimizer or input does not fit."""
        trainings = self.candidates(data.task.name)
        for training in trainings:
            alpha_by_layer(self.net.graph, training.alpha)
        if self.config.fine_tuning is not None:
            alpha_by_layer(self.net.graph, self.config.fine_tuning.alpha)
        self._open(self.net, data, 0)
        parts = {"training": data.train, "validation": data.validation, "test": data.test}
        size = min(2, self.config.training.batch_size)
        try:
            check_optimizers(trainings, self.net)
            for part, batches in parts.items():
                if batches is not None:
                    self._check_batch(data, part, *next(batches.batches(size)))
        finally:
            self.net.abandon_task()

    def _check_batch(self, data: TaskData, part: str, inputs: Tensor, targets: Tensor) -> None:
        self.net.train(part == "training")
        try:
            with torch.no_grad():
                loss = data.objective.loss(self.net(inputs), targets)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ArgumentError(
                f"task {data.task.name!r}, {part} data: inputs of shape {tuple(inputs.shape)} and "
                f"{inputs.dtype} do not fit the network: {error}"
            ) from error
        data.objective.check_loss(loss)

    def _train_all(self, scorer: Scorer, progress: Progress) -> None:
        """Train the candidates that are not trained yet (Alg. 1, lines 2 and 3)."""
        name = scorer.data.task.name
        trainings = self.candidates(name)
        while (first := len(progress.trained)) < len(trainings):
            # Candidates that were in training together resume together.
            num = len(progress.resumed) or self.config.candidates_at_once
            self._train_wave(scorer, progress, trainings[first : first + num])
            progress.drop_states(scorer.margin)
            # Not earlier: some of several candidates without the others cannot be saved.
            self.on_progress(progress)
        if all(candidate.score is None for candidate in progress.trained):
            reasons = "; ".join(
                f"alpha {c.alpha}, lr {c.lr:g}: {c.diverged}" for c in progress.trained
            )
            raise DivergedError(f"every candidate of task {name!r} diverged: {reasons}")

    def _train_wave(
        self, scorer: Scorer, progress: Progress, trainings: Sequence[Training]
    ) -> None:
        """Train candidates at the same time, and score them."""
        name, first = scorer.data.task.name, len(progress.trained)
        seeds = [self._seed_of(name, training) for training in trainings]
        if len(trainings) == 1 and not progress.resumed:
            self._open(self.net, scorer.data, seeds[0])
        lanes = self._fit(scorer, progress, trainings, seeds, first=first)
        for number, lane in enumerate(lanes, first):
            record = lane.record(scorer.unpruned)
            progress.trained.append(record)
            if record.score is not None:
                progress.states[number] = lane.net.open_state()
            self.on_event(CandidateTrained(task=name, candidate=number, **vars(record)))
        if len(trainings) == 1:
            self.net.abandon_task()

    def _seed_of(self, task: str, training: Training) -> int:
        alpha = dict(training.alpha) if isinstance(training.alpha, Mapping) else training.alpha
        return derive(self.seed, "candidate", task, alpha, training.lr)

    def _fit(
        self,
        scorer: Scorer,
        progress: Progress,
        trainings: Sequence[Training],
        seeds: Sequence[int],
        *,
        first: int | None = None,
        round: int | None = None,
    ) -> list[Lane]:
        """Train candidates from index `first`, or a round of fine-tuning; resume them if possible.

        A single one is trained in the network itself, several in copies of it.
        """
        data = scorer.data

        def log(index: int, epoch: Epoch) -> None:
            self.on_event(
                EpochEnded(
                    task=data.task.name,
                    candidate=None if first is None else first + index,
                    round=round,
                    num_epochs=trainings[index].epochs,
                    **vars(epoch),
                )
            )

        states: Sequence[LaneState | None] = progress.resumed
        if not states:
            states = [None] * len(trainings)
        lanes = progress.lanes = [
            Lane(
                self.net,
                data,
                training,
                seed=seed,
                begin=partial(self._open, data=data, seed=seed) if len(trainings) > 1 else None,
                state=state,
            )
            for training, seed, state in zip(trainings, seeds, states, strict=True)
        ]
        progress.resumed = []
        train_together(lanes, on_epoch=log, on_round=lambda: self.on_progress(progress))
        progress.lanes = []
        return lanes

    def _prune_winner(self, scorer: Scorer, progress: Progress) -> None:
        """Prune all candidates within the margin; open the sparsest, pruned (Alg. 1, line 5)."""
        name = scorer.data.task.name
        scores = [c.score if c.score is not None else -math.inf for c in progress.trained]
        best = max(scores)
        choices = progress.pruned
        done = {choice.candidate for choice in choices}
        for number, state in progress.states.items():
            if number in done:
                continue
            self._reopen(scorer.data, state)
            plan = self._plan(scorer, progress, best, candidate=number)
            left = {
                group: free - plan.kept[group] for group, free in self.net.ledger.free().items()
            }
            choices.append(Choice(number, plan, free_fraction(left, self.net.ledger.sizes)))
            self.net.abandon_task()
            self._log(progress, CandidatePruned(task=name, candidate=number, plan=plan))
        chosen = max(choices, key=lambda c: (c.free_fraction, scores[c.candidate], -c.candidate))
        number, plan = chosen.candidate, chosen.plan
        progress.winner, progress.plans = number, [plan]
        self._reopen(scorer.data, progress.states[number])
        progress.states = {}
        self.net.prune(plan)
        scorer.recalibrate(best)
        self._log(progress, CandidateChosen(task=name, candidate=number, kept=plan.kept))

    def _plan(
        self,
        scorer: Scorer,
        progress: Progress,
        best: float,
        *,
        candidate: int | None = None,
        round: int | None = None,
    ) -> PruningPlan:
        """Plan the pruning of a candidate, or before a round of fine-tuning.

        If `on_event` raises a `StoppedError`, the progress is that before this plan.
        """
        numbers = itertools.count(1)

        def on_evaluation(point: CurvePoint, available: int) -> None:
            self.on_event(
                SubsetScored(
                    task=scorer.data.task.name,
                    candidate=candidate,
                    round=round,
                    number=next(numbers),
                    kept=point.num_kept,
                    available=available,
                )
            )

        try:
            return scorer.plan(best, on_evaluation)
        except StoppedError:
            if candidate is not None:
                self.net.abandon_task()  # Opened for this plan alone.
            self.on_progress(progress)
            raise

    def _fine_tune(self, scorer: Scorer, progress: Progress) -> None:
        """Train the remaining neurons, prune again, and so on.

        A round that leaves the margin is rolled back, and is the last one.
        """
        tuning = self.config.fine_tuning
        # A single head on a network that is almost full may have kept no neuron at all.
        if tuning is None or not any(True for _ in self.net.parameters()):
            return
        name, best = scorer.data.task.name, _best(progress)
        training = replace(
            self.config.training,
            epochs=tuning.epochs,
            lr=tuning.lr,
            alpha=tuning.alpha,
            schedule=tuning.schedule,
            patience=None,
        )
        while progress.round < tuning.rounds and not progress.left_margin:
            number = progress.round
            if not progress.resumed:
                progress.before_round = self.net.open_state()
                if number > 0:
                    progress.plans.append(self._plan(scorer, progress, best, round=number))
                    self.net.prune(progress.plans[-1])
            seed = derive(self.seed, "fine-tuning", name, number)
            lanes = self._fit(scorer, progress, [training], [seed], round=number)
            score = lanes.pop().score(scorer.unpruned)
            kept = score is not None and score >= best - scorer.margin
            progress.left_margin = not kept
            if kept:
                progress.round += 1
            else:
                assert progress.before_round is not None
                self.net.set_open_state(progress.before_round)
                del progress.plans[max(number, 1) :]
            self._log(progress, RoundEnded(task=name, round=number, score=score, kept=kept))

    def _end(self, scorer: Scorer, progress: Progress, *, start: float) -> TaskReport:
        """Freeze the remaining neurons (Alg. 1, lines 6 to 8), and score the ended task."""
        net, data = self.net, scorer.data
        name = data.task.name
        assert progress.winner is not None
        if progress.round:
            scorer.recalibrate(_best(progress))
        self._warn_of_guessing(scorer)
        net.end_task()

        def predict(inputs: Tensor) -> Any:
            return net(inputs, task=name)

        seed_all(derive(self.seed, "test", name))
        test_score = None
        if data.test is not None:
            test_score = evaluate(predict, data.test, data.objective)
        winner = progress.trained[progress.winner]
        if self.config.search_on == "first" and self.kept is None:
            self.kept = replace(self.config.training, alpha=winner.alpha, lr=winner.lr)
        report = TaskReport(
            task=name,
            candidates=tuple(progress.trained),
            winner=progress.winner,
            best_score=max(c.score for c in progress.trained if c.score is not None),
            plans=tuple(progress.plans),
            score=scorer.score(predict),
            test_score=test_score,
            num_rounds=progress.round,
            seconds=time.monotonic() - start,
            full=tuple(group for group, free in net.ledger.free().items() if not free),
            guess=scorer.guess(),
        )
        self.on_event(
            TaskEnded(
                task=name,
                new={group: net.capacity().of(name, group).new for group in net.ledger.sizes},
                full=report.full,
                score=report.score,
                test_score=test_score,
                guess=report.guess,
            )
        )
        return report

    def _warn_of_guessing(self, scorer: Scorer) -> None:
        guess = scorer.guess()
        if guess is not None and is_guess(score := scorer.score(self.net), guess):
            warnings.warn(
                f"task {scorer.data.task.name!r} has a validation score of {score:.2f}, no better "
                f"than always naming the same class, {guess:.2f}, and is frozen now. Train longer, "
                "or check labels, learning rate and alpha",
                stacklevel=4,  # The line that calls `learn`.
            )

    def _log(self, progress: Progress, event: Event) -> None:
        self.on_event(event)
        self.on_progress(progress)


def _best(progress: Progress) -> float:
    """Return the score from which the margin of the task is counted."""
    best = progress.plans[0].best
    assert best is not None
    return best

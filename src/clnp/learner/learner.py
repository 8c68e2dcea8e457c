"""Algorithm 1: the grid, the margin, the sparsest, and what follows pruning, for one task.

Every candidate (alpha, learning rate) is trained. The best validation score of all of them sets the
bar; each candidate within the margin of it is pruned with the highest threshold that stays within
the margin, and the sparsest wins: the one that leaves the largest fraction of its neurons free,
averaged over the groups, so that a small group counts as much as a large one (the narrow layers
are the ones that fill up). Ties go to the higher score, then to the earlier candidate.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from clnp.core.layers.initialisation import initialisation
from clnp.core.layers.ledger import free_fraction
from clnp.core.net import ContinualNet
from clnp.core.penalty import alpha_by_layer
from clnp.core.record import OpenState
from clnp.errors import ArgumentError, DivergedError, TaskError
from clnp.records import (
    CandidateChosen,
    CandidatePruned,
    CandidateTrained,
    EpochEnded,
    Event,
    RoundEnded,
    TaskEnded,
)
from clnp.training.config import LearnerConfig, Training
from clnp.training.fit import Epoch, Fit, evaluate, l1_rule
from clnp.training.optimizer import check_optimizer
from clnp.training.rng import derive, isolated, seed_all
from clnp.training.task import Task, TaskData, load_task

from .grid import judged, train_at_once
from .progress import Candidate, Choice, Progress, TaskReport
from .scoring import Appraisal


class Learner:
    """Learns task after task in `net`, the way `config` says.

        learner = clnp.Learner(net, clnp.LearnerConfig(margin=0.5))
        report = learner.learn(task)

    `on_event` is told of every epoch, candidate and pruning; `on_progress` is handed what `learn`
    needs to be called with to go on from there. The same seed gives the same tasks, bit for bit on
    a CPU.
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
        self.net = net
        self.config = config if config is not None else LearnerConfig()
        self.seed = seed
        self.on_event, self.on_progress = on_event, on_progress
        self.kept: Training | None = None
        """The winner of the first task's grid, where the others use it."""

    def learn(self, task: Task, progress: Progress | None = None) -> TaskReport:
        """Learn the task and freeze it; if that fails before the end, the network is as it was."""
        start = time.monotonic()
        net = self.net
        progress = progress if progress is not None else Progress()
        if net.open_task is not None and progress.resumed is None and progress.winner is None:
            raise TaskError(f"task {net.open_task!r} is open; end or abandon it before the next")
        mode = net.training
        with isolated(net.device):
            data = load_task(task, net.device, self.config, seed=self.seed)
            appraisal = Appraisal(net, data, self.config, seed=self.seed)
            try:
                if not progress.trained and progress.resumed is None:
                    self._check_trainable(data)
                self._train_all(appraisal, progress)
                self._prune_winner(appraisal, progress)
                num_rounds = self._fine_tune(appraisal, progress)
                return self._end(appraisal, progress, num_rounds=num_rounds, start=start)
            except BaseException:
                if net.open_task is not None:
                    net.abandon_task()
                raise
            finally:
                net.train(mode)

    def check(self, task: Task) -> None:
        """Raise an `ArgumentError` if the task can be told not to fit, without reading it all.

        Tensors are checked entirely, other data sets by their first samples.
        """
        tensors = isinstance(task.train, tuple | list)
        if not tensors and task.num_outputs is None:
            return  # To count the labels, all samples would have to be read.
        config = replace(self.config, check_data=False, resident=None if tensors else False)
        with isolated(self.net.device):
            data = load_task(task, self.net.device, config, seed=self.seed)
            mode = self.net.training
            try:
                self._check_trainable(data)
            finally:
                self.net.train(mode)

    def _open(self, net: ContinualNet, data: TaskData, seed: int) -> None:
        seed_all(derive(seed, "init"))
        chosen = self.config.training.initialisation
        net.begin_task(data.task.name, data.num_outputs, initial=initialisation(chosen))

    def _check_trainable(self, data: TaskData) -> None:
        """Refuse penalties, optimizers and inputs that do not fit, before anything is trained."""
        for training in self.candidates(data.task.name):
            alpha_by_layer(self.net.graph, training.alpha)
            check_optimizer(training, self.net.device)
        if self.config.fine_tuning is not None:
            alpha_by_layer(self.net.graph, self.config.fine_tuning.alpha)
        self._open(self.net, data, 0)
        parts = {"training": data.train, "validation": data.validation, "test": data.test}
        size = min(2, self.config.training.batch_size)
        try:
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

    def _train_all(self, appraisal: Appraisal, progress: Progress) -> None:
        """Train every candidate that has not been (Alg. 1, lines 2 and 3)."""
        name = appraisal.data.task.name
        if progress.winner is not None:
            return
        trainings = self.candidates(name)
        while (first := len(progress.trained)) < len(trainings):
            # One that was alone when it broke off goes on alone.
            num = 1 if progress.resumed is not None else self.config.candidates_at_once
            done = self._trained(appraisal, progress, trainings[first : first + num])
            for number, candidate in enumerate(done, first):
                progress.trained.append(candidate)
                fields = {key: value for key, value in vars(candidate).items() if key != "state"}
                self.on_event(CandidateTrained(task=name, candidate=number, **fields))
            progress.let_go(below=appraisal.margin)
            # Not before: a part of those that were trained together cannot be saved.
            self.on_progress(progress)
        if all(candidate.score is None for candidate in progress.trained):
            reasons = "; ".join(
                f"alpha {c.alpha}, lr {c.lr:g}: {c.diverged}" for c in progress.trained
            )
            raise DivergedError(f"every candidate of task {name!r} diverged: {reasons}")

    def _trained(
        self, appraisal: Appraisal, progress: Progress, trainings: Sequence[Training]
    ) -> list[Candidate]:
        """The next candidates of the grid: one in the network itself, or several in copies."""
        data = appraisal.data
        first, name = len(progress.trained), data.task.name
        alphas = [dict(t.alpha) if isinstance(t.alpha, Mapping) else t.alpha for t in trainings]
        pairs = zip(alphas, trainings, strict=True)
        seeds = [derive(self.seed, "candidate", name, alpha, t.lr) for alpha, t in pairs]

        if len(trainings) == 1:
            if progress.resumed is None:
                self._open(self.net, data, seeds[0])
            error = None
            try:
                self._fit(data, progress, trainings[0], seed=seeds[0], candidate=first)
            except DivergedError as found:
                error = found
            assert progress.fit is not None
            candidate = judged(self.net, progress.fit, appraisal.unpruned, error)
            self.net.abandon_task()
            progress.fit = None
            return [candidate]

        def log(index: int, epoch: Epoch) -> None:
            num_epochs = trainings[index].epochs
            self.on_event(
                EpochEnded(task=name, candidate=first + index, num_epochs=num_epochs, **vars(epoch))
            )

        return train_at_once(
            self.net,
            data,
            trainings,
            progress,
            seeds=seeds,
            begin=lambda net, seed: self._open(net, data, seed),
            judge=appraisal.unpruned,
            on_epoch=log,
            on_round=lambda: self.on_progress(progress),
        )

    def _fit(
        self,
        data: TaskData,
        progress: Progress,
        training: Training,
        *,
        seed: int,
        candidate: int | None = None,
        round: int | None = None,
    ) -> None:
        """Train a candidate, or a round of fine-tuning, in the open task; resume it if possible."""
        rule = l1_rule(self.net, training.alpha)
        progress.fit = fit = Fit(self.net, data, training, seed=seed, rule=rule)
        if progress.resumed is not None:
            fit.restore(progress.resumed)
            progress.resumed = None
        fit.run(
            lambda epoch: self._log(
                progress,
                EpochEnded(
                    task=data.task.name,
                    candidate=candidate,
                    round=round,
                    num_epochs=training.epochs,
                    **vars(epoch),
                ),
            )
        )

    def candidates(self, task: str) -> list[Training]:
        """What the task is tried with: its own grid, the common one, or the one that is kept."""
        config = self.config.of(task)
        if self.kept is None or self.config.has_own_grid(task):
            return config.candidates()
        return [replace(self.kept, epochs=config.training.epochs)]

    def _prune_winner(self, appraisal: Appraisal, progress: Progress) -> None:
        """Prune all candidates within the margin; open the sparsest, pruned (Alg. 1, line 5)."""
        if progress.winner is not None:
            return
        data = appraisal.data
        name = data.task.name
        scores = [c.score if c.score is not None else -math.inf for c in progress.trained]
        best = max(scores)
        choices = progress.pruned
        seen = {choice.candidate for choice in choices}
        for number, candidate in enumerate(progress.trained):
            within = scores[number] >= best - appraisal.margin
            if candidate.state is None or not within or number in seen:
                continue
            self._reopen(data, candidate.state)
            plan = appraisal.plan(best)
            left = {
                group: free - plan.kept[group] for group, free in self.net.ledger.free().items()
            }
            choices.append(Choice(number, plan, free_fraction(left, self.net.ledger.sizes)))
            self.net.abandon_task()
            self._log(progress, CandidatePruned(task=name, candidate=number, plan=plan))
        chosen = max(choices, key=lambda c: (c.free_fraction, scores[c.candidate], -c.candidate))
        progress.winner, progress.plans = chosen.candidate, [chosen.plan]
        winner = progress.trained[chosen.candidate]
        assert winner.state is not None
        self._reopen(data, winner.state)
        progress.let_go()
        self.net.prune(chosen.plan)
        appraisal.recalibrate(best)
        chosen_event = CandidateChosen(task=name, candidate=chosen.candidate, kept=chosen.plan.kept)
        self._log(progress, chosen_event)

    def _reopen(self, data: TaskData, state: OpenState) -> None:
        self._open(self.net, data, 0)
        self.net.set_open_state(state)

    def _fine_tune(self, appraisal: Appraisal, progress: Progress) -> int:
        """Train the survivors, prune and train again; the number of rounds that were kept.

        A round that leaves the margin is rolled back and is the last one.
        """
        tuning = self.config.fine_tuning
        # A single head on a network that is all but full may have kept no neuron at all.
        if tuning is None or not any(True for _ in self.net.parameters()):
            return 0
        best = progress.plans[0].best
        assert best is not None
        data, bar = appraisal.data, best - appraisal.margin
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
            seed = derive(self.seed, "fine-tuning", data.task.name, number)
            if progress.resumed is None:
                progress.before_round = self.net.open_state()
                if number > 0:
                    progress.plans.append(appraisal.plan(best))
                    self.net.prune(progress.plans[-1])
            score: float | None
            try:
                self._fit(data, progress, training, seed=seed, round=number)
                score = appraisal.unpruned(self.net)
            except DivergedError:
                score = None
            progress.fit = None
            progress.left_margin = score is None or score < bar
            if progress.left_margin:
                assert progress.before_round is not None
                self.net.set_open_state(progress.before_round)
                del progress.plans[max(number, 1) :]
            else:
                progress.round += 1
            kept = not progress.left_margin
            ended = RoundEnded(task=data.task.name, round=number, score=score, kept=kept)
            self._log(progress, ended)
        return progress.round

    def _end(
        self, appraisal: Appraisal, progress: Progress, *, num_rounds: int, start: float
    ) -> TaskReport:
        """Freeze the survivors (Alg. 1, lines 6 to 8) and judge the task as it is from now on."""
        net, data = self.net, appraisal.data
        name = data.task.name
        assert progress.winner is not None
        if num_rounds:
            best = progress.plans[0].best
            assert best is not None
            appraisal.recalibrate(best)
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
            candidates=tuple(replace(c, state=None) for c in progress.trained),
            winner=progress.winner,
            best_score=max(c.score for c in progress.trained if c.score is not None),
            plans=tuple(progress.plans),
            score=appraisal.measured(predict),
            test_score=test_score,
            num_rounds=num_rounds,
            seconds=time.monotonic() - start,
            full=tuple(group for group, free in net.ledger.free().items() if not free),
            guess=appraisal.guess(),
        )
        new = {group: net.capacity().of(name, group).new for group in net.ledger.sizes}
        self.on_event(
            TaskEnded(
                task=name,
                new=new,
                full=report.full,
                score=report.score,
                test_score=test_score,
                guess=report.guess,
            )
        )
        return report

    def _log(self, progress: Progress, event: Event) -> None:
        self.on_event(event)
        self.on_progress(progress)

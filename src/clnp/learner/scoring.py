"""Scores of an open task on its validation data, and what can be pruned by them.

Before each score, BatchNorm is recalibrated on the same few samples: for a trained candidate, for
every set of neurons that the search tries, and after a round of fine-tuning.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from clnp.core.layers.blocks import same
from clnp.core.net import ContinualNet
from clnp.core.pruning.activity import Activity
from clnp.core.pruning.plan import CurvePoint, PruningPlan
from clnp.core.pruning.thresholds import importance_of
from clnp.core.structure.kinds import keeps_statistics
from clnp.errors import ArgumentError, DivergedError, PruningError
from clnp.training.batches import Batches
from clnp.training.config import LearnerConfig
from clnp.training.criterion import criterion_of
from clnp.training.fit import EVALUATION_BATCH, evaluate
from clnp.training.objective import guessing, is_built_in
from clnp.training.rng import derive, seed_all
from clnp.training.task import TaskData

OnEvaluation = Callable[[CurvePoint, int], None]
"""Called with each evaluation of the search for a plan, and the number of neurons to prune."""


@dataclass(frozen=True)
class Repeatable:
    """The batches of a data set, in the same order, as often as somebody iterates over them."""

    data: Batches
    size: int

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.data.batches(self.size)


class Scorer:
    """Scores, prunes and recalibrates the open task of a network by its data."""

    def __init__(
        self, net: ContinualNet, data: TaskData, config: LearnerConfig, *, seed: int
    ) -> None:
        self.net, self.data, self.config, self.seed = net, data, config, seed
        self.margin = config.of(data.task.name).margin
        self._criterion = criterion_of(config.importance)
        self._recalibrates = config.recalibrate and any(map(keeps_statistics, net.modules()))

    def score(self, predict: Callable[..., Any], at_least: float | None = None) -> float:
        """Return the validation score of a predictor, which may be NaN or infinite."""
        # The same random numbers for every threshold, at the end, and when a run resumes.
        self._seeded("score")
        return evaluate(predict, self.data.validation, self.data.objective, at_least=at_least)

    def finite_score(self, predict: Callable[..., Any], at_least: float | None = None) -> float:
        """Return the validation score of a predictor; a `DivergedError` if it is not finite."""
        found = self.score(predict, at_least)
        if not math.isfinite(found):
            raise DivergedError(
                f"the validation score of task {self.data.task.name!r} is {found}. Use a lower "
                "learning rate"
            )
        return found

    def unpruned(self, net: ContinualNet) -> float:
        """Return the score of the open task with all of its neurons, in `net` or a copy of it."""
        return net.unpruned_score(self.finite_score, recalibrate=self._calibration)

    def guess(self) -> float | None:
        """Return the score of always predicting the same class, if it is known."""
        return guessing(self.data.objective, self.data.validation.targets)

    def plan(self, best: float, on_evaluation: OnEvaluation) -> PruningPlan:
        """Plan the fewest neurons whose score stays within the margin of the best one.

        Validation data that is too large to keep may be random. If all neurons together now score
        less than needed, the margin is below their score.

        The first task shows whether the margin fits the scale of a score that is not ours. A later
        one that learns nothing, in a network that is full, say, may end so, with a warning.
        """
        importance, allow = self._importance(), is_built_in(self.data.objective)
        try:
            return self._plan(importance, best, on_evaluation, allow_guessing=allow)
        except PruningError as error:
            if error.guesses and not self.net.tasks:
                raise
            if error.guesses:
                warnings.warn(f"task {self.data.task.name!r}: {error}", stacklevel=2)
            needed = best if error.guesses else None
            allow = allow or bool(self.net.tasks)
            return self._plan(importance, needed, on_evaluation, allow_guessing=allow)

    def _plan(
        self,
        importance: Activity,
        best: float | None,
        on_evaluation: OnEvaluation,
        *,
        allow_guessing: bool,
    ) -> PruningPlan:
        available = sum(importance.num_free().values())
        return self.net.plan_pruning(
            importance,
            self.score,
            margin=self.margin,
            best=best,
            per_layer=self.config.per_layer,
            resolution=self.config.resolution,
            recalibrate=self._calibration,
            allow_guessing=allow_guessing,
            on_evaluation=lambda point: on_evaluation(point, available),
        )

    def recalibrate(self, best: float) -> None:
        """Recalibrate BatchNorm on all training data, with which the task may end.

        If that leaves the margin, BatchNorm gets the statistics of the scores again: recalibrated
        on a few samples, or, with `calibration_samples = 0`, those from training.
        """
        if not self._recalibrates:
            return
        trained = self.net.open_state()
        seed = self._seeded("recalibrate")
        # Shuffled: the data may be sorted by class.
        size = self.config.training.batch_size
        self.net.recalibrate(self.data.train.batches(size, seed=seed))
        try:
            holds = self.net.unpruned_score(self.finite_score) >= best - self.margin
        except DivergedError:
            holds = False
        if not holds and self._calibration is not None:
            self.net.recalibrate(self._calibration)
        elif not holds:
            self.net.set_open_state(trained)

    def _importance(self) -> Activity:
        """Measure the importance of the neurons by the criterion of the config."""
        self._seeded("measure")
        net, criterion = self.net, self._criterion
        batches = Repeatable(self.data.train, EVALUATION_BATCH)
        if criterion == "activity":
            return net.measure_activity(batches)
        if criterion == "contribution":
            return net.measure_contribution(batches)
        if criterion == "taylor":  # Gradients take as much memory as in training.
            size = min(EVALUATION_BATCH, self.config.training.batch_size)
            return net.measure_taylor(replace(batches, size=size), self.data.objective.loss)
        assert callable(criterion)
        before = net.open_state().tensors
        found = criterion(net, batches)
        for name, tensor in net.open_state().tensors.items():
            if not same(tensor, before[name]):
                raise ArgumentError(
                    f"the function for importance has changed {name}. It must leave the network as "
                    "it is: let it change a copy, copy.deepcopy(net)"
                )
        if isinstance(found, Activity):
            return found
        activity = net.measure_activity(batches)
        checked = importance_of(net.graph, found, activity.num_free())
        return Activity(checked, {}, activity.inputs)

    @cached_property
    def _calibration(self) -> list[tuple[Tensor, Tensor]] | None:
        """A few random batches for all scores, drawn once: a data set may be random."""
        num = self.config.calibration_samples
        if not self._recalibrates or not num:
            return None
        seed = self._seeded("calibration")
        return list(self.data.train.some(num, most=EVALUATION_BATCH, seed=seed))

    def _seeded(self, purpose: str) -> int:
        """Seed all generators for a purpose, and return the seed."""
        seed = derive(self.seed, purpose, self.data.task.name)
        seed_all(seed)
        return seed

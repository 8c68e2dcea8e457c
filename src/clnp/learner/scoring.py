"""What validation data say of an open task, and what can be pruned by that.

Whatever is scored has had its BatchNorm recalibrated, on the same few samples every time: what was
trained, every set of neurons that the search tries, and what fine-tuning makes of the survivors.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

from clnp.core.net import ContinualNet
from clnp.core.pruning.activity import Activity
from clnp.core.pruning.thresholds import PruningPlan
from clnp.core.structure.kinds import keeps_statistics
from clnp.errors import DivergedError, PruningError
from clnp.training.batches import Kept
from clnp.training.config import LearnerConfig
from clnp.training.fit import EVALUATION_BATCH, evaluate
from clnp.training.objective import guessing
from clnp.training.rng import derive, seed_all
from clnp.training.task import TaskData


class Appraisal:
    """How the open task of a network is scored, pruned and recalibrated, by its own data."""

    def __init__(
        self, net: ContinualNet, data: TaskData, config: LearnerConfig, *, seed: int
    ) -> None:
        self.net, self.data, self.config, self.seed = net, data, config, seed
        self.margin = config.of(data.task.name).margin
        has_norms = any(map(keeps_statistics, net.modules()))
        self._recalibrating = config.recalibrate and has_norms
        use_some = self._recalibrating and config.calibration_samples
        self._calibration = Kept(self._draw) if use_some else None

    def score(self, predict: Callable[..., Any], at_least: float | None = None) -> float:
        """The validation score of a predictor; a `DivergedError` if it is no finite number."""
        found = self.measured(predict, at_least)
        if not math.isfinite(found):
            raise DivergedError(f"the validation score of task {self.data.task.name!r} is {found}")
        return found

    def measured(self, predict: Callable[..., Any], at_least: float | None = None) -> float:
        """The validation score of a predictor, whatever it is."""
        # The same random numbers for every threshold, in the end, and after a crash.
        self._seeded("score")
        return evaluate(predict, self.data.validation, self.data.objective, at_least=at_least)

    def unpruned(self, net: ContinualNet) -> float:
        """The score of the open task with all of its neurons, in `net` or a copy of it."""
        return net.unpruned_score(self.score, recalibrate=self._calibration)

    def guess(self) -> float | None:
        """What always naming the same class would score, where that is known."""
        return guessing(self.data.objective, self.data.validation.targets)

    def plan(self, best: float) -> PruningPlan:
        """The fewest neurons whose score stays within the margin of the best one.

        Validation data that is too large to be kept may be random, and scores chance: where all
        neurons together score less now than is needed, the margin is one below that.
        """
        importance = self._importance()
        try:
            return self._plan(importance, best)
        except PruningError:
            return self._plan(importance, None)

    def _plan(self, importance: Activity, best: float | None) -> PruningPlan:
        return self.net.plan_pruning(
            importance,
            self.measured,
            margin=self.margin,
            best=best,
            per_layer=self.config.per_layer,
            resolution=self.config.resolution,
            recalibrate=self._calibration,
        )

    def recalibrate(self, best: float) -> None:
        """Recalibrate BatchNorm on all training data: the task may end with that.

        Where that leaves the margin, which what was scored did not, BatchNorm is as it was scored:
        recalibrated on a few samples, or, with `calibration_samples = 0`, not at all.
        """
        if not self._recalibrating:
            return
        trained = self.net.open_state()
        seed = self._seeded("recalibrate")
        # In any order but the one that they lie in: that may be by class.
        size = self.config.training.batch_size
        self.net.recalibrate(self.data.train.batches(size, seed=seed))
        try:
            holds = self.net.unpruned_score(self.score) >= best - self.margin
        except DivergedError:
            holds = False
        if not holds and self._calibration is not None:
            self.net.recalibrate(self._calibration)
        elif not holds:
            self.net.set_open_state(trained)

    def _importance(self) -> Activity:
        self._seeded("measure")
        batches = self.data.train.batches(EVALUATION_BATCH)
        if self.config.importance == "contribution":
            return self.net.measure_contribution(batches)
        return self.net.measure_activity(batches)

    def _draw(self) -> Iterable[Any]:
        """A few batches, drawn at random, for all that is scored."""
        seed = self._seeded("calibration")
        wanted = self.config.calibration_samples
        return self.data.train.some(wanted, most=EVALUATION_BATCH, seed=seed)

    def _seeded(self, purpose: str) -> int:
        """Seed all generators for a purpose; with what."""
        seed = derive(self.seed, purpose, self.data.task.name)
        seed_all(seed)
        return seed

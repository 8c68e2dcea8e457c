"""Continual learning by neural pruning, as the method of a run."""

from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clnp.core.net import ContinualNet
from clnp.learner.learner import Learner
from clnp.learner.progress import Progress, TaskReport
from clnp.records import (
    CapacityRecord,
    NetworkRecord,
    PruningRecord,
    TaskRecord,
)
from clnp.storage import checkpoint
from clnp.training.objective import objective_named
from clnp.training.task import Task

from .method import Method, Setting, State


class NeuralPruning(Method):
    """A `ContinualNet` with its `Learner`, new or restored from a checkpoint."""

    def __init__(self, setting: Setting, path: Path, state: State | None) -> None:
        config = setting.config
        if state is None:
            self.net = ContinualNet(
                setting.model,
                setting.example_input,
                head=setting.head,
                classifier=setting.classifier,
            )
        else:
            self.net = checkpoint.load(path, setting.model)
            if state["progress"] is None and self.net.open_task is not None:
                self.net.abandon_task()  # The task was exchanged for another.
        self.learner = Learner(
            self.net,
            config,
            seed=setting.seed,
            on_event=setting.on_event,
            on_progress=self._progressed,
        )
        self._names = [task.name for task in setting.tasks]
        self._on_progress = setting.on_progress
        self._progress: Progress | None = None
        if state is not None and state["kept"] is not None:
            self.learner.kept = replace(config.training, **state["kept"])
        if state is not None and state["progress"] is not None:
            self._progress = Progress.from_state(state["progress"])

    @property
    def device(self) -> torch.device:
        return self.net.device

    def check(self, task: Task) -> None:
        self.learner.check(task)

    def answers(self, task: str) -> bool:
        return task in self.net.tasks

    def num_candidates(self, task: str) -> int:
        return len(self.learner.candidates(task))

    def num_epochs(self, task: str) -> int:
        return self.learner.config.of(task).training.epochs

    def epochs_before(self, number: int) -> int:
        config, total = self.learner.config, 0
        for index, name in enumerate(self._names[:number]):
            kept = index and config.search_on == "first" and not config.has_own_grid(name)
            total += (1 if kept else len(config.of(name).candidates())) * self.num_epochs(name)
        return total

    def learn(self, task: Task) -> TaskRecord:
        try:
            return self._record(self.learner.learn(task, self._progress), task)
        finally:
            self._progress = None

    def predict(self, inputs: Tensor, task: str) -> Any:
        return self.net(inputs, task=task)

    def figures(self) -> NetworkRecord:
        return figures(self.net)

    def verify(self) -> None:
        """Raise a `ForgettingError` if a task has changed."""
        self.net.verify()

    def state(self) -> State:
        kept, progress = self.learner.kept, self._progress
        return {
            "progress": None if progress is None else progress.to_state(),
            "kept": None if kept is None else {"alpha": kept.alpha, "lr": kept.lr},
        }

    def save(self, path: str | PathLike[str], *, attached: Any) -> None:
        checkpoint.save(self.net, path, attached=attached)

    def _progressed(self, progress: Progress) -> None:
        self._progress = progress
        self._on_progress()

    def _record(self, report: TaskReport, task: Task) -> TaskRecord:
        """Return the record of an ended task: the first pruning, with the last thresholds."""
        plan, capacity = report.plan, self.net.capacity()
        usages = [usage for usage in capacity.usages if usage.task == report.task]
        return TaskRecord(
            task=report.task,
            objective=objective_named(task.objective).name,
            candidates=report.candidates,
            winner=report.winner,
            best_score=report.best_score,
            pruning=PruningRecord(plan.score, plan.kept, report.plans[-1].thresholds),
            num_rounds=report.num_rounds,
            score=report.score,
            test_score=report.test_score,
            guess=report.guess,
            new={usage.group: usage.new for usage in usages},
            reused={usage.group: usage.reused for usage in usages},
        )


def figures(net: ContinualNet) -> NetworkRecord:
    """Return the figures of a network."""
    capacity = net.capacity()
    return NetworkRecord(
        CapacityRecord(capacity.sizes, capacity.usages, capacity.free),
        net.forecast(),
        {name: certificate.digest for name, certificate in net.certificates.items()},
        stored_bytes(net),
    )


def stored_bytes(net: ContinualNet) -> dict[str, int]:
    """Return the bytes of what ended tasks read: claimed neurons and, if separate, the heads."""
    sizes = {name: tensor.nbytes for name, tensor in net.model.named_buffers()}
    within = f"{net.graph.classifier}."
    own = sum(size for name, size in sizes.items() if name.startswith(within))
    heads = own if net.head == "multi" else 0
    return {"network": sum(sizes.values()) - heads, "heads": heads}

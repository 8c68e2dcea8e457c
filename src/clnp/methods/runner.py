"""The training, records and scores of a baseline in a run, shared by all baselines."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Integral
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from clnp.checks import shown
from clnp.core.layers.initialisation import initialisation
from clnp.core.layers.ledger import Ledger
from clnp.core.record import Description, Record
from clnp.core.structure.discover import discover
from clnp.core.structure.inputs import imitate
from clnp.core.structure.kinds import keeps_statistics
from clnp.errors import ArgumentError
from clnp.records import (
    CandidateRecord,
    EpochEnded,
    NetworkRecord,
    RoundEnded,
    TaskEnded,
    TaskRecord,
)
from clnp.storage import checkpoint
from clnp.training.config import Training
from clnp.training.fit import Epoch, Fit, FitState, StepRule, evaluate, evaluating
from clnp.training.objective import guessing, objective_named
from clnp.training.optimizer import check_optimizers
from clnp.training.rng import derive, isolated, seed_all
from clnp.training.task import Task, TaskData

from .dense import DenseNet
from .method import Method, Retraining, Setting, State, Strategy, num_bytes


class TaskStatistics:
    """The BatchNorm statistics of each ended task.

    Those of the open task are in the model, which resets them when the task begins. Without a
    model there are none.
    """

    def __init__(self, model: nn.Module | None) -> None:
        modules = {} if model is None else dict(model.named_modules())
        self._norms = {path: m for path, m in modules.items() if keeps_statistics(m)}
        self.learned: list[Mapping[str, Tensor]] = []

    def begin(self) -> None:
        """Reset the statistics in the model."""
        for norm in self._norms.values():
            norm.reset_running_stats()

    def end(self) -> None:
        """Store those of the open task."""
        self.learned.append(imitate(self._shown(), torch.clone))

    @contextmanager
    def running(self, index: int) -> Iterator[None]:
        """Run the model with those of the task at that index."""
        before = self._shown()
        self._show(before if index == len(self.learned) else self.learned[index])
        try:
            yield
        finally:
            self._show(before)

    def _shown(self) -> dict[str, Tensor]:
        found = {
            f"{path}.{name}": getattr(norm, name)
            for path, norm in self._norms.items()
            for name in ("running_mean", "running_var")
        }
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def _show(self, statistics: Mapping[str, Tensor]) -> None:
        for name, tensor in statistics.items():
            path, _, buffer = name.rpartition(".")
            setattr(self._norms[path], buffer, tensor)

    @property
    def num_bytes(self) -> int:
        """Bytes stored beside the network, which has those of one task."""
        return num_bytes(self.learned[1:])


class WholeNetwork(Method):
    """A method that trains all weights of a network with heads.

    `net.heads.current` is the index of the task that the network predicts for. `resumed` is the
    progress of an interrupted training, until it resumes.
    """

    net: Any

    def __init__(self, settings: Any, setting: Setting) -> None:
        self.setting = setting
        self.graph = discover(setting.model, setting.example_input, classifier=setting.classifier)
        # Baselines have no L1 penalty.
        self.training = replace(settings.training or setting.config.training, alpha=0.0)
        self.resumed: FitState | None = None
        self._fit: Fit | None = None

    @property
    def device(self) -> torch.device:
        weight: Tensor = next(self.net.model.parameters())
        return weight.device

    def num_epochs(self, task: str) -> int:
        return self.training.epochs

    def train(
        self,
        data: TaskData,
        training: Training,
        *,
        seed: int,
        rule: StepRule,
        round: int | None = None,
    ) -> tuple[float, int]:
        """Train, or resume training; return the validation score and the number of epochs.

        `round` is the index of the round of fine-tuning, if this is one.
        """
        setting = self.setting
        fit = self._fit = Fit(self.net, data, training, seed=seed, rule=rule)
        if self.resumed is not None:
            fit.restore(self.resumed)
            self.resumed = None

        def log(epoch: Epoch) -> None:
            setting.on_event(
                EpochEnded(
                    task=data.task.name,
                    candidate=0 if round is None else None,
                    round=round,
                    num_epochs=training.epochs,
                    **vars(epoch),
                )
            )
            setting.on_progress()

        best = fit.run(log)
        self._fit = None
        return best, len(fit.epochs)

    def run(self, inputs: Tensor, index: int) -> Any:
        """Return the outputs of the task at that index."""
        heads = self.net.heads
        current, heads.current = heads.current, index
        try:
            # An autograd graph that is still alive prevents the capture of later steps.
            with torch.no_grad(), evaluating(self.net):
                return self.net(inputs)
        finally:
            heads.current = current

    def ended(
        self, task: Task, data: TaskData | None, *, best: float | None, num_epochs: int
    ) -> TaskRecord:
        """Log that a task has ended, and return its record, with scores if there is data."""
        score = test_score = guess = None
        if data is not None:

            def outputs(inputs: Tensor) -> Any:
                return self.predict(inputs, task.name)

            if data.test is not None:
                test_score = evaluate(outputs, data.test, data.objective)
            score = evaluate(outputs, data.validation, data.objective)
            guess = guessing(data.objective, data.validation.targets)
        self.setting.on_event(
            TaskEnded(task=task.name, score=score, test_score=test_score, guess=guess)
        )
        return TaskRecord(
            task=task.name,
            objective=objective_named(task.objective).name,
            candidates=(CandidateRecord(0.0, self.training.lr, num_epochs, best),),
            best_score=best,
            score=score,
            test_score=test_score,
            guess=guess,
        )

    def progress(self) -> FitState | None:
        """Return the progress of the training, to restore as `resumed`; None between two."""
        return None if self._fit is None else self._fit.state()

    def verify(self) -> None:
        """Do nothing: a baseline has no guarantee."""

    def save(self, path: str | PathLike[str], *, attached: Any) -> None:
        """Write the attached data, which is complete, to a file."""
        empty = Record(
            graph=self.graph,
            head=self.setting.head,
            description=Description({}, {}),
            ledger=Ledger(self.graph.groups),
            certificates=(),
            num_outputs=(),
            open_task=None,
            open_free={},
            attached=attached,
        )
        checkpoint.write(path, empty, {})


@dataclass(frozen=True)
class Trained:
    """The result of training a task, and a seed for what follows."""

    best: float
    num_epochs: int
    seed: int


class DenseMethod(WholeNetwork):
    """A `DenseNet` with the strategy of a baseline, new or restored from a saved state."""

    def __init__(self, settings: Any, setting: Setting, state: State | None) -> None:
        super().__init__(settings, setting)
        self.net: DenseNet = DenseNet(
            setting.model,
            self.graph.classifier,
            shared_head=setting.head == "single",
            graph=self.graph,
            initialise=initialisation(self.training.initialisation),
        )
        # A strategy with a second training derives it from these settings.
        made = replace(settings, training=self.training).strategy(self.net)
        check_returned(f"{type(settings).__name__}.strategy(net)", made, Strategy)
        self.strategy: Strategy = made
        if not hasattr(made, "net"):
            made.net = self.net  # `Strategy.restore` needs it.
        self.statistics = TaskStatistics(self.net.model if self.strategy.own_statistics else None)
        self._trained: Trained | None = None
        if state is not None:
            self.net.restore(state["net"])
            self.statistics.learned = imitate(state["statistics"], lambda t: t.to(self.device))
            self.strategy.restore(state["strategy"])
            self.resumed = state["progress"]
            if state["trained"] is not None:
                self._trained = Trained(**state["trained"])

    def check(self, task: Task) -> None:
        check_optimizers([self.training], self.net.model)
        self.strategy.check(task)
        try:
            self._stored_bytes()
        except ArgumentError:
            raise
        except Exception:
            pass  # It may need what `begin` or `end` computes.
        layer: Any = self.setting.model.get_submodule(self.graph.classifier)
        most = len(layer.weight)
        if self.setting.head == "single" and (task.num_outputs or 0) > most:
            raise ArgumentError(
                f"task {task.name!r} has {task.num_outputs} outputs, but the single head has "
                f"{most}. Give the last layer as many outputs as the largest task."
            )

    def answers(self, task: str) -> bool:
        return task in self.net.tasks

    def num_candidates(self, task: str) -> int:
        return 1

    def epochs_before(self, number: int) -> int:
        return number * self.training.epochs

    def learn(self, task: Task) -> TaskRecord:
        with isolated(self.device):
            data = self.setting.load(task, self.device)
            index = len(self.net.tasks)
            if self.resumed is None:
                seed_all(derive(self.setting.seed, "init", task.name))
                if index == 0:
                    self.net.reset()
                self.net.begin_task(task.name, data.num_outputs)
                # Its random numbers must not depend on what came before the task.
                seed_all(derive(self.setting.seed, "begin", task.name))
                self.statistics.begin()
                self.strategy.begin(index, data)
            if self._trained is None:
                self._trained = self._train(index, data)
            trained = self._trained
            self._retrain(data, seed=trained.seed)
            self._trained = None
            self.statistics.end()
            self.net.end_task()
            return self.ended(task, data, best=trained.best, num_epochs=trained.num_epochs)

    def _train(self, index: int, data: TaskData) -> Trained:
        """Train the open task, and let the strategy end it."""
        name, rule = data.task.name, self.strategy.rule()
        check_returned(f"{type(self.strategy).__name__}.rule()", rule, StepRule)
        seed = derive(self.setting.seed, "candidate", name)
        best, num_epochs = self.train(data, self.training, seed=seed, rule=rule)
        # If `end` is repeated, it must draw the same random numbers.
        seed_all(derive(self.setting.seed, "end", name))
        self.strategy.end(index, data)
        return Trained(best, num_epochs, seed=int(torch.randint(2**62, (), device="cpu")))

    def _retrain(self, data: TaskData, *, seed: int) -> None:
        """Train the open task a second time, if the strategy has a second training."""
        again = self.strategy.retraining()
        if again is None:
            return
        check_returned(f"{type(self.strategy).__name__}.retraining()", again, Retraining)
        score, _ = self.train(data, again.training, seed=seed, rule=again.rule, round=0)
        self.setting.on_event(RoundEnded(task=data.task.name, round=0, score=score))

    def predict(self, inputs: Tensor, task: str) -> Any:
        index = self.net.tasks.index(task)
        with self.strategy.running(index), self.statistics.running(index):
            return self.run(inputs, index)

    def figures(self) -> NetworkRecord:
        heads, total = num_bytes(self.net.heads.own()), num_bytes(self.net.model.state_dict())
        stored = {"network": total - heads, "heads": heads, **self._stored_bytes()}
        if self.statistics.num_bytes:
            stored["statistics"] = self.statistics.num_bytes
        return NetworkRecord(stored_bytes=stored)

    def _stored_bytes(self) -> Mapping[str, int]:
        found = self.strategy.stored_bytes()
        is_mapping = isinstance(found, Mapping) and all(isinstance(kind, str) for kind in found)
        if not is_mapping or not all(isinstance(num, Integral) for num in found.values()):
            raise ArgumentError(
                f"baseline: {type(self.strategy).__name__}.stored_bytes() returns {shown(found)}. "
                'Return the bytes by kind, such as {"weights": 1024}.',
                argument="baseline",
            )
        return {kind: int(num) for kind, num in found.items()}

    def state(self) -> State:
        """Return all state; `progress` is None between two tasks, `trained` before retraining."""
        return {
            "progress": self.progress(),
            "trained": None if self._trained is None else vars(self._trained),
            "net": self.net.state(),
            "statistics": self.statistics.learned,
            "strategy": self.strategy.state(),
        }


def check_returned(call: str, found: object, kind: type) -> None:
    """Raise an `ArgumentError` unless the call, of a custom baseline, returned such an object."""
    if not isinstance(found, kind):
        what = "nothing" if found is None else f"an object of type {type(found).__name__}"
        raise ArgumentError(
            f"baseline: {call} returns {what}. Return a clnp.methods.{kind.__name__}.",
            argument="baseline",
        )

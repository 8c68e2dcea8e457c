"""The training, records and scores of a baseline in a run, shared by all baselines."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from clnp.core.layers.initialisation import initialisation
from clnp.core.layers.ledger import Ledger
from clnp.core.record import Description, Record
from clnp.core.structure.discover import discover
from clnp.core.structure.graph import Graph
from clnp.core.structure.kinds import keeps_statistics
from clnp.errors import ArgumentError, CheckpointError
from clnp.records import CandidateRecord, NetworkRecord, RoundEnded, TaskEnded, TaskRecord
from clnp.storage import checkpoint
from clnp.training.config import Training
from clnp.training.fit import Epoch, Fit, FitState, StepRule, evaluate
from clnp.training.objective import guessing, objective_named
from clnp.training.optimizer import check_optimizers
from clnp.training.rng import derive, isolated, seed_all
from clnp.training.task import Task, TaskData

from .dense import DenseNet
from .method import Retraining, Setting, Strategy


class TaskStatistics:
    """The BatchNorm statistics of each ended task.

    Those of the open task are in the model, which resets them when the task begins. Without a
    model there are none.
    """

    def __init__(self, model: nn.Module | None) -> None:
        modules = {} if model is None else dict(model.named_modules())
        self._norms = {path: m for path, m in modules.items() if keeps_statistics(m)}
        self.learned: list[dict[str, Tensor]] = []

    def begin(self) -> None:
        """Reset the statistics in the model."""
        for norm in self._norms.values():
            norm.reset_running_stats()

    def end(self) -> None:
        """Store those of the open task."""
        self.learned.append({name: tensor.clone() for name, tensor in self._shown().items()})

    @contextmanager
    def running(self, index: int) -> Iterator[None]:
        """Run the model with those of the task at that index."""
        if index == len(self.learned):
            yield
            return
        before = self._shown()
        self._show(self.learned[index])
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

    def restore(self, learned: Any, *, device: Any) -> None:
        """Restore those of ended tasks."""
        self.learned = [{name: t.to(device) for name, t in each.items()} for each in learned]

    @property
    def num_bytes(self) -> int:
        """Bytes stored beside the network, which has those of one task."""
        return sum(tensor.nbytes for each in self.learned[1:] for tensor in each.values())


@dataclass(frozen=True)
class Scores:
    """The scores of an ended task, and the validation score of always naming one class."""

    score: float | None = None
    test_score: float | None = None
    guess: float | None = None


def record_of(
    task: Task, training: Training, scores: Scores, *, num_epochs: int, best: float | None
) -> TaskRecord:
    """Return the record of a task that was trained once, without pruning."""
    return TaskRecord(
        task=task.name,
        objective=objective_named(task.objective).name,
        candidates=(CandidateRecord(0.0, training.lr, num_epochs, best),),
        best_score=best,
        score=scores.score,
        test_score=scores.test_score,
        guess=scores.guess,
    )


def log_ended(setting: Setting, task: Task, scores: Scores) -> None:
    """Log that a task of a baseline has ended."""
    setting.on_event(
        TaskEnded(
            task=task.name,
            score=scores.score,
            test_score=scores.test_score,
            guess=scores.guess,
        )
    )


@contextmanager
def of_this_model() -> Iterator[None]:
    """Raise a `CheckpointError` if tensors cannot be loaded into the model."""
    try:
        yield
    except RuntimeError as error:
        raise CheckpointError(f"the run was started with another model: {error}") from error


def save_state(path: str | PathLike[str], graph: Graph, head: str, attached: Any) -> None:
    """Write a checkpoint with attached data and nothing else."""
    empty = Record(
        graph=graph,
        head=head,
        description=Description({}, {}),
        ledger=Ledger(graph.groups),
        certificates=(),
        num_outputs=(),
        open_task=None,
        open_free={},
        attached=attached,
    )
    checkpoint.write(path, empty, {})


def without_penalty(training: Training) -> Training:
    """Return the same training without an L1 penalty."""
    return replace(training, alpha=0.0)


class WholeNetwork:
    """A network with heads, and the progress of its training.

    `net.heads.current` is the index of the task that the network predicts for. `resumed` is the
    progress of an interrupted training, until it resumes.
    """

    net: Any

    def __init__(self, settings: Any, setting: Setting) -> None:
        self.setting = setting
        self.graph = discover(setting.model, setting.example_input, classifier=setting.classifier)
        self.training = without_penalty(settings.training or setting.config.training)
        self.resumed: FitState | None = None
        self._fit: Fit | None = None

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        weight: Tensor = next(self.net.model.parameters())
        return weight.device

    def num_epochs(self, task: str) -> int:
        """Return the epochs of a training, if it does not stop early."""
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
        fit = self._fit = Fit(self.net, data, training, seed=seed, rule=rule)
        if self.resumed is not None:
            fit.restore(self.resumed)
            self.resumed = None

        def log(epoch: Epoch) -> None:
            self.setting.log_epoch(data.task, epoch, num_epochs=training.epochs, round=round)

        best = fit.run(log)
        self._fit = None
        return best, len(fit.epochs)

    def run(self, inputs: Tensor, index: int) -> Any:
        """Return the outputs of the task at that index."""
        net = self.net
        current, training = net.heads.current, net.training
        net.heads.current = index
        net.eval()
        try:
            # An autograd graph that is still alive prevents the capture of later steps.
            with torch.no_grad():
                return net(inputs)
        finally:
            net.heads.current = current
            net.train(training)

    def progress(self) -> FitState | None:
        """Return the progress of the training, to restore as `resumed`; None between two."""
        return None if self._fit is None else self._fit.state()

    def verify(self) -> None:
        """Do nothing: a baseline has no guarantee."""

    def save(self, path: str | PathLike[str], *, attached: Any) -> None:
        """Write the attached data, which is complete, to a file."""
        save_state(path, self.graph, self.setting.head, attached)


def scores(predict: Callable[[Tensor, str], Any], data: TaskData) -> Scores:
    """Return the scores of an ended task on its validation and test data."""

    def outputs(inputs: Tensor) -> Any:
        return predict(inputs, data.task.name)

    test = None if data.test is None else evaluate(outputs, data.test, data.objective)
    score = evaluate(outputs, data.validation, data.objective)
    return Scores(score, test, guessing(data.objective, data.validation.targets))


class DenseMethod(WholeNetwork):
    """A `DenseNet` with the strategy of a baseline, new or restored from a saved state."""

    def __init__(self, settings: Any, setting: Setting, state: Mapping[str, Any] | None) -> None:
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
        self.statistics = TaskStatistics(self.net.model if self.strategy.own_statistics else None)
        self._trained: dict[str, Any] | None = None
        if state is not None:
            with of_this_model():
                self.net.restore(state["net"])
            self.statistics.restore(state["statistics"], device=self.device)
            self.strategy.restore(state["strategy"])
            self.resumed = state["progress"]
            self._trained = state.get("trained")

    def check(self, task: Task) -> None:
        """Raise an `ArgumentError` if it is already clear that the task does not fit."""
        check_optimizers([self.training], self.net.model)
        self.strategy.check(task)
        layer: Any = self.setting.model.get_submodule(self.graph.classifier)
        most = len(layer.weight)
        if self.setting.head == "single" and (task.num_outputs or 0) > most:
            raise ArgumentError(
                f"task {task.name!r} has {task.num_outputs} outputs, but the single head has "
                f"{most}. Give the last layer as many outputs as the largest task."
            )

    def answers(self, task: str) -> bool:
        """Whether the task has ended."""
        return task in self.net.tasks

    def num_candidates(self, task: str) -> int:
        """Return the number of candidates: one."""
        return 1

    def epochs_before(self, number: int) -> int:
        """Return the epochs of the first `number` tasks, if none of them stops early."""
        return number * self.training.epochs

    def learn(self, task: Task) -> TaskRecord:
        """Learn the task, or resume it, and return its record."""
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
            self._retrain(data, seed=trained["seed"])
            self._trained = None
            self.statistics.end()
            self.net.end_task()
            found = scores(self.predict, data)
        log_ended(self.setting, task, found)
        best, num_epochs = trained["best"], trained["num_epochs"]
        return record_of(task, self.training, found, num_epochs=num_epochs, best=best)

    def _train(self, index: int, data: TaskData) -> dict[str, Any]:
        """Train the open task; return its best score, its epochs and a seed for what follows."""
        name, rule = data.task.name, self.strategy.rule()
        check_returned(f"{type(self.strategy).__name__}.rule()", rule, StepRule)
        seed = derive(self.setting.seed, "candidate", name)
        best, num_epochs = self.train(data, self.training, seed=seed, rule=rule)
        # If `end` is repeated, it must draw the same random numbers.
        seed_all(derive(self.setting.seed, "end", name))
        self.strategy.end(index, data)
        after = int(torch.randint(2**62, (), device="cpu"))
        return {"best": best, "num_epochs": num_epochs, "seed": after}

    def _retrain(self, data: TaskData, *, seed: int) -> None:
        """Train the open task a second time, if the strategy has a second training."""
        again = self.strategy.retraining()
        if again is None:
            return
        check_returned(f"{type(self.strategy).__name__}.retraining()", again, Retraining)
        score, _ = self.train(data, again.training, seed=seed, rule=again.rule, round=0)
        self.setting.on_event(RoundEnded(task=data.task.name, round=0, score=score))

    def predict(self, inputs: Tensor, task: str) -> Any:
        """Return the outputs of an ended task."""
        index = self.net.tasks.index(task)
        with self.strategy.running(index), self.statistics.running(index):
            return self.run(inputs, index)

    def figures(self) -> NetworkRecord:
        """Return the bytes that are stored."""
        heads = self.net.heads
        own = 0 if heads.shared else sum(p.nbytes for p in heads.parameters())
        total = sum(tensor.nbytes for tensor in self.net.model.state_dict().values())
        stored = {"network": total - own, "heads": own, **self.strategy.stored_bytes()}
        if self.statistics.num_bytes:
            stored["statistics"] = self.statistics.num_bytes
        return NetworkRecord(stored_bytes=stored)

    def state(self) -> dict[str, Any]:
        """Return all state; `progress` is None between two tasks, `trained` before retraining."""
        return {
            "progress": self.progress(),
            "trained": self._trained,
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

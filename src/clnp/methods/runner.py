"""How a run learns, records and scores the tasks of a baseline, whatever the method."""

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
from clnp.training.optimizer import check_optimizer
from clnp.training.rng import derive, isolated, seed_all
from clnp.training.task import Task, TaskData

from .dense import DenseNet
from .method import Retraining, Setting, Strategy


class TaskStatistics:
    """The running means and variances with which each learnt task is answered.

    The open task has those in the model, which begin anew with it. Without a model there are none.
    """

    def __init__(self, model: nn.Module | None) -> None:
        modules = {} if model is None else dict(model.named_modules())
        self._norms = {path: m for path, m in modules.items() if keeps_statistics(m)}
        self.learnt: list[dict[str, Tensor]] = []

    def begin(self) -> None:
        """Forget those of the task before, which are kept."""
        for norm in self._norms.values():
            norm.reset_running_stats()

    def end(self) -> None:
        """Keep those of the open task."""
        self.learnt.append({name: tensor.clone() for name, tensor in self._shown().items()})

    @contextmanager
    def running(self, index: int) -> Iterator[None]:
        """The model with those of the task of that number."""
        if index == len(self.learnt):
            yield
            return
        before = self._shown()
        self._show(self.learnt[index])
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

    def restore(self, learnt: Any, *, device: Any) -> None:
        """Remember what was `learnt` before."""
        self.learnt = [{name: t.to(device) for name, t in each.items()} for each in learnt]

    @property
    def num_bytes(self) -> int:
        """What is stored beside the network, which has those of one task."""
        return sum(tensor.nbytes for each in self.learnt[1:] for tensor in each.values())


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
    """Tell of tensors that cannot be loaded into the model."""
    try:
        yield
    except RuntimeError as error:
        raise CheckpointError(f"the run was begun with another model: {error}") from error


def save_state(path: str | PathLike[str], graph: Graph, head: str, attached: Any) -> None:
    """Write a checkpoint that holds nothing but what is attached."""
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
    """The same training without an L1 penalty."""
    return replace(training, alpha=0.0)


class WholeNetwork:
    """A network with heads, its training, and how far that has come.

    `net` has `heads`, whose `current` is the number of the task that it runs as. What a training
    that broke off has to go on from is in `resumed`, until it does.
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
        """What it computes on."""
        weight: Tensor = next(self.net.model.parameters())
        return weight.device

    def num_epochs(self, task: str) -> int:
        """How many epochs it will be trained, if it does not stop early."""
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
        """Train from where it broke off; the validation score and the number of epochs.

        `round` is the number of a round of fine-tuning, if this is one.
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

    def run(self, inputs: Tensor, number: int) -> Any:
        """The outputs of the task of that number, from 0."""
        net = self.net
        current, training = net.heads.current, net.training
        net.heads.current = number
        net.eval()
        try:
            # A graph that somebody holds on to would be in the way of capturing later steps.
            with torch.no_grad():
                return net(inputs)
        finally:
            net.heads.current = current
            net.train(training)

    def progress(self) -> FitState | None:
        """What `resumed` has to be for a training to go on; None between two."""
        return None if self._fit is None else self._fit.state()

    def verify(self) -> None:
        """Nothing: a baseline promises nothing."""

    def save(self, path: str | PathLike[str], *, attached: Any) -> None:
        """Write what is attached, in which there is everything, to a file."""
        save_state(path, self.graph, self.setting.head, attached)


def scores(predict: Callable[[Tensor, str], Any], data: TaskData) -> Scores:
    """Return the scores of an ended task on its validation and test data."""

    def outputs(inputs: Tensor) -> Any:
        return predict(inputs, data.task.name)

    test = None if data.test is None else evaluate(outputs, data.test, data.objective)
    score = evaluate(outputs, data.validation, data.objective)
    return Scores(score, test, guessing(data.objective, data.validation.targets))


class DenseMethod(WholeNetwork):
    """A `DenseNet` and the strategy that protects it, from the start or from a saved state."""

    def __init__(self, settings: Any, setting: Setting, state: Mapping[str, Any] | None) -> None:
        super().__init__(settings, setting)
        self.net: DenseNet = DenseNet(
            setting.model,
            self.graph.classifier,
            shared_head=setting.head == "single",
            graph=self.graph,
            initialise=initialisation(self.training.initialisation),
        )
        # A strategy that trains once more finds out how in its settings.
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
        """Raise an `ArgumentError` if the task can be told not to fit."""
        check_optimizer(self.training, self.device)
        self.strategy.check(task)
        layer: Any = self.setting.model.get_submodule(self.graph.classifier)
        most = len(layer.weight)
        if self.setting.head == "single" and (task.num_outputs or 0) > most:
            raise ArgumentError(
                f"task {task.name!r} has {task.num_outputs} outputs, the single head {most}"
            )

    def answers(self, task: str) -> bool:
        """Whether the task has been learnt."""
        return task in self.net.tasks

    def num_candidates(self, task: str) -> int:
        """How often the task will be trained: once."""
        return 1

    def epochs_before(self, number: int) -> int:
        """The epochs of all tasks before that number, if none of them stops early."""
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
                # What it draws shall not depend on what came before the task.
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
        """Train the open task; what that came to, and a seed for what follows."""
        name, rule = data.task.name, self.strategy.rule()
        check_returned(f"{type(self.strategy).__name__}.rule()", rule, StepRule)
        seed = derive(self.setting.seed, "candidate", name)
        best, num_epochs = self.train(data, self.training, seed=seed, rule=rule)
        # A repeated end draws the same.
        seed_all(derive(self.setting.seed, "end", name))
        self.strategy.end(index, data)
        after = int(torch.randint(2**62, (), device="cpu"))
        return {"best": best, "num_epochs": num_epochs, "seed": after}

    def _retrain(self, data: TaskData, *, seed: int) -> None:
        """Train the open task once more, if the strategy asks for it: a round of fine-tuning."""
        again = self.strategy.retraining()
        if again is None:
            return
        check_returned(f"{type(self.strategy).__name__}.retraining()", again, Retraining)
        score, _ = self.train(data, again.training, seed=seed, rule=again.rule, round=0)
        self.setting.on_event(RoundEnded(task=data.task.name, round=0, score=score))

    def predict(self, inputs: Tensor, task: str) -> Any:
        """The outputs of a task that has been learnt."""
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
        """All of it; `progress` is None between two tasks, `trained` unless it is retraining."""
        return {
            "progress": self.progress(),
            "trained": self._trained,
            "net": self.net.state(),
            "statistics": self.statistics.learnt,
            "strategy": self.strategy.state(),
        }


def check_returned(call: str, found: object, kind: type) -> None:
    """Raise an `ArgumentError` unless the call, of a method of a user's own, returns that."""
    if not isinstance(found, kind):
        what = "nothing" if found is None else f"an object of type {type(found).__name__}"
        raise ArgumentError(
            f"baseline: {call} returns {what}; it must return a {kind.__name__} of "
            "clnp.methods.method",
            argument="baseline",
        )

"""A baseline, as a run carries it out."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from ..discovery import discover
from ..errors import ArgumentError
from ..fit import Epoch, Fit, evaluate
from ..generators import isolated, seed_all
from ..initialisation import initialisation
from ..method import Setting
from ..seeds import derive
from ..task import Task, TaskData
from ..training import check_optimizer
from .dense import DenseNet
from .record import NO_NEURONS, outcome, save_state, without_penalty
from .strategy import Strategy


class DenseMethod:
    """A `DenseNet` and the strategy that protects it, from the start or from a saved state."""

    def __init__(self, settings: Any, setting: Setting, state: Mapping[str, Any] | None) -> None:
        self.setting = setting
        self.graph = discover(setting.model, setting.example_input, classifier=setting.classifier)
        shared = setting.head == "single"
        graph, model = self.graph, setting.model
        self.training = without_penalty(settings.training or setting.config.training)
        self.net = DenseNet(
            model,
            graph.classifier,
            shared_head=shared,
            graph=graph,
            initialise=initialisation(self.training.initialisation),
        )
        # A strategy that trains once more finds out how in its settings.
        self.strategy: Strategy = replace(settings, training=self.training).strategy(self.net)
        self._fit: Fit | None = None
        self._resumed: Mapping[str, Any] | None = None
        if state is not None:
            self.net.restore(state["net"])
            self.strategy.restore(state["strategy"])
            self._resumed = state["progress"]

    @property
    def device(self) -> torch.device:
        """What it computes on."""
        return self.net.device

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

    def num_epochs(self, task: str) -> int:
        """How many epochs it will be trained, if it does not stop early."""
        return self.training.epochs

    def epochs_before(self, number: int) -> int:
        """The epochs of all tasks before that number, if none of them stops early."""
        return number * self.training.epochs

    def learn(self, task: Task) -> dict[str, Any]:
        """Learn the task, from where it broke off; what a result says about it."""
        with isolated(self.device):
            data = self.setting.load(task, self.device)
            index = len(self.net.tasks)
            resumed, self._resumed = self._resumed, None
            if resumed is None:
                seed_all(derive(self.setting.seed, "init", task.name))
                if index == 0:
                    self.net.reset()
                self.net.begin_task(task.name, data.num_outputs)
                # What it draws shall not depend on what came before the task.
                seed_all(derive(self.setting.seed, "begin", task.name))
                self.strategy.begin(index)
            seed = derive(self.setting.seed, "candidate", task.name)
            rule = self.strategy.rule()
            self._fit = Fit(self.net, data, self.training, seed=seed, rule=rule)
            if resumed is not None:
                self._fit.restore(resumed)
            best = self._fit.run(self._teller(task))
            num_epochs = len(self._fit.epochs)
            self._fit = None
            seed_all(derive(self.setting.seed, "end", task.name))
            self.strategy.end(index, data)
            self.net.end_task()
            scores = self._scores(data)
        self.setting.on_event({"event": "task", "task": task.name, "new": {}, **scores})
        return outcome(task, self.training, num_epochs=num_epochs, best=best, **scores)

    def _teller(self, task: Task) -> Callable[[Epoch], None]:
        num_epochs = self.training.epochs
        return lambda epoch: self.setting.tell_epoch(task, epoch, num_epochs=num_epochs)

    def _scores(self, data: TaskData) -> dict[str, float | None]:
        def predict(inputs: Tensor) -> Any:
            return self.predict(inputs, data.task.name)

        test = None if data.test is None else evaluate(predict, data.test, data.objective)
        return {"score": evaluate(predict, data.validation, data.objective), "test_score": test}

    def predict(self, inputs: Tensor, task: str) -> Any:
        """The outputs of a task that has been learnt."""
        index, net = self.net.tasks.index(task), self.net
        current, training = net.heads.current, net.training
        net.heads.current = index
        net.eval()
        try:
            # A graph that somebody holds on to would be in the way of capturing later steps.
            with torch.no_grad(), self.strategy.running(index):
                return net(inputs)
        finally:
            net.heads.current = current
            net.train(training)

    def figures(self) -> dict[str, Any]:
        """What a result says about the network: no neurons are claimed, but something is stored."""
        heads = self.net.heads
        own = 0 if heads.shared else sum(p.nbytes for p in heads.parameters())
        total = sum(tensor.nbytes for tensor in self.net.model.state_dict().values())
        return {
            **NO_NEURONS,
            "stored_bytes": {
                "network": total - own,
                "heads": own,
                **self.strategy.stored_bytes(),
            },
        }

    def verify(self) -> None:
        """Nothing: a baseline promises nothing."""

    def state(self) -> dict[str, Any]:
        """All of it; `progress` is None between two tasks."""
        fit = self._fit
        return {
            "progress": None if fit is None else fit.state(),
            "net": self.net.state(),
            "strategy": self.strategy.state(),
        }

    def save(self, path: str | PathLike[str], *, attached: Any) -> None:
        """Write what is attached, in which there is everything, to a file."""
        save_state(path, self.graph, self.setting.head, attached)

"""A baseline, as a run carries it out."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..generators import isolated, seed_all
from ..initialisation import initialisation
from ..method import Setting
from ..seeds import derive
from ..task import Task, TaskData
from ..training import check_optimizer
from .dense import DenseNet
from .record import NO_NEURONS, of_this_model, outcome
from .statistics import TaskStatistics
from .strategy import Retraining, StepRule, Strategy
from .whole import WholeNetwork, scores


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

    def learn(self, task: Task) -> dict[str, Any]:
        """Learn the task, from where it broke off; what a result says about it."""
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
        self.setting.on_event({"event": "task", "task": task.name, "new": {}, **found})
        best, num_epochs = trained["best"], trained["num_epochs"]
        return outcome(task, self.training, num_epochs=num_epochs, best=best, **found)

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
        told = {"round": 0, "score": score, "kept": True}
        self.setting.on_event({"event": "round", "task": data.task.name, **told})

    def predict(self, inputs: Tensor, task: str) -> Any:
        """The outputs of a task that has been learnt."""
        index = self.net.tasks.index(task)
        with self.strategy.running(index), self.statistics.running(index):
            return self.run(inputs, index)

    def figures(self) -> dict[str, Any]:
        """What a result says about the network: no neurons are claimed, but something is stored."""
        heads = self.net.heads
        own = 0 if heads.shared else sum(p.nbytes for p in heads.parameters())
        total = sum(tensor.nbytes for tensor in self.net.model.state_dict().values())
        stored = {"network": total - own, "heads": own, **self.strategy.stored_bytes()}
        if self.statistics.num_bytes:
            stored["statistics"] = self.statistics.num_bytes
        return {**NO_NEURONS, "stored_bytes": stored}

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
            "clnp.baselines.strategy",
            argument="baseline",
        )

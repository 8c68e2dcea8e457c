"""A baseline that trains the whole of a network: what a run does with it, whatever the method."""

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from ..discovery import discover
from ..fit import Epoch, Fit, evaluate
from ..method import Setting
from ..objective import guessing
from ..task import TaskData
from ..trainable import StepRule
from ..training import Training
from .record import save_state, without_penalty


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
        self.resumed: Mapping[str, Any] | None = None
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

        def tell(epoch: Epoch) -> None:
            self.setting.tell_epoch(data.task, epoch, num_epochs=training.epochs, round=round)

        best = fit.run(tell)
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

    def progress(self) -> dict[str, Any] | None:
        """What `resumed` has to be for a training to go on; None between two."""
        return None if self._fit is None else self._fit.state()

    def verify(self) -> None:
        """Nothing: a baseline promises nothing."""

    def save(self, path: str | PathLike[str], *, attached: Any) -> None:
        """Write what is attached, in which there is everything, to a file."""
        save_state(path, self.graph, self.setting.head, attached)


def scores(predict: Callable[[Tensor, str], Any], data: TaskData) -> dict[str, float | None]:
    """What a learnt task scores on its validation and test data, and would by one class alone."""

    def outputs(inputs: Tensor) -> Any:
        return predict(inputs, data.task.name)

    test = None if data.test is None else evaluate(outputs, data.test, data.objective)
    score = evaluate(outputs, data.validation, data.objective)
    guess = guessing(data.objective, data.validation.targets)
    return {"score": score, "test_score": test, "guess": guess}

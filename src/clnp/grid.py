"""Candidates of a grid trained at the same time, each in a copy of the network."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

from .errors import DivergedError
from .fit import Epoch, Fit, l1_rule
from .lanes import Lane, run_together
from .net import ContinualNet
from .progress import Candidate
from .task import TaskData
from .training import Training

Score = Callable[[Callable[..., Any]], float]


def train_at_once(
    net: ContinualNet,
    data: TaskData,
    trainings: Sequence[Training],
    *,
    seeds: Sequence[int],
    begin: Callable[[ContinualNet, int], None],
    score: Score,
    on_epoch: Callable[[int, Epoch], None],
) -> list[Candidate]:
    """What each training comes to, as if it had been alone; the network itself stays as it is.

    `begin` opens the task in a copy, with a seed. `on_epoch` is told of the place of the training
    among them and of its epoch.
    """
    lanes = [Lane(net.device) for _ in trainings]
    nets, fits = [], []
    for lane, training, seed in zip(lanes, trainings, seeds, strict=True):
        with lane.entered():
            own = copy.deepcopy(net)
            begin(own, seed)
            rule = l1_rule(own, training.alpha)
            fits.append(Fit(own, data, training, seed=seed, rule=rule))
            nets.append(own)
    errors = run_together(fits, lanes, on_epoch)
    return [
        judged(own, fit, score, error) for own, fit, error in zip(nets, fits, errors, strict=True)
    ]


def judged(net: ContinualNet, fit: Fit, score: Score, error: DivergedError | None) -> Candidate:
    """What there is to know about a candidate that has been trained, or has diverged."""
    training, num_epochs = fit.training, len(fit.epochs)
    if error is None:
        try:
            reached = net.unpruned_score(score)
            state = net.open_state()
            return Candidate(training.alpha, training.lr, num_epochs, reached, None, state)
        except DivergedError as found:
            error = found
    return Candidate(training.alpha, training.lr, num_epochs, None, str(error))

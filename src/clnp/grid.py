"""Candidates of a grid trained at the same time, each in a copy of the network."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .errors import DivergedError
from .fit import Epoch, Fit, l1_rule
from .lanes import Lane, run_together
from .net import ContinualNet
from .openstate import OpenState
from .progress import Candidate, Group, Progress
from .task import TaskData
from .training import Training

Judge = Callable[[ContinualNet], float]
"""The score of a network's open task, with all of its neurons."""


def train_at_once(
    net: ContinualNet,
    data: TaskData,
    trainings: Sequence[Training],
    progress: Progress,
    *,
    seeds: Sequence[int],
    begin: Callable[[ContinualNet, int], None],
    judge: Judge,
    on_epoch: Callable[[int, Epoch], None],
    on_round: Callable[[], None],
) -> list[Candidate]:
    """What each training comes to, as if it had been alone; the network itself stays as it is.

    `begin` opens the task in a copy, with a seed. `on_epoch` is told of the place of the training
    among them and of its epoch; `on_round` is called whenever all of them could be saved.
    """
    lanes = [Lane(net.device) for _ in trainings]
    progress.group = group = Group()
    resumed: Sequence[Mapping[str, Any] | None] = progress.resumed_group
    states = resumed or [None] * len(trainings)
    for lane, training, seed, state in zip(lanes, trainings, seeds, states, strict=True):
        with lane.entered():
            own = copy.deepcopy(net)
            begin(own, seed)
            if state is not None:
                own.set_open_state(OpenState.from_state(state["open"]))
            fit = Fit(own, data, training, seed=seed, rule=l1_rule(own, training.alpha))
            error = None
            if state is not None:
                fit.restore(state["fit"])
                error = DivergedError(state["error"]) if state["error"] else None
            group.nets.append(own)
            group.fits.append(fit)
            group.errors.append(error)
    progress.resumed_group = []
    run_together(group.fits, lanes, group.errors, on_epoch=on_epoch, on_round=on_round)
    progress.group = None
    return [
        judged(own, fit, judge, error)
        for own, fit, error in zip(group.nets, group.fits, group.errors, strict=True)
    ]


def judged(net: ContinualNet, fit: Fit, judge: Judge, error: DivergedError | None) -> Candidate:
    """What there is to know about a candidate that has been trained, or has diverged."""
    training, num_epochs = fit.training, len(fit.epochs)
    if error is None:
        try:
            reached = judge(net)
            state = net.open_state()
            return Candidate(training.alpha, training.lr, num_epochs, reached, None, state)
        except DivergedError as found:
            error = found
    return Candidate(training.alpha, training.lr, num_epochs, None, str(error))

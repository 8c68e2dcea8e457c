"""Several candidates of the grid trained at the same time on one device.

On a GPU each has a lane: a stream for its kernels and a generator for its random numbers. An epoch
of every one is queued before the first is waited for. Each draws and computes what it would alone.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from clnp.core.net import ContinualNet
from clnp.core.record import OpenState
from clnp.errors import DivergedError
from clnp.training.config import Training
from clnp.training.fit import Epoch, Fit, l1_rule
from clnp.training.rng import default_generator
from clnp.training.task import TaskData

from .progress import Candidate, Group, Progress

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


class Lane:
    """A stream and a generator of its own on a GPU; on a CPU, nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._generator = torch.Generator(device).graphsafe_get_state()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """What runs inside is queued in the lane, after all that has been queued outside so far."""
        if self._device.type != "cuda":
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        generator = default_generator(self._device)
        # Captured steps find the seed where it was when they were captured.
        outside = generator.graphsafe_get_state()
        generator.graphsafe_set_state(self._generator)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            generator.graphsafe_set_state(outside)

    def leave(self) -> None:
        """Let what is queued outside from now on come after all that is in the lane."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).wait_stream(self._stream)


def run_together(
    fits: Sequence[Fit],
    lanes: Sequence[Lane],
    errors: list[DivergedError | None],
    *,
    on_epoch: Callable[[int, Epoch], None],
    on_round: Callable[[], None] = lambda: None,
) -> None:
    """Train all of them to the end, each in its lane; `errors` gets those of fits that diverge.

    `on_epoch` is told of the number of the fit and of its epoch, `on_round` when no fit is inside
    of one.
    """
    while running := [
        place for place, fit in enumerate(fits) if errors[place] is None and not fit.finished
    ]:
        for place in running:
            with lanes[place].entered():
                fits[place].begin_epoch()
        for place in running:
            try:
                with lanes[place].entered():
                    epoch = fits[place].end_epoch()
            except DivergedError as error:
                errors[place] = error
            else:
                on_epoch(place, epoch)
        on_round()
    for place, fit in enumerate(fits):
        if errors[place] is None:
            with lanes[place].entered():
                fit.settle()
        lanes[place].leave()

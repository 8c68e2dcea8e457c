"""Candidates of the grid, several of which may be trained at the same time on one device.

On a GPU, each has a lane: a stream for its kernels and a generator for its random numbers. An epoch
of each is queued before the first is waited for. Each draws and computes what it would alone.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import torch

from clnp.core.net import ContinualNet
from clnp.core.record import OpenState
from clnp.errors import DivergedError
from clnp.training.config import Alpha, Training
from clnp.training.fit import Epoch, Fit, FitState, l1_rule
from clnp.training.rng import default_generator
from clnp.training.task import TaskData


@dataclass(frozen=True)
class Candidate:
    """A point of the grid after training; `state` is kept as long as it may still be chosen."""

    alpha: Alpha
    lr: float
    num_epochs: int
    score: float | None
    diverged: str | None = None
    state: OpenState | None = field(default=None, repr=False)


def candidate_of(
    net: ContinualNet,
    fit: Fit,
    score: Callable[[ContinualNet], float],
    error: DivergedError | None,
) -> Candidate:
    """Return the candidate that was trained in `net`, scored with all of its neurons."""
    training, num_epochs = fit.training, len(fit.epochs)
    if error is None:
        try:
            found = score(net)
            state = net.open_state()
            return Candidate(training.alpha, training.lr, num_epochs, found, None, state)
        except DivergedError as diverged:
            error = diverged
    return Candidate(training.alpha, training.lr, num_epochs, None, str(error))


class LaneState(TypedDict):
    """All that a lane resumes from, between two epochs."""

    open: dict[str, Any]
    fit: FitState
    error: str | None


class Lane:
    """A fit in a copy of the network; on a GPU, with its own stream and generator.

    `begin` opens the task in the copy, with a seed. `error` is set if the fit diverges.
    """

    def __init__(
        self,
        net: ContinualNet,
        data: TaskData,
        training: Training,
        *,
        seed: int,
        begin: Callable[[ContinualNet, int], None],
        state: LaneState | None = None,
    ) -> None:
        self._device = net.device
        if self._device.type == "cuda":
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            self._generator = torch.Generator(self._device).graphsafe_get_state()
        self.error: DivergedError | None = None
        with self.entered():
            self.net = copy.deepcopy(net)
            begin(self.net, seed)
            if state is not None:
                self.net.set_open_state(OpenState.from_state(state["open"]))
            rule = l1_rule(self.net, training.alpha)
            self.fit = Fit(self.net, data, training, seed=seed, rule=rule)
            if state is not None:
                self.fit.restore(state["fit"])
                self.error = DivergedError(state["error"]) if state["error"] else None

    def state(self) -> LaneState:
        """Return all that a lane resumes from."""
        return {
            "open": self.net.open_state().to_state(),
            "fit": self.fit.state(),
            "error": None if self.error is None else str(self.error),
        }

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Queue the block in the lane, after all that has been queued outside."""
        if self._device.type != "cuda":
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        generator = default_generator(self._device)
        # A captured step finds its seed where it was at the capture.
        outside = generator.graphsafe_get_state()
        generator.graphsafe_set_state(self._generator)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            generator.graphsafe_set_state(outside)

    def leave(self) -> None:
        """Let all that is queued outside from now on wait for the lane."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).wait_stream(self._stream)


def train_together(
    lanes: Sequence[Lane],
    *,
    on_epoch: Callable[[int, Epoch], None],
    on_round: Callable[[], None],
) -> None:
    """Train all lanes to the end.

    `on_epoch` gets the index of the lane and the epoch; `on_round` is called when no lane is inside
    an epoch.
    """
    while running := [
        (index, lane)
        for index, lane in enumerate(lanes)
        if lane.error is None and not lane.fit.finished
    ]:
        for _, lane in running:
            with lane.entered():
                lane.fit.begin_epoch()
        for index, lane in running:
            try:
                with lane.entered():
                    epoch = lane.fit.end_epoch()
            except DivergedError as error:
                lane.error = error
            else:
                on_epoch(index, epoch)
        on_round()
    for lane in lanes:
        if lane.error is None:
            with lane.entered():
                lane.fit.settle()
        lane.leave()

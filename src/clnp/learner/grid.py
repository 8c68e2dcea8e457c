"""Fits of a task, several of which may run at the same time on one device.

On a GPU, each of several has a stream for its kernels and a generator for its random numbers. An
epoch of each is queued before the first is waited for. Each draws and computes what it would alone.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypedDict

import torch

from clnp.core.net import ContinualNet
from clnp.core.record import OpenState
from clnp.errors import DivergedError
from clnp.records import CandidateRecord
from clnp.training.config import Training
from clnp.training.fit import Epoch, Fit, FitState, l1_rule
from clnp.training.rng import default_generator
from clnp.training.task import TaskData


class LaneState(TypedDict):
    """All that a lane resumes from, between two epochs; `open` is None if the network has it."""

    open: dict[str, Any] | None
    fit: FitState
    error: str | None


class Lane:
    """A fit in the open task of a network, or in a copy of the network.

    With `begin`, which opens the task in the copy, it is a copy; on a GPU, with its own stream and
    generator. `error` is set if the fit diverges.
    """

    def __init__(
        self,
        net: ContinualNet,
        data: TaskData,
        training: Training,
        *,
        seed: int,
        begin: Callable[[ContinualNet], None] | None = None,
        state: LaneState | None = None,
    ) -> None:
        self._device, self._is_copy = net.device, begin is not None
        self._has_stream = self._is_copy and self._device.type == "cuda"
        if self._has_stream:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            self._generator = torch.Generator(self._device).graphsafe_get_state()
        self.error: DivergedError | None = None
        with self.entered():
            self.net = net if begin is None else copy.deepcopy(net)
            if begin is not None:
                begin(self.net)
            if state is not None and state["open"] is not None:
                self.net.set_open_state(OpenState.from_state(state["open"]))
            rule = l1_rule(self.net, training.alpha)
            self.fit = Fit(self.net, data, training, seed=seed, rule=rule)
            if state is not None:
                self.fit.restore(state["fit"])
                self.error = DivergedError(state["error"]) if state["error"] else None

    def state(self) -> LaneState:
        """Return all that a lane resumes from."""
        return {
            "open": self.net.open_state().to_state() if self._is_copy else None,
            "fit": self.fit.state(),
            "error": None if self.error is None else str(self.error),
        }

    def score(self, score: Callable[[ContinualNet], float]) -> float | None:
        """Return the score of the trained network; None, with `error`, if that diverged."""
        try:
            return score(self.net) if self.error is None else None
        except DivergedError as error:
            self.error = error
            return None

    def record(self, score: Callable[[ContinualNet], float]) -> CandidateRecord:
        """Return the record of the candidate that was trained, scored with all of its neurons."""
        training, found = self.fit.training, self.score(score)
        diverged = None if self.error is None else str(self.error)
        num_epochs = len(self.fit.epochs)
        return CandidateRecord(training.alpha, training.lr, num_epochs, found, diverged)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Queue the block in the lane, after all that has been queued outside."""
        if not self._has_stream:
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
        if self._has_stream:
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

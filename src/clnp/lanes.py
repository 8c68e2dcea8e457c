"""Several trainings at the same time on one device: a small network leaves a GPU idle.

On a GPU each has a lane: a stream for its kernels and a generator for its random numbers. An epoch
of every one is queued before the first is waited for. Each draws and computes what it would alone.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from .errors import DivergedError
from .fit import Epoch, Fit
from .generators import default_generator


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

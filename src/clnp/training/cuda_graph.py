"""A training step captured as a CUDA graph, and replayed without any Python in between."""

import contextlib
import functools
import gc
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .rng import default_generator

WARM_UP = 3
"""Steps that run before one is captured, for libraries to allocate what they need."""


class CapturedStep:
    """`step(places)` for batches of one size, captured when it has run a few times.

    The steps before that, and those on batches of another size, are run as they are: each call
    does one step in any case. What `step` reads and writes must stay where it is; what it does in
    Python is done once. A step that cannot be captured, because it reads a value on the host for
    example, is run as it is from then on, with a warning.
    """

    def __init__(self, step: Callable[[Tensor], None], size: int, device: torch.device) -> None:
        self._step = step
        self._places = torch.zeros(size, dtype=torch.long, device=device)
        self._num_warm = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._refused = False

    def __call__(self, places: Tensor) -> None:
        if len(places) != len(self._places) or self._refused:
            self._step(places)
            return
        if self._num_warm < WARM_UP:
            self._num_warm += 1
            self._step_aside(places)
            return
        if self._graph is None:
            self._graph = self._captured()
            if self._graph is None:
                self._refused = True
                self._step(places)
                return
        self._places.copy_(places)
        self._graph.replay()

    def _captured(self) -> torch.cuda.CUDAGraph | None:
        """The step as a graph, which has not run yet; None if it cannot be captured."""
        state = torch.cuda.get_rng_state(self._places.device)
        graph = torch.cuda.CUDAGraph()
        try:
            # Left to itself, a capture that fails does not put the current stream back.
            with (
                _without_collections(),
                torch.cuda.stream(torch.cuda.current_stream()),
                torch.cuda.graph(graph, stream=_side_stream()),
            ):
                self._step(self._places)
        except RuntimeError as error:
            _renew_generator(self._places.device, state)
            reason = str(error).partition("\n")[0]
            warnings.warn(
                f"training steps cannot be captured, and run without cuda_graph: {reason}",
                stacklevel=2,
            )
            return None
        return graph

    def _step_aside(self, places: Tensor) -> None:
        """A step on the stream on which it will be captured, as that needs it."""
        stream = _side_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step(places)
        torch.cuda.current_stream().wait_stream(stream)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Let nothing be collected inside: a graph that is, in the middle of a capture, breaks it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _side_stream() -> torch.cuda.Stream:
    """The current stream; in place of the default one, which cannot be captured, another one.

    What is replayed at the same time must have been captured on different streams: kernels of one
    stream share the memory in which they wait for one another.
    """
    current: torch.cuda.Stream = torch.cuda.current_stream()
    is_default = current == torch.cuda.default_stream(current.device)
    return _aside(current.device_index) if is_default else current


@functools.cache
def _aside(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _renew_generator(device: torch.device, state: Tensor) -> None:
    """Let the device's generator go on from the state, with nothing left of a capture."""
    fresh = torch.Generator(device)
    fresh.set_state(state)
    default_generator(device).graphsafe_set_state(fresh.graphsafe_get_state())

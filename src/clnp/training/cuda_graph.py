"""A training step captured as a CUDA graph, and replayed without Python."""

import contextlib
import functools
import gc
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .rng import default_generator

WARM_UP = 3
"""Steps to run before the capture, in which libraries allocate memory."""


class CapturedStep:
    """`step(indices)` for batches of `size` samples, captured after a few steps.

    Each call takes exactly one step; those before the capture, and those of other sizes, run as
    they are. The tensors that a step reads and writes must stay where they are, and its Python code
    runs only once. If a step cannot be captured, for example because it reads a value on the host,
    all of them run as they are, with a warning.
    """

    def __init__(self, step: Callable[[Tensor], None], size: int, device: torch.device) -> None:
        self._step = step
        self._indices = torch.zeros(size, dtype=torch.long, device=device)
        self._num_warm = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._refused = False

    def __call__(self, indices: Tensor) -> None:
        if len(indices) != len(self._indices) or self._refused:
            self._step(indices)
            return
        if self._num_warm < WARM_UP:
            self._num_warm += 1
            self._step_aside(indices)
            return
        if self._graph is None:
            self._graph = self._captured()
            if self._graph is None:
                self._refused = True
                self._step(indices)
                return
        self._indices.copy_(indices)
        self._graph.replay()

    def _captured(self) -> torch.cuda.CUDAGraph | None:
        """Return the step as a graph that has not run yet; None if it cannot be captured."""
        state = torch.cuda.get_rng_state(self._indices.device)
        graph = torch.cuda.CUDAGraph()
        try:
            # By itself, a capture that fails does not restore the current stream.
            with (
                _without_collections(),
                torch.cuda.stream(torch.cuda.current_stream()),
                torch.cuda.graph(graph, stream=_side_stream()),
            ):
                self._step(self._indices)
        except RuntimeError as error:
            _renew_generator(self._indices.device, state)
            reason = str(error).partition("\n")[0]
            warnings.warn(
                f"training steps cannot be captured, and run without cuda_graph: {reason}",
                stacklevel=2,
            )
            return None
        return graph

    def _step_aside(self, indices: Tensor) -> None:
        """Take a step on the stream of the capture, which needs that."""
        stream = _side_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step(indices)
        torch.cuda.current_stream().wait_stream(stream)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Disable garbage collection: collecting a graph would break a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _side_stream() -> torch.cuda.Stream:
    """Return the current stream, or another one for the default stream, which is not captured.

    Graphs that are replayed at the same time need different streams: the kernels of one stream
    share the memory in which they wait for one another.
    """
    current: torch.cuda.Stream = torch.cuda.current_stream()
    is_default = current == torch.cuda.default_stream(current.device)
    return _aside(current.device_index) if is_default else current


@functools.cache
def _aside(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _renew_generator(device: torch.device, state: Tensor) -> None:
    """Set the state of the device's generator, and remove what a capture left in it."""
    fresh = torch.Generator(device)
    fresh.set_state(state)
    default_generator(device).graphsafe_set_state(fresh.graphsafe_get_state())

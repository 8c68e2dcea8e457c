"""A training step captured as a CUDA graph, and replayed without any Python in between."""

from collections.abc import Callable

import torch
from torch import Tensor

WARM_UP = 3
"""Steps that run before one is captured, for libraries to allocate what they need."""


class CapturedStep:
    """`step(places)` for batches of one size, captured when it has run a few times.

    The steps before that, and those on batches of another size, are run as they are: each call
    does one step in any case. What `step` reads and writes must stay where it is; what it does in
    Python is done once.
    """

    def __init__(self, step: Callable[[Tensor], None], size: int, device: torch.device) -> None:
        self._step = step
        self._places = torch.zeros(size, dtype=torch.long, device=device)
        self._num_warm = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, places: Tensor) -> None:
        if len(places) != len(self._places):
            self._step(places)
            return
        if self._num_warm < WARM_UP:
            self._num_warm += 1
            self._step_aside(places)
            return
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._step(self._places)
        self._places.copy_(places)
        self._graph.replay()

    def _step_aside(self, places: Tensor) -> None:
        """A step on a stream of its own, as capturing needs it."""
        stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step(places)
        torch.cuda.current_stream().wait_stream(stream)

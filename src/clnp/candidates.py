"""The open task with only some of its neurons, in one way after another."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .axis import STAND_IN, View, as_index, groups_of
from .blocks import Tensors
from .body import Body
from .errors import TaskError
from .heads import Head
from .layers import PrefixLayer
from .surgery import CONVOLUTIONS

ALIGNED = {"cuda": 8}
"""What widths of convolutions are rounded up to multiples of, on devices where that pays.

cuDNN prepares itself for every new shape, which takes longer than to run it a few times.
"""


class Candidates:
    """Scores the open task with some of its neurons; its weights must stay as they are.

    A layer that keeps the neurons that it had the last time is not laid out anew. Dead neurons
    round the widths of convolutions up to multiples of `aligned`.
    """

    def __init__(self, body: Body, *, aligned: int | None = None) -> None:
        self._body = body
        self._multiple = aligned or ALIGNED.get(body.head.like.device.type, 1)
        convolutions = (part for part in body.parts.values() if isinstance(part, CONVOLUTIONS))
        self._to_align = set().union(*map(_groups, convolutions))
        self._laid_out: dict[str, tuple[tuple[tuple[int, ...], ...], Tensors]] = {}

    def score(self, score: Callable[..., float], keep: View) -> float:
        """What `score` says of the open task with only the neurons `keep`."""
        body, over = self._body, False

        def predict(*args: Any, **kwargs: Any) -> Any:
            if over:
                raise TaskError("predict is for the call of score that it was handed to")
            with body.lock:
                if body.stage.showing is not keep:  # An ended task may have run in between.
                    self._show(keep)
                return body.run_shown(args, kwargs)

        try:
            with torch.no_grad():
                return score(predict)
        finally:
            over = True

    def _show(self, keep: View) -> None:
        """Lay out the open task for the plain pass, as it would be with only the neurons `keep`."""
        body = self._body
        before = body.stage.frozen
        after = {group: before[group] + len(keep[group]) for group in before}
        view = self._aligned(body.view(before, after))
        neurons = {group: as_index(kept) for group, kept in keep.items()}
        shown = {}
        for path, part in body.parts.items():
            kept = tuple(tuple(keep[group]) for group in _groups(part))
            if path not in self._laid_out or self._laid_out[path][0] != kept:
                self._laid_out[path] = kept, part.as_candidate(neurons, before, after, view)
            shown[path] = self._laid_out[path][1]
        body.show(shown, keep)

    def _aligned(self, view: View) -> View:
        """The view with stand-ins, until the width of every group is a multiple."""
        aligned = dict(view)
        for group in self._to_align:
            missing = np.full(-len(view[group]) % self._multiple, STAND_IN)
            if len(missing):
                aligned[group] = np.concatenate([as_index(view[group]), missing])
        return aligned


def _groups(part: PrefixLayer | Head) -> list[str]:
    """The groups that the layer reads or makes, each once."""
    return list(dict.fromkeys(groups_of(part.site.rows) + groups_of(part.site.columns)))

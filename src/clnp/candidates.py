"""The open task with only some of its neurons, in one way after another."""

from collections.abc import Callable
from typing import Any

import torch

from .axis import STAND_IN, View, groups_of
from .blocks import Tensors
from .body import Body
from .errors import TaskError

ALIGNED = {"cuda": 8}
"""What widths are rounded up to multiples of, on devices where that pays."""


class Candidates:
    """Scores the open task with some of its neurons; its weights must stay as they are.

    A layer that keeps the neurons that it had the last time is not laid out anew. On a GPU, whose
    libraries prepare themselves for every new shape for longer than they run it, dead neurons round
    widths up to multiples of `aligned`.
    """

    def __init__(self, body: Body, *, aligned: int | None = None) -> None:
        self._body = body
        self._multiple = aligned or ALIGNED.get(body.head.like.device.type, 1)
        self._laid_out: dict[str, tuple[View, Tensors]] = {}

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
        shown = {}
        for path, part in body.parts.items():
            groups = {*groups_of(part.site.rows), *groups_of(part.site.columns)}
            kept = {group: tuple(keep[group]) for group in groups}
            if path not in self._laid_out or self._laid_out[path][0] != kept:
                self._laid_out[path] = kept, part.as_candidate(keep, before, after, view)
            shown[path] = self._laid_out[path][1]
        body.show(shown, keep)

    def _aligned(self, view: View) -> View:
        """The view with stand-ins, until the width of every group is a multiple."""
        num_missing = {group: -len(neurons) % self._multiple for group, neurons in view.items()}
        return {group: [*view[group], *[STAND_IN] * num_missing[group]] for group in view}

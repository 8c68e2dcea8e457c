"""The open task with only some of its neurons, in one way after another, to be scored."""

from collections.abc import Callable, Iterable
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
import torch

from clnp.core.layers.body import Body
from clnp.core.layers.head import Head
from clnp.core.layers.layer import PrefixLayer
from clnp.core.layers.stage import Averaging, Tensors
from clnp.core.structure.axis import STAND_IN, View, as_index, groups_of, positions
from clnp.errors import PruningError, TaskError

from .activity import check_batches
from .recalibrate import average, norms_of
from .thresholds import Evaluate

ALIGNED = {"cuda": 8}
"""What widths of convolutions are rounded up to multiples of, on devices where that pays.

cuDNN prepares itself for every new shape, which takes longer than to run it a few times.
"""


class Candidates:
    """Scores the open task with some of its neurons; its weights must stay as they are.

    Its tensors with all neurons are put together once, and a candidate's are a part of them; a
    layer that keeps the neurons that it had the last time is not laid out anew. Copies of a neuron,
    to which nobody listens, round widths of convolutions up to multiples of `aligned`.

    Without some of its neurons, statistics of BatchNorm are no longer those of what it reads. With
    batches to `recalibrate` on, every candidate has its own.
    """

    def __init__(
        self, body: Body, *, aligned: int | None = None, recalibrate: Iterable[Any] | None = None
    ) -> None:
        self._body = body
        self._batches: list[Any] | None = None
        if recalibrate is not None:
            check_batches(recalibrate)
            self._batches = list(recalibrate) if norms_of(body) else None
        self._device = body.head.like.device
        self._multiple = aligned or ALIGNED.get(self._device.type, 1)
        convolutions = (part for part in body.parts.values() if part.kernel)
        self._to_align = set().union(*map(_groups, convolutions))
        self._whole: dict[str, Tensors] = {}
        self._laid_out: dict[str, tuple[tuple[tuple[int, ...], ...], Tensors]] = {}
        self._shown: tuple[View, object] | None = None

    def score(self, score: Callable[..., float], keep: View) -> float:
        """What `score` says of the open task with only the neurons `keep`."""
        body, called, over = self._body, False, False

        def predict(*args: Any, **kwargs: Any) -> Any:
            nonlocal called
            called = True
            if over:
                raise TaskError("predict is for the call of score that it was handed to")
            with body.lock:
                self._show(keep)
                return body.run_shown(args, kwargs)

        try:
            with torch.no_grad():
                found = score(predict)
        finally:
            over = True
        if not called:
            raise PruningError(
                "score did not call predict, which is the network with some of its neurons: it is "
                "handed over as score(predict), and predict(x) gives its outputs"
            )
        return found

    def _show(self, keep: View) -> None:
        """Lay out the open task for the plain pass, as it would be with only the neurons `keep`."""
        body = self._body
        showing = body.stage.showing
        if self._shown is not None and (self._shown[0] is keep and self._shown[1] is showing):
            return
        if showing is None or not self._whole:  # Weights have been loaded or moved.
            self._laid_out.clear()
            self._whole = body.whole()
        before, free = body.stage.frozen, body.stage.free
        after = {group: before[group] + free[group] for group in before}
        run, read = self._aligned(
            {
                group: np.concatenate([as_index(old), before[group] + as_index(keep[group])])
                for group, old in body.view(before, before).items()
            }
        )
        shown = {}
        for path, part in body.parts.items():
            kept = tuple(tuple(keep[group]) for group in _groups(part))
            if path not in self._laid_out or self._laid_out[path][0] != kept:
                whole = self._whole[path]
                tensors = part.as_candidate(whole, before, after, run=run, read=read)
                self._laid_out[path] = kept, tensors
            shown[path] = self._laid_out[path][1]
        what = object()
        averages = self._averages(run)
        for path, part in body.layers.items():
            if part in averages:  # What is laid out serves the next candidate too.
                shown[path] = {name: tensor.clone() for name, tensor in shown[path].items()}
        body.show(shown, what)
        if averages and self._batches is not None:
            average(averages, body, self._batches, body.run_shown)
        self._shown = keep, what

    def _averages(self, run: View) -> dict[PrefixLayer, Averaging]:
        """What has to be averaged anew when those neurons run: statistics of free channels."""
        if self._batches is None:
            return {}
        before, free = self._body.stage.frozen, self._body.stage.free
        after = {group: before[group] + free[group] for group in before}
        own = {group: range(before[group], after[group]) for group in before}
        averages = {}
        for norm in norms_of(self._body):
            rows = positions(norm.site.rows, after, run, stand_in=True)
            channels = np.isin(rows, positions(norm.site.rows, after, own))
            if channels.any():
                averages[norm] = Averaging(torch.from_numpy(channels).to(self._device))
        return averages

    def _aligned(self, view: View) -> tuple[View, View]:
        """What neurons run, with copies of the first, and what of them is read: not the copies."""
        run, read = dict(view), dict(view)
        for group in self._to_align:
            neurons = as_index(view[group])
            missing = np.full(-len(neurons) % self._multiple, STAND_IN)
            if len(missing):
                # No dead neurons: what follows need not be finite at 0.
                run[group] = np.concatenate([neurons, neurons[:1].repeat(len(missing))])
                read[group] = np.concatenate([neurons, missing])
        return run, read


def evaluation(
    body: Body, score: Callable[..., float], recalibrate: Iterable[Any] | None
) -> Evaluate:
    """`score` as a function of the neurons that are kept."""
    candidates = Candidates(body, recalibrate=recalibrate)
    return lambda keep, at_least: candidates.score(told(score, at_least), keep)


def _groups(part: PrefixLayer | Head) -> list[str]:
    """The groups that the layer reads or makes, each once."""
    return list(dict.fromkeys(groups_of(part.site.rows) + groups_of(part.site.columns)))


def told(score: Callable[..., float], at_least: float | None) -> Callable[..., float]:
    """The score as a function of `predict` alone, which knows what is needed if it takes that."""
    try:
        takes_it = "at_least" in signature(score).parameters
    except (TypeError, ValueError):  # Some functions of C have none.
        return score
    return partial(score, at_least=at_least) if takes_it else score

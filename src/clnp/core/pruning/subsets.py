"""The open task with only some of its neurons, in one way after another, to be scored."""

from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clnp.core.layers.blocks import Tensors, old_and_new
from clnp.core.layers.body import Body
from clnp.core.layers.layer import PrefixLayer
from clnp.core.layers.stage import Averaging
from clnp.core.structure.axis import STAND_IN, View, as_index, groups_of, positions
from clnp.core.structure.inputs import tensors_in
from clnp.errors import PruningError, TaskError

from .activity import check_batches
from .recalibrate import average, norms_of

MULTIPLES = {"cuda": 8}
"""Widths of convolutions are rounded up to multiples of this, on devices where that pays.

cuDNN prepares itself for every new shape, which takes longer than to run it a few times.
"""


class Subsets:
    """Scores the open task with some of its neurons. Its weights must stay as they are.

    Its tensors with all neurons are put together once, and those of a subset are a part of them; a
    layer that keeps the neurons that it had the last time is left as it is. Copies of a neuron,
    which no layer reads, round widths of convolutions up to multiples of `multiple`.

    Without some of its neurons, statistics of BatchNorm are no longer those of what it reads. With
    batches to `recalibrate` on, every subset has its own.
    """

    def __init__(
        self,
        body: Body,
        score: Callable[..., float],
        *,
        multiple: int | None = None,
        recalibrate: Iterable[Any] | None = None,
    ) -> None:
        self._body, self._score = body, score
        self._batches: list[Any] | None = None
        if recalibrate is not None:
            check_batches(recalibrate)
            self._batches = list(recalibrate) if norms_of(body) else None
        self._multiple = multiple or MULTIPLES.get(body.device.type, 1)
        self._groups = {
            path: list(dict.fromkeys(groups_of(part.site.rows) + groups_of(part.site.columns)))
            for path, part in body.parts.items()
        }
        convolutions = (path for path, part in body.parts.items() if part.kernel)
        self._to_round_up = {group for path in convolutions for group in self._groups[path]}
        self._whole: dict[str, Tensors] = {}
        self._narrow: dict[str, tuple[tuple[tuple[int, ...], ...], Tensors]] = {}
        self._shown: tuple[View | None, object] | None = None

    def ignores_input(self, keep: View) -> bool:
        """Whether all outputs that the score asks for are the same with only the neurons `keep`."""
        first: dict[int, Tensor] = {}
        num_rows, differ = 0, False

        def compare(outputs: Any) -> None:
            nonlocal num_rows, differ
            for index, output in enumerate(tensors_in(outputs)):
                if output.ndim and len(output):
                    same = first.setdefault(index, output[:1]).expand_as(output)
                    num_rows += len(output)
                    # Equal rows may differ in the last bits.
                    differ = differ or not torch.allclose(output, same, rtol=1e-5, atol=1e-7)

        self.score(keep, None, compare)
        return num_rows > 1 and not differ

    def score(
        self,
        keep: View | None,
        at_least: float | None,
        on_outputs: Callable[[Any], None] = lambda outputs: None,
    ) -> float:
        """Score the open task with only the neurons `keep`; any score below `at_least` will do.

        With None instead of neurons, the outputs are those of the head's bias, for every input.
        """
        body, called, over = self._body, False, False

        def predict(*args: Any, **kwargs: Any) -> Any:
            nonlocal called
            called = True
            if over:
                raise TaskError("predict is for the call of score that it was handed to")
            with body.lock:
                self._show(keep)
                outputs = body.run_shown(args, kwargs)
            on_outputs(outputs)
            return outputs

        try:
            with torch.no_grad():
                options = {"at_least": at_least} if _takes_at_least(self._score) else {}
                found = self._score(predict, **options)
        finally:
            over = True
        if not called:
            raise PruningError(
                "score did not call predict, which is the network with some of its neurons: it is "
                "handed over as score(predict), and predict(x) gives its outputs"
            )
        return found

    def _show(self, keep: View | None) -> None:
        """Show the open task, as it would be with only the neurons `keep`, in the plain pass."""
        body = self._body
        chosen: View = dict.fromkeys(body.stage.free, ()) if keep is None else keep
        showing = body.stage.showing
        if self._shown is not None and (self._shown[0] is keep and self._shown[1] is showing):
            return
        if showing is None or not self._whole:  # Weights have been loaded or moved.
            self._narrow.clear()
            self._whole = body.whole()
        before = body.stage.frozen
        after, _, own = old_and_new(before, body.stage.free)
        run, read = self._rounded_up(
            {
                group: np.concatenate([as_index(old), before[group] + as_index(chosen[group])])
                for group, old in body.view(before, before).items()
            }
        )
        shown = {}
        for path, part in body.parts.items():
            kept = tuple(tuple(chosen[group]) for group in self._groups[path])
            if path not in self._narrow or self._narrow[path][0] != kept:
                tensors = part.subset_of(self._whole[path], before, after, run=run, read=read)
                self._narrow[path] = kept, tensors
            shown[path] = self._narrow[path][1]
        averages: dict[PrefixLayer, Averaging] = {}
        for norm in [] if self._batches is None else norms_of(body):
            rows = positions(norm.site.rows, after, run, stand_in=True)
            channels = np.isin(rows, positions(norm.site.rows, after, own))
            if channels.any():
                averages[norm] = Averaging(torch.from_numpy(channels).to(body.device))
                path = norm.site.path  # A copy: the next subset may need the stored statistics.
                shown[path] = {name: tensor.clone() for name, tensor in shown[path].items()}
        if keep is None:
            head = shown[body.graph.classifier]
            shown[body.graph.classifier] = {**head, "weight": torch.zeros_like(head["weight"])}
        what = object()
        body.show(shown, what)
        if averages and self._batches is not None:
            average(averages, body, self._batches, body.run_shown)
        self._shown = keep, what

    def _rounded_up(self, view: View) -> tuple[View, View]:
        """Return the neurons to run, with copies of the first, and those of them to read."""
        run, read = dict(view), dict(view)
        for group in self._to_round_up:
            neurons = as_index(view[group])
            missing = np.full(-len(neurons) % self._multiple, STAND_IN)
            if len(missing):
                # No dead neurons: what follows need not be finite at 0.
                run[group] = np.concatenate([neurons, neurons[:1].repeat(len(missing))])
                read[group] = np.concatenate([neurons, missing])
        return run, read


def _takes_at_least(score: Callable[..., float]) -> bool:
    try:
        return "at_least" in signature(score).parameters
    except (TypeError, ValueError):  # Some functions of C have none.
        return False

"""Thresholds within a margin: which of a task's neurons to keep.

A neuron is kept when its mean activity is above the threshold of its group. *Graceful forgetting*
takes the highest threshold at which the score stays within a margin of the best. The score is not
monotone in the threshold, so the search goes from the highest threshold down in strides, stops at
the first one that holds, and halves the stride above it until it is one.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeVar

import torch
from numpy import ndarray
from torch import Tensor

from clnp.checks import COUNT, COUNT_FROM_0, number, optional, within
from clnp.core.structure.graph import Graph
from clnp.errors import ArgumentError, PruningError

from .activity import Activity
from .plan import CurvePoint, Keep, PruningPlan, num_kept

KEEP_ALL = -1.0
"""A threshold below every activity: neurons that never fire are kept too."""

Evaluate = Callable[[Keep | None, float | None], float]
"""The score of a set of neurons, or of outputs that do not depend on the input (None).

If a score is needed, any lower one may be returned.
"""


def survivors(activity: Activity, thresholds: Mapping[str, float]) -> dict[str, tuple[int, ...]]:
    """Return the free neurons of each group whose activity is above its threshold."""
    return {
        group: tuple((values > thresholds[group]).nonzero().flatten().tolist())
        for group, values in activity.items()
    }


def plan(
    activity: Activity,
    evaluate: Evaluate | None,
    *,
    task: str,
    thresholds: Mapping[str, float] | None,
    margin: float | None,
    best: float | None,
    per_layer: bool,
    resolution: int | None,
    allow_guessing: bool,
    on_evaluation: Callable[[CurvePoint], None],
    ignores_input: Callable[[Keep], bool],
    reused: Callable[[Keep], Mapping[str, int | None]],
) -> PruningPlan:
    """Make the plan with the fewest neurons within the margin, or with the given thresholds."""
    curve: tuple[CurvePoint, ...] = ()
    score = None
    if thresholds is not None:
        if margin is not None or best is not None or per_layer:
            raise ArgumentError(
                "thresholds are used as they are. Leave margin, best and per_layer out"
            )
        if evaluate is not None:
            keep = survivors(activity, thresholds)
            score = checked_score(evaluate(keep, None))
            curve = (CurvePoint(dict(thresholds), num_kept(keep), score),)
            on_evaluation(curve[0])
    else:
        if evaluate is None or margin is None:
            raise ArgumentError("plan_pruning needs score and margin, or thresholds")
        margin, resolution = _margin("margin", margin), optional(COUNT)("resolution", resolution)
        search = Search(
            activity,
            evaluate,
            margin=margin,
            best=best,
            resolution=resolution,
            on_evaluation=on_evaluation,
        )
        thresholds = search.per_layer() if per_layer else search.common()
        if not allow_guessing:
            search.check_guessing(thresholds)
            search.check_constant(thresholds, ignores_input)
        score, best, curve = search.score(thresholds), search.best, tuple(search.curve)
    keep = survivors(activity, thresholds)
    return PruningPlan(
        task=task,
        available={group: len(values) for group, values in activity.items()},
        keep=keep,
        thresholds=thresholds,
        reused=reused(keep),
        score=score,
        best=best,
        margin=margin,
        curve=curve,
    )


class Search:
    """The search for the highest thresholds that keep the score within the margin.

    `evaluate` scores a set of neurons; the same set is never evaluated twice. If there are more
    than twice as many thresholds as `resolution`, that many, evenly spread over them, are tried
    from the top. Between the first that holds and the one above it, which does not, the search
    halves the gap. `resolution=None` tries all of them from the top.
    """

    def __init__(
        self,
        activity: Activity,
        evaluate: Evaluate,
        *,
        margin: float,
        best: float | None,
        resolution: int | None,
        on_evaluation: Callable[[CurvePoint], None] = lambda point: None,
    ) -> None:
        self.activity, self._evaluate = activity, evaluate
        self.margin, self.resolution = margin, resolution
        self._on_evaluation = on_evaluation
        self.curve: list[CurvePoint] = []
        self._scores: dict[tuple[tuple[int, ...], ...], float] = {}
        self.everything = dict.fromkeys(activity, KEEP_ALL)
        self.best = self.score(self.everything) if best is None else checked_score(best, "best is")

    def score(self, thresholds: Mapping[str, float], at_least: float | None = None) -> float:
        """Return the score of the network pruned with these thresholds, or any below `at_least`."""
        keep = survivors(self.activity, thresholds)
        key = tuple(keep.values())
        if key not in self._scores:
            # Errors show the score of all neurons, so that one is exact.
            is_pruned = sum(map(len, key)) < sum(map(len, self.activity.values()))
            found = self._evaluate(keep, at_least if is_pruned else None)
            score = self._scores[key] = checked_score(found, nan_is_low=is_pruned)
            point = CurvePoint(dict(thresholds), num_kept(keep), score)
            if score > -math.inf:
                self.curve.append(point)
            self._on_evaluation(point)
        return self._scores[key]

    def holds(self, thresholds: Mapping[str, float]) -> bool:
        """Whether the score stays within the margin of the best."""
        needed = self.best - self.margin
        return self.score(thresholds, needed) >= needed

    def check_guessing(self, thresholds: Mapping[str, float]) -> None:
        """Raise a `PruningError` if outputs that do not depend on the input are within the margin.

        That nothing is kept is no proof: the head of a later task may do well on the neurons of
        earlier ones. A head without inputs cannot, so if its score is within the margin, every
        network's is. If the margin is not that wide, but gives up more than half of what the task
        has learned, there is a warning. No evaluation is needed if neurons are kept by a margin
        that is small beside the score, or if there are none to keep.
        """
        is_small = self.margin <= abs(self.best) / 4
        keeps_some = any(survivors(self.activity, thresholds).values())
        if (is_small and keeps_some) or not any(self.activity.num_free().values()):
            return
        found = self._evaluate(None, self.best - 2 * self.margin)
        guess = checked_score(found, nan_is_low=True)
        if guess < self.best - 2 * self.margin:
            return
        scores = f"a network whose outputs do not depend on the input scores {guess:g}"
        scale = (
            f"Give score and margin ({self.margin:g}) in the same unit, such as percentage points"
        )
        if guess > self.best:
            raise PruningError(
                f"{scores}, more than the best score, {self.best:g}. If the score is a loss, "
                "return its negative: higher must be better. Otherwise the task has learned "
                "nothing; train longer, or accept it with plan_pruning(allow_guessing=True)",
                guesses=True,
            )
        if guess >= self.best - self.margin:
            raise PruningError(
                f"{scores}, which is within the margin of {self.margin:g} of the best score, "
                f"{self.best:g}: nothing would be kept. {scale}, train longer if the task has "
                "learned nothing, or accept it with plan_pruning(allow_guessing=True)",
                guesses=True,
            )
        warnings.warn(
            f"{scores}, and the best score is {self.best:g}: the margin gives up more than half of "
            f"what the task has learned. {scale}",
            stacklevel=4,  # The line that calls `plan_pruning`.
        )

    def check_constant(
        self, thresholds: Mapping[str, float], ignores_input: Callable[[Keep], bool]
    ) -> None:
        """Raise a `PruningError` if what is kept gives the same outputs for every input.

        That takes a group of which no neuron is kept. The outputs may be better than those of the
        head's bias alone: always the larger of two classes, say.
        """
        keep = survivors(self.activity, thresholds)
        is_emptied = any(len(self.activity[g]) and not kept for g, kept in keep.items())
        if is_emptied and ignores_input(keep):
            raise PruningError(
                f"what is left within the margin of {self.margin:g} gives the same outputs for "
                f"every input: it scores {self.score(thresholds):g}, and the best is "
                f"{self.best:g}. Give a smaller margin, or a score that tells them apart, or "
                "accept it with plan_pruning(allow_guessing=True)",
                guesses=True,
            )

    def common(self) -> dict[str, float]:
        """Return the highest threshold, one for all groups, that holds."""
        found = self._highest(self._candidates(*self.activity), {}, self.activity)
        if found is None:
            raise PruningError(
                f"no threshold stays within {self.margin:g} of {self.best:g}: the unpruned "
                f"network itself scores {self.score(self.everything):g}. Train longer, or allow a "
                "larger margin"
            )
        return dict.fromkeys(self.activity, found)

    def per_layer(self) -> dict[str, float]:
        """Raise the threshold of each group in turn above the common one, as far as it holds."""
        thresholds = self.common()
        for group in self.activity:
            higher = [t for t in self._candidates(group) if t > thresholds[group]]
            found = self._highest(higher, thresholds, [group])
            if found is not None:
                thresholds[group] = found
        return thresholds

    def _candidates(self, *groups: str) -> list[float]:
        """Return every threshold that keeps another set of neurons, from the highest down."""
        values = {value for group in groups for value in self.activity[group].tolist()}
        return [*sorted(values | {0.0}, reverse=True), KEEP_ALL]

    def _highest(
        self, candidates: list[float], others: Mapping[str, float], groups: Iterable[str]
    ) -> float | None:
        """Return the first of `candidates` that holds for `groups` beside the others'."""

        def holds(theta: float) -> bool:
            return self.holds({**others, **dict.fromkeys(groups, theta)})

        last: int = len(candidates) - 1
        most = max(self.resolution or len(candidates), 2)
        stride = math.ceil(len(candidates) / most) if len(candidates) > 2 * most else 1
        tried = [*range(0, last, stride), last] if candidates else []
        first = next((n for n, index in enumerate(tried) if holds(candidates[index])), None)
        if first is None:
            return None
        above: int = tried[first - 1] if first else -1
        found: int = tried[first]
        while found - above > 1:
            middle = (above + found) // 2
            if holds(candidates[middle]):
                found = middle
            else:
                above = middle
        return candidates[found]


def checked_score(
    score: object, what: str = "score returned", *, nan_is_low: bool = False
) -> float:
    """Return the score as a finite number; `what` begins the message if it is not one.

    With `nan_is_low`, NaN is -inf: a correlation, say, of outputs that are all the same.
    """
    try:
        number = float(score)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        raise PruningError(
            f"{what} {score!r} ({type(score).__name__}), not a number. It must be one number, "
            "higher is better"
        ) from None
    if nan_is_low and math.isnan(number):
        return -math.inf
    if not math.isfinite(number):
        raise PruningError(f"{what} {number}. It must be a finite number")
    return number


Neurons = Mapping[str, Iterable[int] | Tensor]
Value = TypeVar("Value")


def importance_of(graph: Graph, given: object, free: Mapping[str, int]) -> Activity:
    """Return the importance of the free neurons, which may be a user's own: numbers, 0 or more."""
    if isinstance(given, Activity) and given.num_free() != dict(free):
        raise PruningError(
            "this activity does not belong to the open task as it is now. Measure it again"
        )
    if not isinstance(given, Mapping):
        raise ArgumentError(
            f"importance is of type {type(given).__name__}. It must be what measure_activity "
            'returns, or a number for each free neuron of each group, {"fc1": tensor}'
        )
    found = _named_once(graph, given)
    missing = [group for group in free if group not in found]
    if missing:
        raise ArgumentError(
            f"importance lacks {', '.join(missing)}. Give a number for each free neuron "
            "of every group"
        )
    values = {group: _numbers(*found[group], num) for group, num in free.items()}
    if isinstance(given, Activity):
        return Activity(values, given.owned, given.inputs)
    return Activity(values, {})


def _numbers(name: str, values: Any, num: int) -> Tensor:
    """Return one number, 0 or more, for each of `num` neurons, in float64."""
    try:
        found = torch.as_tensor(values, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(
            f"importance of {name} is {values!r}. It must be a tensor of {num} numbers"
        ) from None
    if found.shape != (num,):
        raise ArgumentError(
            f"importance of {name} has shape {list(found.shape)}. It must have a number for each "
            f"of its {num} free neurons"
        )
    wrong = found[~(found.isfinite() & (found >= 0))]
    if len(wrong):
        raise ArgumentError(
            f"importance of {name} holds {float(wrong[0])}. It must be finite numbers, 0 or more: "
            "the lowest are pruned first"
        )
    return found


def threshold_by_group(graph: Graph, thresholds: float | Mapping[str, float]) -> dict[str, float]:
    """Return the threshold of each group; groups that are not named keep all neurons."""
    if not isinstance(thresholds, Mapping):
        common: float = _threshold("threshold", thresholds)
        return dict.fromkeys(graph.groups, common)
    found = dict.fromkeys(graph.groups, KEEP_ALL)
    for group, (name, value) in _named_once(graph, thresholds).items():
        found[group] = _threshold(f"threshold of {name}", value)
    return found


def _named_once(graph: Graph, values: Mapping[str, Value]) -> dict[str, tuple[str, Value]]:
    """Return the given name and its value, by group. A group may go by one name only."""
    found: dict[str, tuple[str, Value]] = {}
    for name, value in values.items():
        group = graph.group_named(name)
        if group in found:
            raise ArgumentError(f"{name} and {found[group][0]} are the same group. Name it once")
        found[group] = (name, value)
    return found


_threshold = within(number, lambda value: not math.isnan(value), "a number")
_margin = within(number, lambda value: value >= 0, "a number, 0 or more")


def neurons_by_group(
    graph: Graph, neurons: Neurons, available: Mapping[str, int]
) -> dict[str, Sequence[int]]:
    """Return the neurons to keep of each group, in order; all of a group that is not named."""
    if not isinstance(neurons, Mapping) or isinstance(neurons, Activity):
        raise PruningError(
            f"a {type(neurons).__name__} is not a plan. Give that of plan_pruning, or the neurons "
            'to keep of each group, such as {"fc1": [0, 5]}'
        )
    found: dict[str, Sequence[int]] = {group: range(count) for group, count in available.items()}
    for group, (name, values) in _named_once(graph, neurons).items():
        if not isinstance(values, Iterable):
            raise PruningError(f"{name}: give the neurons to keep as a list, not {values!r}")
        listed = values.tolist() if isinstance(values, Tensor | ndarray) else list(values)
        for value in listed:
            is_index = isinstance(value, Integral) and not isinstance(value, bool)
            if not (is_index and 0 <= value < available[group]):
                raise PruningError(
                    f"{name}: {value!r} is no free neuron; the open task has {available[group]}, "
                    "numbered from 0"
                )
        if len(set(listed)) != len(listed):
            raise PruningError(f"{name}: a neuron is named twice")
        found[group] = sorted(map(int, listed))
    return found


def kept_by(
    plan: PruningPlan | Neurons, graph: Graph, *, task: str, free: Mapping[str, int]
) -> tuple[dict[str, Sequence[int]], Mapping[str, int | None] | None]:
    """Return the neurons to keep of each group and how many are reused, where that is known."""
    if not isinstance(plan, PruningPlan):
        return neurons_by_group(graph, plan, free), None
    if plan.task != task or dict(plan.available) != dict(free):
        raise PruningError(
            f"this plan was made for task {plan.task!r} when it had other neurons. "
            f"Make one for {task!r} as it is now"
        )
    # A plan may have been read from a file.
    return neurons_by_group(graph, plan.keep, free), plan.reused


def extra_by_group(graph: Graph, extra: Mapping[str, int]) -> dict[str, int]:
    """Return the number of neurons to append to each group that is named."""
    if not isinstance(extra, Mapping):
        raise ArgumentError(f'widen by {extra!r}: name the groups, such as {{"fc1": 10}}')
    return {
        group: COUNT_FROM_0(f"the number of new neurons of {name}", count)
        for group, (name, count) in _named_once(graph, extra).items()
    }

"""What the user gave, checked and spelt out for every layer or group."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import signature
from numbers import Integral, Real
from typing import Any, TypeVar

from numpy import ndarray
from torch import Tensor, nn

from .activity import Activity
from .description import Description
from .errors import ArgumentError, CapacityError, PruningError, TaskError, unknown_name
from .graph import Graph
from .pruning import PruningPlan

Neurons = Mapping[str, Iterable[int] | Tensor]
Value = TypeVar("Value")


def alpha_by_layer(graph: Graph, alpha: float | Mapping[str, float]) -> dict[str, float]:
    """The strength of the L1 penalty for each layer; the longest path that fits it counts."""
    if not isinstance(alpha, Mapping):
        return dict.fromkeys(graph.sites, _strength("alpha", alpha))
    found: dict[str, tuple[str, float]] = {}
    for name, value in alpha.items():
        strength = _strength(f"alpha of {name}", value)
        inside = [p for p in graph.sites if p == name or p.startswith(f"{name}.")]
        if not inside:
            raise ArgumentError(unknown_name("layer", name, graph.sites))
        for path in inside:
            if path not in found or len(name) > len(found[path][0]):
                found[path] = (name, strength)
    return {path: strength for path, (_, strength) in found.items()}


def _strength(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ArgumentError(f"{what} is {value!r}; it must be a finite number")
    if value < 0:
        raise ArgumentError(f"{what} is {value}; it must be 0 or more")
    return float(value)


def told(score: Callable[..., float], at_least: float | None) -> Callable[..., float]:
    """The score as a function of `predict` alone, which knows what is needed if it takes that."""
    try:
        takes_it = "at_least" in signature(score).parameters
    except (TypeError, ValueError):  # Some functions of C have none.
        return score
    return partial(score, at_least=at_least) if takes_it else score


def threshold_by_group(
    graph: Graph, thresholds: float | Mapping[str, float], *, otherwise: float
) -> dict[str, float]:
    """The threshold of each group, `otherwise` where it is not named."""
    if not isinstance(thresholds, Mapping):
        return dict.fromkeys(graph.groups, _threshold("threshold", thresholds))
    found = dict.fromkeys(graph.groups, otherwise)
    for group, (name, value) in _named_once(graph, thresholds).items():
        found[group] = _threshold(f"threshold of {name}", value)
    return found


def _named_once(graph: Graph, values: Mapping[str, Value]) -> dict[str, tuple[str, Value]]:
    """The name that was given and its value, by group; a group may go by one name only."""
    found: dict[str, tuple[str, Value]] = {}
    for name, value in values.items():
        group = graph.group_named(name)
        if group in found:
            raise ArgumentError(f"{name} and {found[group][0]} are the same group; name it once")
        found[group] = (name, value)
    return found


def _threshold(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
        raise ArgumentError(f"{what} is {value!r}; it must be a number")
    return float(value)


def neurons_by_group(
    graph: Graph, neurons: Neurons, available: Mapping[str, int]
) -> dict[str, Sequence[int]]:
    """The neurons to keep of each group, in order; all of them where it is not named."""
    if not isinstance(neurons, Mapping) or isinstance(neurons, Activity):
        raise PruningError(
            f"a {type(neurons).__name__} is no plan; give one of plan_pruning, or the neurons to "
            'keep of each group, such as {"fc1": [0, 5]}'
        )
    found: dict[str, Sequence[int]] = {group: range(count) for group, count in available.items()}
    for group, (name, values) in _named_once(graph, neurons).items():
        if not isinstance(values, Iterable):
            raise PruningError(f"{name}: give the neurons to keep as a list, not {values!r}")
        listed = values.tolist() if isinstance(values, Tensor | ndarray) else list(values)
        for value in listed:
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise PruningError(f"{name}: {value!r} is not the number of a neuron")
            if not 0 <= int(value) < available[group]:
                raise PruningError(
                    f"{name}: there is no free neuron {value}; the open task has "
                    f"{available[group]}, numbered from 0"
                )
        if len(set(listed)) != len(listed):
            raise PruningError(f"{name}: a neuron is named twice")
        found[group] = sorted(map(int, listed))
    return found


def kept_by(
    plan: PruningPlan | Neurons, graph: Graph, *, task: str, free: Mapping[str, int]
) -> tuple[dict[str, Sequence[int]], Mapping[str, int] | None]:
    """The neurons to keep of each group and how many are reused, where that is known."""
    if not isinstance(plan, PruningPlan):
        return neurons_by_group(graph, plan, free), None
    if plan.task != task or dict(plan.available) != dict(free):
        raise PruningError(
            f"this plan was made for task {plan.task!r} when it had other neurons; "
            f"make one for {task!r} as it is now"
        )
    return {group: list(neurons) for group, neurons in plan.keep.items()}, plan.reused


def extra_by_group(graph: Graph, extra: Mapping[str, int]) -> dict[str, int]:
    """How many neurons to append to each group that is named."""
    if not isinstance(extra, Mapping):
        raise ArgumentError(f'widen by {extra!r}: name the groups, such as {{"fc1": 10}}')
    wanted: dict[str, int] = {}
    for group, (name, count) in _named_once(graph, extra).items():
        if isinstance(count, bool) or not isinstance(count, Integral) or count < 0:
            raise ArgumentError(f"widen {name} by {count!r}: it must be a whole number, 0 or more")
        wanted[group] = int(count)
    return wanted


def checked_outputs(num_outputs: object, *, own: int, single: bool) -> int:
    """The number of outputs of a task; `own`, the classifier's, unless it is given."""
    if num_outputs is None:
        return own
    if (
        isinstance(num_outputs, bool)
        or not isinstance(num_outputs, Integral)
        or int(num_outputs) < 1
    ):
        raise ArgumentError(f"num_outputs is {num_outputs!r}; it must be a whole number, 1 or more")
    if single and int(num_outputs) > own:
        raise ArgumentError(
            f"num_outputs is {num_outputs}, and the single head has {own} for all tasks; "
            'give the model a larger classifier, or use head="multi"'
        )
    return int(num_outputs)


def check_room(task: str, free: Mapping[str, int]) -> None:
    """Raise a `CapacityError` unless one of the groups, all that a single head reads, has room."""
    if not any(free.values()):
        raise CapacityError(
            f"no neuron of {' and '.join(free)} is free, and a single head reads only the neurons "
            f"that a task adds there: task {task!r} does not fit. Widen it, "
            f"net.widen({{{next(iter(free))!r}: ...}}), or learn the earlier tasks with a larger "
            "margin, which leaves more of it free"
        )


def check_kind(argument: str, value: object, kind: type, what: str) -> None:
    """Raise an `ArgumentError` unless the value is of that kind."""
    if not isinstance(value, kind):
        message = f"{argument} is a {type(value).__name__}; it must be {what}"
        raise ArgumentError(message, argument=argument)


def listed(
    argument: str, values: object, fits: Callable[[object], bool], *, what: str
) -> list[Any]:
    """The values in a list; an `ArgumentError` if one of them does not fit, or is given alone."""
    if fits(values) or isinstance(values, str) or not isinstance(values, Iterable):
        message = f"{argument} is a {type(values).__name__}; give a list of {what}"
        raise ArgumentError(message, argument=argument)
    found = list(values)
    for value in found:
        if not fits(value):
            message = f"{argument} holds a {type(value).__name__}; give a list of {what}"
            raise ArgumentError(message, argument=argument)
    return found


def number_of_seconds(argument: str, value: object) -> float:
    """The value as a number of seconds."""
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) >= 0:
        message = f"{argument} is {value!r}; it must be a number of seconds, 0 or more"
        raise ArgumentError(message, argument=argument)
    return float(value)


def check_initial(
    initial: object, expected: Description, *, is_first: bool, widened: bool, fits: bool
) -> None:
    """Raise an error unless `initial` is a function, or can give a first task all its weights."""
    if not isinstance(initial, nn.Module):
        if initial is None or callable(initial):
            return
        what = "a model, a function of a layer, or the name of an initialisation"
        raise ArgumentError(f"initial is {initial!r}; it must be {what}")
    if not is_first:
        raise TaskError("initial weights are for the first task; later ones start in what is free")
    difference = expected.difference(initial)
    if difference is None and widened:
        difference = "the network has been widened"
    if difference is None and not fits:
        difference = "too few outputs"
    if difference is not None:
        raise ArgumentError(f"initial is not like the model: {difference}")

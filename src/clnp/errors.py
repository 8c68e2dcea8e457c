"""All errors that clnp raises. Each also derives from the built-in one in brackets.

ClnpError
├── GraphError(ValueError)          the model has something that cannot be sliced by neuron
├── ArgumentError(ValueError)       an argument is invalid
├── TaskError(RuntimeError)         the call does not fit the state, such as no open task
├── CapacityError(RuntimeError)     no free neuron is left where the task needs one
├── PruningError(ValueError)        no threshold stays within the margin, or a plan does not fit
├── DivergedError(RuntimeError)     a tensor to measure or to freeze is NaN or infinite
├── ForgettingError(RuntimeError)   an ended task no longer matches its certificate
├── CheckpointError(RuntimeError)   a file is damaged, foreign, or of another model
├── RecipeError(ValueError)         a recipe has an invalid key or value
├── DataError(RuntimeError)         a data set is missing or damaged
├── RunError(RuntimeError)          a run cannot be started, resumed or read
├── ExportError(RuntimeError)       a task cannot be exported, or its file has other outputs
└── StoppedError(RuntimeError)      a run was stopped, and is saved
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FAILURE, USER_ERROR, STOPPED = 1, 2, 130
"""Exit codes: failure, usage error, stopped by a signal."""


class ClnpError(Exception):
    """Base class of all errors of clnp. `code` is the exit code of the command line."""

    code = USER_ERROR


@dataclass(frozen=True)
class Problem:
    """One thing in a model that cannot be handled: where it is, what it is, and what to do."""

    where: str
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.found}. {self.remedy}"


class GraphError(ClnpError, ValueError):
    """The model, or its example input, cannot be handled as it is. `problems` has all reasons.

    The message has one line for problems of a kind, with the first paths.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        kinds = _by_kind(self.problems)
        num = len(self.problems)
        title = "1 problem" if num == 1 else f"{num} problems"
        if len(kinds) < num:
            title += f" of {len(kinds)} kind{'s'[: len(kinds) > 1]}"
        lines = "".join(f"\n  - {_in_one_line(kind)}" for kind in kinds)
        super().__init__(f"this model cannot be used as it is, {title}:{lines}")

    def __reduce__(self) -> tuple[type["GraphError"], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


_DETAIL = re.compile(r"'[^'\s]+\.[^'\s]+'|(?<![:\w])\d+")
"""A dotted path, or a number that is not that of a line, in what was found."""
_NUM_PATHS = 3


def _by_kind(problems: Sequence[Problem]) -> list[list[Problem]]:
    """Return the problems in groups: those that differ in the path alone, or in little more.

    Up to three problems that differ in a detail stay apart, and so do two of the same module.
    """
    alike: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        alike.setdefault((_DETAIL.sub("", problem.found), problem.remedy), []).append(problem)
    kinds: dict[tuple[str, ...], list[Problem]] = {}
    for problem in problems:
        kind = _DETAIL.sub("", problem.found), problem.remedy
        same = alike[kind]
        is_large = len({each.where for each in same}) == len(same) > _NUM_PATHS
        kinds.setdefault(kind if is_large else (problem.found, *kind), []).append(problem)
    return list(kinds.values())


def _in_one_line(kind: Sequence[Problem]) -> str:
    paths, first = [problem.where for problem in kind], kind[0]
    more = f" and {len(paths) - _NUM_PATHS} more" if len(paths) > _NUM_PATHS else ""
    alike = ", and so on" if any(problem.found != first.found for problem in kind) else ""
    return f"{', '.join(paths[:_NUM_PATHS])}{more}: {first.found}{alike}. {first.remedy}"


class ArgumentError(ClnpError, ValueError):
    """An argument is invalid; nothing was changed. `argument` is its name, if it has one.

    `further` has the errors of the other arguments that are invalid, where they are known.
    """

    def __init__(
        self,
        message: str,
        *,
        argument: str | None = None,
        further: Sequence["ArgumentError"] = (),
    ) -> None:
        super().__init__(message)
        self.argument, self.further = argument, tuple(further)


class TaskError(ClnpError, RuntimeError):
    """The call does not fit the state of the network; nothing was changed."""


class CapacityError(ClnpError, RuntimeError):
    """No free neuron is left where the task needs one."""


class PruningError(ClnpError, ValueError):
    """No threshold stays within the margin, or the plan does not fit the open task.

    `guesses` tells whether it is because outputs that do not depend on the input are within it.
    """

    def __init__(self, message: str, *, guesses: bool = False) -> None:
        super().__init__(message)
        self.guesses = guesses


class DivergedError(ClnpError, RuntimeError):
    """A tensor to measure or to freeze is NaN or infinite."""

    code = FAILURE


class ForgettingError(ClnpError, RuntimeError):
    """An ended task no longer matches its certificate."""

    code = FAILURE


class CheckpointError(ClnpError, RuntimeError):
    """A checkpoint is truncated, corrupted, foreign, or made from another model."""

    code = FAILURE


class RecipeError(ClnpError, ValueError):
    """A recipe has an invalid key or value, or cannot be read."""


class DataError(ClnpError, RuntimeError):
    """A data set is missing or damaged."""


class RunError(ClnpError, RuntimeError):
    """A run cannot be started, resumed or read."""


class ExportError(ClnpError, RuntimeError):
    """A task cannot be exported, or the outputs of its file differ from those of the network."""

    code = FAILURE


class StoppedError(ClnpError, RuntimeError):
    """A run was stopped, and all that it has done is saved."""

    code = STOPPED


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Return a sentence that says `name` is unknown, with the nearest known name.

    unknown_name("group", "fc9", ["fc1"]) == "unknown group 'fc9'. Did you mean 'fc1'? Known: fc1"
    """
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f". Did you mean {near[0]!r}?" if near else "."
    return f"unknown {kind} {name!r}{hint} Known: {', '.join(names) if names else 'none yet'}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a machine or its GPU has run out of memory."""
    words = ("can't allocate memory", "not enough memory")
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and any(each in str(error) for each in words))
    )


OUT_OF_MEMORY = (
    "out of memory; use a smaller learner.training.batch_size or smaller network.widths, or a "
    "machine with more"
)


def first_line(error: BaseException) -> str:
    """Return the first line of an error."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def failure(error: BaseException) -> tuple[str, bool]:
    """Return why an error ended a run, and whether the run can be resumed once that is fixed."""
    if isinstance(error, ClnpError):  # Data, files and disks can be fixed.
        return str(error), isinstance(error, RunError | DataError)
    if is_out_of_memory(error):
        return OUT_OF_MEMORY, True
    reason = f": {first_line(error)}" if str(error) else ""
    return f"{type(error).__name__}{reason}", True

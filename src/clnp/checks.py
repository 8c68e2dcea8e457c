"""Check arguments and settings: their kinds, their bounds, and lists of them."""

import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from clnp.errors import ArgumentError

if TYPE_CHECKING:
    import torch

Kind = Callable[[str, object], Any]
"""`kind(name, value)` returns the setting that a value stands for, or raises an `ArgumentError`."""
LARGEST = 3e38
"""Larger numbers are no float32."""
MOST_SHOWN = 60
"""Characters of a value that an error shows."""
SMALL_BYTES = 1 << 28
"""Memory that is used without asking how much is left."""


def number(argument: str, value: object) -> float:
    """Return the value as a Python float: seeds and JSON tell 1 from 1.0."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _refused(argument, value, "a number")
    try:
        return float(value)
    except OverflowError:
        raise _refused(argument, value, "a number below 1.8e308") from None


def whole_number(argument: str, value: object) -> int:
    """Return the value as a Python int."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _refused(argument, value, "a whole number")
    if _is_long(value):
        raise _refused(argument, value, "a whole number of at most 64 bits")
    return int(value)


def strength(argument: str, value: object) -> float | dict[str, float]:
    """Return an alpha in Python floats: one for all layers, or one for each."""
    if isinstance(value, Mapping):
        return {name: FLOAT32_FROM_0(f"{argument} of {name}", each) for name, each in value.items()}
    common: float = FLOAT32_FROM_0(argument, value)
    return common


def within(kind: Kind, holds: Callable[[Any], bool], expected: str) -> Kind:
    """Return the kind within bounds; `expected` describes it in errors."""

    def bounded(argument: str, value: object) -> Any:
        try:
            settled = kind(argument, value)
        except ArgumentError as error:
            if _is_long(value):
                raise
            raise _refused(argument, value, expected) from error
        if not holds(settled):
            raise _refused(argument, value, expected)
        return settled

    return bounded


def one_of(*names: str) -> Kind:
    """Return the kind of values that are one of these texts."""
    expected = f"{', '.join(map(repr, names[:-1]))} or {names[-1]!r}"

    def named(argument: str, value: object) -> object:
        if not isinstance(value, str) or value not in names:
            raise _refused(argument, value, expected)
        return value

    return named


def optional(kind: Kind) -> Kind:
    """Return the kind of values that may also be None."""
    return lambda argument, value: None if value is None else kind(argument, value)


def several(kind: Kind) -> Kind:
    """Return the kind of lists of values, as tuples; None stays."""

    def listed(argument: str, values: object) -> tuple[Any, ...] | None:
        given: Any = values.tolist() if hasattr(values, "tolist") else values  # Of a tensor, say.
        if given is None:
            return None
        if isinstance(given, Real | Mapping | str) or not isinstance(given, Iterable):
            message = f"{argument} is {given!r}. Give a list, {argument}=[...]"
            raise ArgumentError(message, argument=argument)
        return tuple(kind(f"one of {argument}", value) for value in given)

    return listed


ABOVE_0 = within(number, lambda value: 0 < value < LARGEST, "a finite float32 number above 0")
FLOAT32_FROM_0 = within(
    number, lambda value: 0 <= value < LARGEST, "a finite float32 number, 0 or more"
)
FROM_0 = within(number, lambda value: 0 <= value < math.inf, "a finite number, 0 or more")
FROM_1 = within(number, lambda value: 1 <= value < math.inf, "a finite number, 1 or more")
BETWEEN_0_AND_1 = within(number, lambda value: 0 < value < 1, "a number between 0 and 1")
SEED = within(whole_number, lambda value: 0 <= value < 2**64, "a whole number from 0 to 2**64 - 1")
COUNT = within(whole_number, lambda value: value >= 1, "a whole number, 1 or more")
THREADS = within(whole_number, lambda value: 1 <= value <= 1024, "a whole number, 1 to 1024")
COUNT_FROM_0 = within(whole_number, lambda value: value >= 0, "a whole number, 0 or more")


def settle(settings: object, kinds: Mapping[str, Kind], *, where: str = "") -> None:
    """Replace fields of a frozen dataclass by what their kinds make of them.

    An `ArgumentError` has `where` before its message, and those of the other fields as `further`.
    """
    errors = []
    for name, kind in kinds.items():
        try:
            object.__setattr__(settings, name, kind(name, getattr(settings, name)))
        except ArgumentError as error:
            message = f"{where}: {error}" if where else str(error)
            errors.append(ArgumentError(message, argument=name))
    if errors:
        errors[0].further = tuple(errors[1:])
        raise errors[0]


def _refused(argument: str, value: object, expected: str) -> ArgumentError:
    message = f"{argument} is {shown(value)}. It must be {expected}"
    return ArgumentError(message, argument=argument)


def _is_long(value: object) -> bool:
    """Whether the value is a whole number of more than 64 bits, with or without a sign."""
    return isinstance(value, Integral) and not -(2**63) <= int(value) < 2**64


def shown(value: object) -> str:
    """Return the `repr` of a value; only its beginning if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write that many digits.
        return "a number of thousands of digits"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}... ({len(text)} characters)"


def check_path(argument: str, value: object) -> None:
    """Raise an `ArgumentError` unless the value can be the path of a file or directory."""
    if not isinstance(value, str | os.PathLike):
        raise _refused(argument, value, "a path, as text or a pathlib.Path")


def check_kind(argument: str, value: object, kind: type, what: str) -> None:
    """Raise an `ArgumentError` unless the value is of that kind."""
    if not isinstance(value, kind):
        message = f"{argument} is of type {type(value).__name__}. It must be {what}"
        raise ArgumentError(message, argument=argument)


def listed(
    argument: str, values: object, fits: Callable[[object], bool], *, what: str
) -> list[Any]:
    """Return the values in a list. Raise an `ArgumentError` if one does not fit, or is no list."""
    if fits(values) or isinstance(values, str) or not isinstance(values, Iterable):
        message = f"{argument} is of type {type(values).__name__}. Give a list of {what}"
        raise ArgumentError(message, argument=argument)
    found = list(values)
    for value in found:
        if not fits(value):
            message = (
                f"{argument} holds a value of type {type(value).__name__}. Give a list of {what}"
            )
            raise ArgumentError(message, argument=argument)
    return found


number_of_seconds = within(number, lambda value: value >= 0, "a number of seconds, 0 or more")


def check_memory(
    what: str, num_bytes: int, device: "torch.device", remedy: str, *, argument: str | None = None
) -> None:
    """Raise an `ArgumentError` if something needs more memory than the device has left."""
    if num_bytes <= SMALL_BYTES:
        return
    left = available_bytes(device)
    if left is not None and num_bytes > left:
        raise ArgumentError(
            f"{what} needs {_size(num_bytes)} of memory, and {device} has {_size(left)} left. "
            f"{remedy}",
            argument=argument,
        )


def available_bytes(device: "torch.device") -> int | None:
    """Return the memory that is left on a device; None if that is not known."""
    if device.type == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + reserved
    if device.type != "cpu":
        return None
    with suppress(OSError), open("/proc/meminfo", encoding="ascii") as file:  # Linux has it.
        for line in file:
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes < 10**15 else f"{num_bytes // 10**12:.1e} TB"

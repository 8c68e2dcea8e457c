"""Descriptions of experiments, by which a run recognises its own when it is resumed.

Settings are described by their values, data by checksums, classes by their qualified names, and
functions of the user by a hash of their code as well. The state of an object that can be called may
change by being used: if it is the only difference, there is a warning and the run resumes.
"""

import functools
import hashlib
import json
import re
import warnings
import zlib
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from fnmatch import fnmatchcase
from itertools import zip_longest
from pathlib import Path, PurePath
from types import (
    BuiltinMethodType,
    CodeType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import torch
from numpy import generic, ndarray
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset, default_collate

from clnp.core.certificate import digest_of
from clnp.core.record import kind_of
from clnp.devices import on_the_host
from clnp.errors import RunError
from clnp.plain import to_json
from clnp.records import RunConfig, TaskDescription
from clnp.training.batches import is_pair, num_samples
from clnp.training.objective import OBJECTIVES, objective_named
from clnp.training.task import Task, check_parts

LIBRARIES = ("clnp.", "torch.", "torchvision.")
"""Functions of these packages are described by their names alone."""
LITERALS = (bytes, complex, generic, torch.dtype, torch.device, Enum, PurePath)
"""Values of these types are described by their `repr`."""
CHUNK_BYTES = 16 << 20
"""The checksum of a tensor is computed from parts of this size."""
STATE = re.compile(r", holding [0-9a-f]{8}")
"""The end of the description of something with a state."""

Plain = Callable[[Any], Any]
Difference = tuple[str, Any, Any]
"""A dotted key, and the two values that it has."""


def plain(value: Any) -> Any:
    """Return a setting as plain data for JSON, in which code and state are hashes."""
    return _plain(value, {})


def _plain(value: Any, known: dict[int, tuple[object, str]]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if id(value) not in known:
        known[id(value)] = (value, "...")  # Functions and objects may refer to themselves.
        found = _describe(value, lambda part: _plain(part, known))
        if not isinstance(found, str):
            del known[id(value)]
            return found
        known[id(value)] = (value, found)
    return known[id(value)][1]


def _describe(value: Any, plain: Plain) -> Any:
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(plain(item)) for item in value)
    if isinstance(value, LITERALS):
        return repr(value)
    if isinstance(value, functools.partial):
        return plain({"partial": value.func, "args": value.args, "keywords": value.keywords})
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {digest_of(value)[:16]}"
    if isinstance(value, ndarray) and not value.dtype.hasobject:
        return f"{value.shape} {_hash(f'{value.dtype} {value.tobytes().hex()}')}"
    if isinstance(value, type):
        return _name(value)
    if callable(value):
        return _describe_callable(value, plain)
    if is_dataclass(value) or isinstance(value, Namespace | SimpleNamespace):
        return plain(_state(value))
    return _name(value)


def _describe_callable(value: Any, plain: Plain) -> str:
    name = _name(value)
    if isinstance(value, FunctionType):
        return name if name.startswith(LIBRARIES) else _describe_function(value, plain)
    if isinstance(value, MethodType | BuiltinMethodType | MethodWrapperType):
        owner = value.__self__
        method: str = plain(value.__func__) if isinstance(value, MethodType) else name
        if owner is None or isinstance(owner, type | ModuleType):
            return method
        return _with_state(method, [plain(owner), plain(_state(owner))])
    if type(value).__module__ == "builtins":
        return name
    code = [plain(getattr(type(value), each, None)) for each in ("__call__", "forward")]
    state = plain(_state(value))
    if is_dataclass(value):  # Its fields are settings, and equal ones are the same.
        return f"{name} {_hash(json.dumps([code, state]))}"
    return _with_state(f"{name} {_hash(json.dumps(code))}", state)


def _describe_function(value: FunctionType, plain: Plain) -> str:
    """Return the name of a function, with a hash of its code, its defaults and its closure."""
    closure = {}
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        with suppress(ValueError):  # The variable is not assigned yet.
            closure[name] = cell.cell_contents
    given = json.dumps(plain([value.__defaults__ or (), value.__kwdefaults__ or {}, closure]))
    code = f"{_code(value.__code__)} {STATE.sub('', given)}"
    found, state = f"{_name(value)} {_hash(code)}", STATE.findall(given)
    return _with_state(found, state) if state else found


def _code(part: object) -> str:
    """Return code, or a constant in it, without lines and comments: the same in every process."""
    if isinstance(part, CodeType):
        return f"{part.co_code.hex()} {part.co_names} {_code(part.co_consts)}"
    if isinstance(part, tuple | frozenset):
        parts = [_code(each) for each in part]
        return f"{type(part).__name__} {parts if isinstance(part, tuple) else sorted(parts)}"
    return repr(part)


def _name(value: object) -> str:
    module = getattr(value, "__module__", type(value).__module__)
    # Runs that were started before modules of this package moved to folders can be resumed.
    module = re.sub(r"^clnp\..*\.", "clnp.", str(module))
    return f"{module}.{getattr(value, '__qualname__', type(value).__qualname__)}"


def _state(value: Any) -> dict[str, Any]:
    """Return the attributes of an object; of a dataclass, those that count when it is compared."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.compare}
    state = object.__getstate__(value)
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    found = {**(slots or {}), **(attributes or {})}
    if isinstance(value, nn.Module):
        found.pop("training", None)
    return found


def _with_state(text: str, state: Any) -> str:
    return f"{STATE.sub('', text)}, holding {_hash(json.dumps(state))}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def fingerprints(tasks: Sequence[Task]) -> tuple[TaskDescription, ...]:
    """Return the description of each task; tensors that tasks share are read once.

    All numbers of tensors count, as they are stored, before `prepare`.
    """
    checksum = functools.cache(_checksum)
    return tuple(_fingerprint(task, checksum) for task in tasks)


def _fingerprint(task: Task, checksum: Callable[[Tensor], str]) -> TaskDescription:
    check_parts(task)
    objective = objective_named(task.objective)
    custom = objective not in OBJECTIVES.values()
    return TaskDescription(
        task.name,
        task.num_outputs,
        objective.name,
        plain(objective.loss) if custom else None,
        plain(objective.score) if custom else None,
        plain(task.prepare),
        *(_describe_data(data, checksum) for data in (task.train, task.validation, task.test)),
    )


def _describe_data(data: Any, checksum: Callable[[Tensor], str]) -> str | None:
    """Return the number of samples and, if they are in tensors, a checksum of all of them."""
    if data is None:
        return None
    size, tensors = f"{num_samples(data)} samples", _tensors(data)
    if tensors is None:
        return size
    text = " ".join(checksum(tensor) for tensor in tensors)
    return f"{size}, {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _tensors(data: Any) -> list[Tensor] | None:
    """Return the tensors that the data consists of; None if samples may differ at every access."""
    if is_pair(data):
        return list(data)
    if isinstance(data, TensorDataset):
        return list(data.tensors)
    if isinstance(data, Subset):
        whole = _tensors(data.dataset)
        return None if whole is None else [*whole, torch.tensor(list(data.indices), device="cpu")]
    if not isinstance(data, list | tuple):
        return None
    try:
        with on_the_host():
            found = list(default_collate(list(data)))
    except (TypeError, ValueError, RuntimeError):
        return None  # Training reports samples of different shapes.
    return found if all(isinstance(each, Tensor) for each in found) else None


def _checksum(tensor: Tensor) -> str:
    """Return the CRC-32 of dtype, shape and bytes."""
    found = zlib.crc32(f"{tensor.dtype} {list(tensor.shape)}".encode())
    if tensor.numel():
        # In parts: a device may have more memory than the host.
        num_rows = max(1, CHUNK_BYTES * len(tensor) // tensor.nbytes)
        for rows in torch.split(tensor.detach(), num_rows):
            # A copy, because a dimension of one element may have any stride.
            part = rows.cpu().flatten().clone(memory_format=torch.contiguous_format)
            found = zlib.crc32(part.view(torch.uint8).numpy().data, found)
    return f"{found:08x}"


def describe_model(model: nn.Module) -> list[str]:
    """Return path, class and settings of each module, and the tensors that these do not imply.

    The values of weights do not count. Everything else does, including dropout rates and dtypes,
    because a resumed run must have the same result; `clnp.core.record.Description` asks for less.
    """
    lines = []
    for path, module in model.named_modules():
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        known = type(module).__module__.startswith("torch.nn.")
        shown = [
            f"{name} {list(tensor.shape)} {tensor.dtype}".removesuffix(" torch.float32")
            for name, tensor in tensors
            if not known or (tensor.is_floating_point() and tensor.dtype != torch.float32)
        ]
        lines.append(", ".join([f"{path} {kind_of(module)}".lstrip(), *shown]))
    return lines


def check_alike(
    now: RunConfig,
    before: RunConfig,
    path: Path,
    *,
    at_least: int | None = None,
    data: bool = True,
) -> int:
    """Return how many of the first tasks of an experiment are those of the run at `path`.

    Without `data`, samples do not count; the name of the recipe and the directory of data never do.

    Raises:
        RunError: If this is fewer than `at_least`, or than the run has, or if anything but tasks
            and their settings differs. It names the first difference.
    """
    names = [task.name for task in before.tasks]
    least = len(names) if at_least is None else at_least
    most = min(len(now.tasks), len(names))

    def difference(num: int) -> Difference | None:
        first = functools.partial(_with_first, names[:num], data=data)
        return _difference(first(now), first(before))

    found = difference(min(least, most))
    if found is not None:
        raise RunError(
            f"{path} contains another experiment: its {_shown(*found, names)}. Restore what has "
            "changed, or choose another directory."
        )
    if len(now.tasks) < least:
        raise RunError(
            f"{path} has a task that the experiment does not have: {names[len(now.tasks)]!r}. Add "
            "it, or choose another directory."
        )
    return next((n for n in range(least, most) if difference(n + 1) is not None), most)


def _with_first(names: Sequence[str], config: RunConfig, *, data: bool) -> dict[str, Any]:
    """Return the config as if it had as many tasks as there are names."""
    found: dict[str, Any] = json.loads(to_json(config))
    samples = () if data else ("train", "validation", "test")
    tasks = [
        {key: value for key, value in task.items() if key not in samples}
        for task in found["tasks"][: len(names)]
    ]
    learner = found["learner"]
    if isinstance(own := learner.get("tasks"), dict):
        # Of patterns, the first that fits counts.
        patterns = ((name, next((p for p in own if fnmatchcase(name, p)), None)) for name in names)
        settings = {name: own.get(name) or own.get(pattern) for name, pattern in patterns}
        learner = {**learner, "tasks": settings}
    return {**found, "tasks": tasks, "learner": learner, "recipe": None, "data": None}


def _difference(now: Any, before: Any, key: str = "") -> Difference | None:
    """Return the first difference between two nested values; a value that is missing is None."""
    if isinstance(now, dict) and isinstance(before, dict):
        names = dict.fromkeys([*now, *before])
        parts = [(name, now.get(name), before.get(name)) for name in names]
    elif isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        parts = list(zip(range(len(now)), now, before, strict=True))
    else:
        return None if _same(now, before) else (key, now, before)
    found = (_difference(here, there, f"{key}.{name}".lstrip(".")) for name, here, there in parts)
    return next((each for each in found if each is not None), None)


def _same(now: Any, before: Any) -> bool:
    """Whether two values are equal but for the state of an object, about which it warns."""
    if now == before or not (isinstance(now, str) and isinstance(before, str)):
        return bool(now == before)
    same = STATE.sub("", now) == STATE.sub("", before)
    if same and STATE.search(before):
        warnings.warn(
            f"The state of {now.split()[0]} is not the one that the run was started with. The run "
            "resumes with the new state.",
            stacklevel=2,
        )
    return same


def _shown(key: str, now: Any, before: Any, names: Sequence[str]) -> str:
    """Return a difference in words."""
    first, _, rest = key.partition(".")
    number, _, rest = rest.partition(".")
    if first == "model":
        lists = (each if isinstance(each, list) else [each] for each in (before, now))
        pairs = zip_longest(*lists, fillvalue="nothing more")
        there, here = next(pair for pair in pairs if pair[0] != pair[1])
        return f"model has {there}, not {here}"
    if first != "tasks":
        return f"{key} is {before!r}, not {now!r}"
    if rest == "name":
        return f"task {int(number) + 1} is {before!r}, not {now!r}"
    name = names[int(number)]
    return f"task {int(number) + 1}, {name!r}, has {rest} {before!r}, not {now!r}"

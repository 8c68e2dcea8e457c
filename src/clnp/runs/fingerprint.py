"""Descriptions of experiments, by which a run recognises its own when it is resumed.

Settings are described by their values, data by checksums, classes by their qualified names, and
functions of the user by a hash of their code as well. Of other objects whose `repr` does not show
their settings only the class is known, so that resuming warns about them.
"""

import functools
import hashlib
import json
import re
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

import torch
from numpy import ndarray
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset, default_collate

from clnp.core.certificate import digest_of
from clnp.core.record import kind_of
from clnp.devices import on_the_host
from clnp.errors import RunError
from clnp.plain import flat, to_json
from clnp.records import RunConfig, TaskDescription
from clnp.training.batches import is_pair, num_samples
from clnp.training.objective import OBJECTIVES, objective_named
from clnp.training.task import Relabelling, Task, check_parts, relabelling

LIBRARIES = ("clnp.", "torch.", "torchvision.")
"""Functions of these packages are described by their names alone."""
CHUNK_BYTES = 16 << 20
"""The checksum of a tensor is computed from parts of this size."""
UNKNOWN = " of unknown state"
"""The end of the description of an object that cannot be compared."""
ADDRESS = re.compile(r" at 0x[0-9a-f]+", re.IGNORECASE)
"""In a `repr`, it tells one object from the next, also if they are equal."""


def plain(value: Any) -> Any:
    """Return a setting as plain data for JSON, in which code is a hash."""
    return _plain(value, {})


def _plain(value: Any, known: dict[int, tuple[Any, Any]]) -> Any:
    """Return a setting; `known` has the objects that were met before, and what they became."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if id(value) not in known:
        known[id(value)] = value, "..."  # Functions and containers may refer to themselves.
        known[id(value)] = value, _describe(value, lambda each: _plain(each, known))
    return known[id(value)][1]


def _describe(value: Any, part: Callable[[Any], Any]) -> Any:
    """Return an object as plain data, of which `part` gives the parts."""
    if isinstance(value, Mapping):
        return {str(key): part(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [part(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(part(item)) for item in value)
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {digest_of(value)[:16]}"
    if isinstance(value, ndarray) and not value.dtype.hasobject:
        return f"{value.shape} {_hash(f'{value.dtype} {value.tobytes().hex()}')}"
    if isinstance(value, functools.partial):
        return part({"partial": value.func, "args": value.args, "keywords": value.keywords})
    if isinstance(value, MethodType):
        return [part(value.__func__), part(value.__self__)]
    if isinstance(value, FunctionType):
        return _describe_function(value, part)
    if isinstance(value, type | BuiltinFunctionType):
        return _name(value)
    settings = _settings(value, part)
    if not callable(value):
        return settings
    code = [part(getattr(type(value), each, None)) for each in ("__call__", "forward")]
    return _hashed(_name(value), json.dumps([code, settings]))


def _settings(value: Any, part: Callable[[Any], Any]) -> Any:
    """Return the settings of an object, or its class if they cannot be seen."""
    if is_dataclass(value):
        return part(
            {each.name: getattr(value, each.name) for each in fields(value) if each.compare}
        )
    shown: Any = " ".join(repr(value).split())
    is_unknown = ADDRESS.search(shown) is not None
    if isinstance(value, nn.Module):
        tensors = value.state_dict()
        shown = [describe_model(value), part(tensors)]
        own = [type(each) for each in value.modules() if not _name(each).startswith(LIBRARIES)]
        silent = any(kind.extra_repr is nn.Module.extra_repr for kind in own)
        # Averages of BatchNorm change by being used.
        is_unknown = silent or any(name.endswith("num_batches_tracked") for name in tensors)
    return _name(value) + UNKNOWN if is_unknown else shown


def _describe_function(value: FunctionType, part: Callable[[Any], Any]) -> str:
    """Return the name of a function, with a hash of its code, its defaults and its closure."""
    name = _name(value)
    if name.startswith(LIBRARIES):
        return name
    closure = {}
    for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        with suppress(ValueError):  # The variable is not assigned yet.
            closure[variable] = cell.cell_contents
    given = part([value.__defaults__ or (), value.__kwdefaults__ or {}, closure])
    return _hashed(name, f"{_code(value.__code__)} {json.dumps(given)}")


def _code(part: object) -> str:
    """Return code, or a constant in it, without lines and comments: the same in every process."""
    if isinstance(part, CodeType):
        return f"{part.co_code.hex()} {part.co_names} {_code(part.co_consts)}"
    if isinstance(part, tuple | frozenset):
        parts = [_code(each) for each in part]
        return f"{type(part).__name__} {parts if isinstance(part, tuple) else sorted(parts)}"
    return repr(part)


def _name(value: object) -> str:
    """Return the qualified name of a class or function, or that of the class of an object."""
    module = getattr(value, "__module__", type(value).__module__)
    # Runs that were started before modules of this package moved to folders can be resumed.
    module = re.sub(r"^clnp\..*\.", "clnp.", str(module))
    return f"{module}.{getattr(value, '__qualname__', type(value).__qualname__)}"


def _hashed(name: str, text: str) -> str:
    return f"{name} {_hash(text)}{UNKNOWN if UNKNOWN in text else ''}"


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
        *(
            _describe_data(data, checksum, relabelling(task, part))
            for part, data in (
                ("training", task.train),
                ("validation", task.validation),
                ("test", task.test),
            )
        ),
    )


def _describe_data(
    data: Any, checksum: Callable[[Tensor], str], relabel: Relabelling | None
) -> str | None:
    """Return the number of samples and, if they are in tensors, a checksum of all of them.

    Labels count as the outputs that they stand for.
    """
    if data is None:
        return None
    if relabel is not None and is_pair(data):
        data = data[0], relabel(data[1])
    size, tensors = f"{num_samples(data)} samples", _tensors(data)
    if relabel is not None and not is_pair(data):
        size += f" of classes {', '.join(map(str, relabel.classes))}"
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

    def difference(num: int) -> tuple[str, object, object] | None:
        here, there = (_first_tasks(each, names[:num], data=data) for each in (now, before))
        pairs = ((key, _value(here, key), _value(there, key)) for key in {**here, **there})
        return next((each for each in pairs if each[1] != each[2]), None)

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
    num_alike = next((n for n in range(least, most) if difference(n + 1) is not None), most)
    alike = _first_tasks(now, names[:num_alike], data=data)
    unknown = [key for key, value in alike.items() if UNKNOWN in str(value)]
    if unknown:
        warnings.warn(
            f"{', '.join(unknown)}: objects whose state is unknown cannot be compared with those "
            "of the run. Make sure that they are the same, or make them dataclasses, whose fields "
            "are compared.",
            stacklevel=2,
        )
    return num_alike


def _first_tasks(config: RunConfig, names: Sequence[str], *, data: bool) -> dict[str, object]:
    """Return the values of a config by dotted key, as if it had only the tasks of these names."""
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
    model = dict(enumerate(found["model"]))
    found |= {"tasks": dict(enumerate(tasks)), "model": model, "learner": learner}
    return {
        key: value
        for key, value in flat(found).items()
        if key not in ("recipe", "data") and value != {}
    }


def _value(values: Mapping[str, object], key: str) -> object:
    """Return the value of a dotted key, or those of all keys below it; None if there is none."""
    if key in values:
        return values[key]
    start = f"{key}."
    return {k.removeprefix(start): v for k, v in values.items() if k.startswith(start)} or None


def _shown(key: str, now: object, before: object, names: Sequence[str]) -> str:
    """Return a difference in words."""
    first, _, rest = key.partition(".")
    if first == "model":
        if before is None:
            return f"model does not have {now}"
        return f"model has {before}, not {now}" if now else f"model also has {before}"
    if first != "tasks":
        return f"{key} is {before!r}, not {now!r}"
    number, _, rest = rest.partition(".")
    if rest == "name":
        return f"task {int(number) + 1} is {before!r}, not {now!r}"
    return f"task {int(number) + 1}, {names[int(number)]!r}, has {rest} {before!r}, not {now!r}"

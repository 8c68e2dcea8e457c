"""Whether an experiment is the one that a run was begun with."""

import json
import re
import warnings
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .certificate import digest_of
from .errors import RunError
from .identity import HOLDING, plain
from .objective import OBJECTIVES, objective_named
from .runs import to_json
from .task import Task


def fingerprint(task: Task) -> dict[str, Any]:
    """What a task is, in a few words: enough to tell another one of the same name."""
    objective = objective_named(task.objective)
    own = objective not in OBJECTIVES.values()
    return {
        "name": task.name,
        "num_outputs": task.num_outputs,
        "objective": objective.name,
        "loss": plain(objective.loss) if own else None,
        "score": plain(objective.score) if own else None,
        "prepare": plain(task.prepare),
        "train": _fingerprint(task.train),
        "validation": _fingerprint(task.validation),
        "test": _fingerprint(task.test),
    }


def _fingerprint(data: Any) -> str | None:
    """Size and, of tensors, the SHA-256 of some samples; the samples of others may be random."""
    if data is None:
        return None
    if not isinstance(data, tuple | list):
        return f"{len(data)} samples"
    inputs, targets = data
    digest = digest_of(torch.cat([_bytes(inputs[_places(len(inputs))]), _bytes(targets)]))
    return f"{len(inputs)} samples, {digest[:16]}"


def _places(num_samples: int) -> Tensor:
    """At most 64 places from the first to the last of so many samples."""
    places = torch.linspace(0, max(num_samples - 1, 0), min(num_samples, 64)).long()
    # The numbers are of 32 bits, which may round the last one up.
    return places.clamp(max=max(num_samples - 1, 0))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def check_alike(now: Mapping[str, Any], before: Mapping[str, Any], path: Path) -> int:
    """How many tasks an experiment adds to those of a run, which come first.

    A `RunError` names the first difference if there is any other. A run may say more than an
    experiment does: what its recipe is called, where its data is.
    """
    here = json.loads(to_json(now))
    there = {name: before[name] for name in here if name in before} if before else before
    given, known = _tasks(here), _tasks(there)
    num = min(len(given), len(known))
    if len(given) != len(known):
        # Which task is another says more than that there are more or fewer.
        here, there = {**here, "tasks": given[:num]}, {**there, "tasks": known[:num]}
        names = [_name(task) for task in known]
        here = {**here, "learner": _settings_of(here.get("learner"), names)}
    found = _difference(here, there, "")
    if found is not None:
        raise RunError(f"{path} holds another experiment: its {_told(*found, known)}")
    if len(given) < len(known):
        raise RunError(f"{path} has a task that is not given: {_name(known[num])!r}")
    return len(given) - len(known)


def _tasks(experiment: Any) -> list[Any]:
    tasks = experiment.get("tasks") if isinstance(experiment, Mapping) else None
    return tasks if isinstance(tasks, list) else []


def _settings_of(learner: Any, names: list[Any]) -> Any:
    """What the learner is told, without the settings of other tasks than these."""
    if not isinstance(learner, dict) or not isinstance(learner.get("tasks"), dict):
        return learner
    used = [n for n in learner["tasks"] if any(t == n or fnmatchcase(str(t), n) for t in names)]
    return {**learner, "tasks": {name: learner["tasks"][name] for name in used}}


def _name(task: Any) -> Any:
    return task.get("name") if isinstance(task, Mapping) else task


def _told(key: str, now: Any, before: Any, tasks: list[Any]) -> str:
    """What differs, in words; that of a task with its number and name."""
    found = re.fullmatch(r"tasks\.(\d+)(?:\.(.*))?", key)
    if found is None:
        return f"{key} is {before!r}, not {now!r}"
    number = int(found[1])
    if found[2] == "name":
        return f"task {number + 1} is {before!r}, not {now!r}"
    return f"task {number + 1}, {_name(tasks[number])!r}, has {found[2]} {before!r}, not {now!r}"


def _difference(now: Any, before: Any, key: str) -> tuple[str, Any, Any] | None:
    """Where two nested values differ first, and both values there; what is missing is None."""
    if isinstance(now, dict) and isinstance(before, dict):
        names = list(dict.fromkeys([*now, *before]))
        pairs = [(f"{key}.{name}".lstrip("."), now.get(name), before.get(name)) for name in names]
    elif isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        pairs = [(f"{key}.{i}", a, b) for i, (a, b) in enumerate(zip(now, before, strict=True))]
    else:
        return None if _same(now, before) else (key, now, before)
    found = (_difference(here, there, name) for name, here, there in pairs)
    return next((each for each in found if each is not None), None)


def _same(now: Any, before: Any) -> bool:
    """Whether both are equal; what objects hold may be another thing, changed by being used."""
    if not (isinstance(now, str) and isinstance(before, str)):
        return bool(now == before)
    here, there = HOLDING.sub("", now), HOLDING.sub("", before)
    if here == there and now != before and HOLDING.search(before):
        name = here.split()[0]
        warnings.warn(
            f"{name} holds something else than when the run was begun; the run goes on with it",
            stacklevel=2,
        )
    return here == there

"""`clnp export`: ended tasks of a run, each as a program in one file."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from clnp.data.labelled import Prepare, prepared
from clnp.errors import ArgumentError, RunError, unknown_name
from clnp.records import OURS, RunResult
from clnp.runs.directory import (
    CHECKPOINT,
    CONFIG,
    RECIPE,
    command,
    expanded,
    read_config,
    read_result,
)
from clnp.studies.study import read_comparison, read_series, run_of
from clnp.studies.verify import Rebuilt, rebuild
from clnp.training.task import Task, relabelling

from .export import Export, kind_of, write
from .formats import Preparation

Answer = tuple[Export | list[Export], str]
MOST_SAMPLES = 1024
"""The largest number of test samples in a check."""


class Deployed(nn.Module):
    """The network of a task behind the preparation of its inputs, whose constants are buffers.

    Deployed(network, prepare)(samples) == network(prepare(samples)), on any device it is moved to.
    """

    order: Tensor | None
    scale: Tensor | None

    def __init__(self, network: nn.Module, prepare: Prepare) -> None:
        super().__init__()
        self.network, self.largest = network, prepare.largest
        self.register_buffer("order", prepare.order)
        self.register_buffer("scale", prepare.scale if prepare.mean else None)

    def forward(self, samples: Tensor) -> Any:
        """Return the outputs of the task for samples as the data set stores them."""
        return self.network(prepared(samples, self.largest, order=self.order, scale=self.scale))


def export(
    path: str,
    *,
    tasks: Sequence[str] | None,
    out: str | None = None,
    kind: str | None = None,
    bare: bool = False,
    device: str | None = None,
    data: str | None = None,
) -> Answer:
    """Write ended tasks of a run to files, after verifying it; `tasks` is None for all of them.

    Returns:
        The export of the task, or a list of exports; and a text about them.
    """
    directory = _one_run(expanded(path))
    names = _checked_tasks(directory, tasks)
    files = _files(directory, names, out, kind, bare=bare)
    rebuilt = rebuild(directory, device=device or "cpu", data=data, verb="export", stand_in=True)
    own = {task.name: task for task in rebuilt.experiment.tasks}
    made = [
        _export(directory, own[name], file, rebuilt, bare)
        for name, file in zip(names, files, strict=True)
    ]
    return made[0] if len(made) == 1 else made, "\n\n".join(map(str, made))


def _export(directory: Path, task: Task, file: Path, rebuilt: Rebuilt, bare: bool) -> Export:
    net, name, prepare = rebuilt.net, task.name, task.prepare
    # As the tasks of all recipes have them.
    assert isinstance(prepare, Prepare)
    assert isinstance(task.test, tuple)
    samples, labels = (part[:MOST_SAMPLES].to(rebuilt.device) for part in task.test)
    relabel = relabelling(task, "test")
    module = net.subnetwork(name)
    if bare:
        samples = prepare(samples)
    else:
        module = Deployed(module, prepare).to(rebuilt.device).eval()

    def reference(batch: Tensor) -> Tensor:
        outputs: Tensor = net(batch if bare else prepare(batch), task=name)
        return outputs

    preparation = Preparation(
        prepare.largest,
        prepare.mean or None,
        prepare.deviation or None,
        None if prepare.order is None else tuple(prepare.order.tolist()),
    )
    known = not rebuilt.absent
    written = write(
        file,
        module,
        reference,
        samples,
        net.certificates[name],
        takes="inputs" if bare else "samples",
        classes=task.classes,
        preparation=preparation,
        labels=None if not known else labels if relabel is None else relabel(labels),
        origin="test" if known else "random",
    )
    many = sum(parameter.numel() for parameter in rebuilt.experiment.model.parameters())
    return replace(written, run=str(directory), num_parameters_of_network=many)


def _one_run(directory: Path) -> Path:
    """Return the run in a directory, or the only run of clnp of a series or comparison in it."""
    known, kind, folder = read_comparison(directory), "comparison", directory / OURS
    if known and OURS not in (known.methods or ()):
        names = ", ".join(known.methods or ())
        raise RunError(f"{directory} compares {names}. Only tasks learned by clnp can be exported.")
    if not known:
        known, kind, folder = read_series(directory), "series", directory
    if not known:
        return directory
    first = run_of(folder, known.seeds[0])
    if len(known.seeds) > 1:
        raise RunError(
            f"{directory} is a {kind} of {len(known.seeds)} runs. Choose one of them: "
            f"`{command('export', first)} --task NAME`."
        )
    return first


def _checked_tasks(directory: Path, tasks: Sequence[str] | None) -> list[str]:
    """Return the names of the tasks to export, before any data is read."""
    if not os.path.isfile(directory / CONFIG):
        what = f"is not a run: it has no {CONFIG}"
        if not os.path.isdir(directory):
            what = "is not a directory" if os.path.exists(directory) else "does not exist"
        raise RunError(f"{directory} {what}. Give the directory of a run.")
    config, result = read_config(directory), read_result(directory) or RunResult()
    names, ended = [task.name for task in config.tasks], [record.task for record in result.tasks]
    if config.method != OURS:
        raise RunError(
            f"{directory} was learned by {config.method}. Only tasks learned by clnp can be "
            "exported."
        )
    if not (directory / RECIPE).is_file():
        raise RunError(
            f"{directory} was started from Python and has no recipe. Use "
            f'clnp.export(clnp.load("{directory / CHECKPOINT}", model), task, file, samples).'
        )
    if tasks is None:
        return ended
    known = f"Ended: {', '.join(map(repr, ended)) or 'none yet'}."
    if not tasks:
        raise ArgumentError(f"no task is given. Choose --task NAME or --all. {known}")
    for task in tasks:
        if task not in names:
            raise ArgumentError(unknown_name("task", task, names))
        if task not in ended:
            raise RunError(f"task {task!r} of {directory} has not ended yet. {known}")
    return list(dict.fromkeys(tasks))


def _files(
    directory: Path, names: Sequence[str], out: str | None, kind: str | None, *, bare: bool
) -> list[Path]:
    """Return the file of each task: the one that is given, or files named after the tasks."""
    if out == "":
        raise ArgumentError("--out is empty. Choose a file or a directory.")
    there = directory if out is None else expanded(out)
    if os.path.isdir(there):
        # Other characters may have a meaning in file names.
        stems = [re.sub(r"[^\w.-]+", "-", name).strip("-.")[:100] or "task" for name in names]
        if len(set(stems)) < len(stems):
            raise ArgumentError("two of the tasks have the same file name. Export them one by one.")
        return [there / f"{stem}{'-bare' if bare else ''}.{kind or 'pt2'}" for stem in stems]
    if len(names) > 1:
        raise ArgumentError(f"--out {out} is not a directory. Create it to export several tasks.")
    if out is not None and out.endswith(("/", os.sep)):
        raise ArgumentError(f"--out {out} does not exist. Create the directory, or give a file.")
    if kind not in (None, kind_of(there)):
        raise ArgumentError(f"--format {kind} contradicts --out {out}. Leave one of them out.")
    return [there]

"""`clnp export`: ended tasks of a run as programs, each in one file."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from clnp.data.labelled import Prepare, prepared
from clnp.errors import ArgumentError, RunError, unknown_name
from clnp.methods.method import OURS, is_ours, method_of
from clnp.runs.directory import (
    CHECKPOINT,
    RECIPE,
    command,
    expanded,
    read_config,
    read_result,
    reading,
)
from clnp.studies.comparison import read_comparison
from clnp.studies.series import read_series, run_of
from clnp.studies.verify import Rebuilt, rebuild
from clnp.training.task import Task

from .export import (
    Comparison,
    check_file,
    checked_classes,
    described,
    kind_of,
    num_parameters,
    shape_told,
    write_tried,
)
from .formats import FORMATS, check_installed

Answer = tuple[Any, str]
MOST_SAMPLES = 1024
"""Samples that a program is tried on, unless the task has fewer."""
MOST_NAMED = 20
"""Classes that are told by name."""


class Deployed(nn.Module):
    """A task's network with what turns stored samples into its inputs, in buffers of its own.

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
        """The outputs of the task for samples as its data set holds them."""
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
    """Write ended tasks of a run as programs, those that answer as the network does.

    The answer is that of the task, or a list of them; `tasks` is None for all that have ended.
    """
    place = _one_run(expanded(path))
    names = _checked_tasks(place, tasks)
    kind = _kind(out, kind, several=len(names) > 1)
    files = {name: _file(place, name, out, kind, bare=bare) for name in names}
    if len(set(files.values())) < len(files):
        raise ArgumentError("two of the tasks would go to the same file; export them one by one")
    check_installed(kind)
    # A program is bound to the kind of device it is made on, and every machine has a CPU.
    rebuilt = rebuild(place, device=device or "cpu", data=data, verb="export", stand_in=True)
    missing = [name for name in names if name not in rebuilt.net.tasks]
    if missing:
        ended = _ended(rebuilt.net.tasks)
        raise RunError(f"task {missing[0]!r} of {place} has not ended yet; {ended}")
    own = {task.name: task for task in rebuilt.experiment.tasks}
    made = [_one(place, own[name], file, rebuilt, bare=bare) for name, file in files.items()]
    text = "\n\n".join(text for _, text in made)
    return (made[0][0] if len(made) == 1 else [answer for answer, _ in made]), text


def _one(
    place: Path, task: Task, file: Path, rebuilt: Rebuilt, *, bare: bool
) -> tuple[dict[str, Any], str]:
    net, name, kind = rebuilt.net, task.name, kind_of(file)
    samples, labels = _samples(task, rebuilt, bare=bare)
    network = net.subnetwork(name)
    prepare: Any = task.prepare  # Those of recipes are all of one kind.
    module = network if bare else Deployed(network, prepare).to(rebuilt.device)
    certificate = net.certificates[name].digest
    takes = "inputs" if bare else "samples"
    note = described(module, samples, task=name, certificate=certificate, takes=takes)
    if task.classes is not None:
        note["classes"] = checked_classes(task.classes, note["outputs"])
    note["preparation"] = _preparation(prepare)
    check_file(file, kind, note)

    def ask(batch: Tensor) -> Tensor:
        found: Tensor = net(batch if bare else prepare(batch), task=name)
        return found

    num_bytes, compared = write_tried(
        file,
        module,
        ask,
        samples,
        note=note,
        labels=None if rebuilt.absent else labels,
        origin="random" if rebuilt.absent else "test",
    )
    answer = {
        "file": str(file),
        "run": str(place),
        "format": kind,
        "device": str(rebuilt.device),
        **note,
        "bytes": num_bytes,
        "num_parameters": num_parameters(network),
        "num_parameters_of_network": num_parameters(rebuilt.experiment.model),
        "check": asdict(compared),
        "load": _load(file, kind, takes),
    }
    return answer, _text(answer, compared, is_absent=bool(rebuilt.absent))


def _one_run(place: Path) -> Path:
    """The run at `place`, or the only one of clnp in a series or comparison there."""
    if comparison := read_comparison(place):
        if OURS not in comparison["methods"]:
            names = ", ".join(comparison["methods"])
            raise RunError(f"{place} compares {names}; only tasks of a run of clnp can be exported")
        return _of_seeds(place, place / OURS, comparison["seeds"], kind="comparison")
    if series := read_series(place):
        return _of_seeds(place, place, series["seeds"], kind="series")
    return place


def _of_seeds(place: Path, folder: Path, seeds: list[Any], *, kind: str) -> Path:
    with reading(place):
        first = run_of(folder, seeds[0])
    if len(seeds) > 1:
        raise RunError(
            f"{place} is a {kind} of {len(seeds)} runs; name one of them: "
            f"{command('export', first)} --task NAME"
        )
    return first


def _checked_tasks(place: Path, tasks: Sequence[str] | None) -> list[str]:
    """The tasks that are asked for, if they are of the run; no data is needed to tell."""
    config = read_config(place)
    with reading(place):
        names = [each["name"] for each in config["tasks"]]
        ended = [each["task"] for each in read_result(place).get("tasks", [])]
    if not is_ours(config):
        raise RunError(
            f"{place} was learnt by {method_of(config)}; only tasks of a run of clnp can be "
            "exported, as networks of their own"
        )
    if not (place / RECIPE).is_file():
        raise RunError(
            f"{place} was begun from Python, and its model is in no file; there, "
            f'clnp.export(clnp.load("{place / CHECKPOINT}", model), task, file, '
            "samples) does it"
        )
    if tasks is None:
        if not ended:
            raise RunError(f"{place} has no ended task yet; there is nothing to export")
        return ended
    if not tasks:
        raise ArgumentError(f"name the task to export, --task NAME, or --all; {_ended(ended)}")
    for task in tasks:
        if task not in names:
            raise ArgumentError(unknown_name("task", task, names))
    return list(dict.fromkeys(tasks))


def _ended(tasks: Any) -> str:
    return f"ended: {', '.join(map(repr, tasks)) or 'none yet'}"


def _kind(out: str | None, kind: str | None, *, several: bool) -> str:
    """The format that is asked for: by its name, or by how the file ends."""
    if out == "":
        raise ArgumentError("--out is empty; name a file, or a directory")
    if out is None or os.path.isdir(expanded(out)):
        return kind or "pt2"
    if several:
        raise ArgumentError(f"--out {out} is no directory, which several tasks need; make one")
    ending = kind_of(expanded(out))
    if kind not in (None, ending):
        raise ArgumentError(f"--format {kind} and --out {out} contradict each other; leave one out")
    return ending


def _file(place: Path, task: str, out: str | None, kind: str, *, bare: bool) -> Path:
    """Where to write the task: what is asked for, or a file of its name there."""
    folder = place if out is None else expanded(out)
    if out is not None and not os.path.isdir(folder):
        return folder
    # As in names of files everywhere: what is no letter, digit, dot or hyphen may mean something.
    safe = re.sub(r"[^\w.-]+", "-", task).strip("-.")[:100] or "task"
    return folder / f"{safe}{'-bare' if bare else ''}.{kind}"


def _samples(task: Task, rebuilt: Rebuilt, *, bare: bool) -> tuple[Tensor, Tensor]:
    """Samples of the test data, on the device, and their labels: as stored, or as inputs."""
    test: Any = task.test  # Those of recipes are tensors.
    samples, labels = (part[:MOST_SAMPLES].to(rebuilt.device) for part in test)
    return task.prepare(samples) if bare and task.prepare else samples, labels


def _preparation(prepare: Prepare) -> dict[str, Any]:
    """What makes inputs of samples, in this order."""
    steps: dict[str, Any] = {"divide_by": prepare.largest}
    if prepare.mean:
        steps |= {"subtract": list(prepare.mean), "then_divide_by": list(prepare.deviation)}
    if prepare.order is not None:
        steps["flatten_and_take"] = prepare.order.tolist()
    return steps


def _load(file: Path, kind: str, takes: str) -> list[str]:
    """Two lines of Python that run the program."""
    name = json.dumps(str(file), ensure_ascii=False)
    if kind == "pt2":
        return ["import torch", f"outputs = torch.export.load({name}).module()({takes})"]
    return [
        "import onnxruntime",
        f'(outputs,) = onnxruntime.InferenceSession({name}).run(None, {{"{takes}": {takes}}})',
    ]


def _text(answer: dict[str, Any], compared: Comparison, *, is_absent: bool) -> str:
    few, many = answer["num_parameters"], answer["num_parameters_of_network"]
    bare = answer["takes"] == "inputs"
    inputs = "prepared inputs" if bare else "samples as clnp reads the data set"
    kind = "an array" if answer["format"] == "onnx" else "a tensor"
    first, second = answer["load"]
    absent = "; the data set is not here" if is_absent else ""
    return "\n".join(
        (
            f"{answer['file']}: task {answer['task']!r} of {answer['run']}, "
            f"{FORMATS[answer['format']]} that needs nothing of clnp",
            f"takes        {inputs}: {kind}, {shape_told(answer['inputs'])}{_left_out(answer)}",
            f"gives        {shape_told(answer['outputs'])}{_classes_told(answer)}",
            f"size         {few:,} parameters, {100 * few / many:.1f} % of the network's {many:,}; "
            f"{answer['bytes'] / 1e3:,.0f} kB",
            f"checked      read back and run on {compared}{absent}",
            f"certificate  {answer['certificate']} (SHA-256, verified)",
            f"load it      {first}",
            f"             {second}",
        )
    )


def _left_out(answer: dict[str, Any]) -> str:
    """How inputs are made of samples, where the program does not do it."""
    if answer["takes"] == "samples":
        return ""
    steps = answer["preparation"]
    told = [f"samples divided by {steps['divide_by']:g}"]
    if "subtract" in steps:
        told.append(f"less {steps['subtract']}, divided by {steps['then_divide_by']}")
    if "flatten_and_take" in steps:
        told.append("in the order that is in the file's clnp.json")
    return f"; {', '.join(told)}"


def _classes_told(answer: dict[str, Any]) -> str:
    """What the outputs stand for, where that is known."""
    classes = answer.get("classes")
    if classes is None:
        return ""
    names = ", ".join(map(str, classes[:MOST_NAMED]))
    more = f" and {len(classes) - MOST_NAMED} more" if len(classes) > MOST_NAMED else ""
    return f": scores of classes {names}{more}, before a softmax"

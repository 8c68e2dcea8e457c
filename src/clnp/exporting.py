"""`clnp export`: an ended task of a run as a program in one file, tried before it is kept."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .atomic import replace_file
from .compare import read_comparison
from .errors import ArgumentError, ExportError, RunError, unknown_name
from .labelled import Prepare, prepared
from .ours import OURS, is_ours, method_of
from .program import FORMATS, INPUT, Program, check_installed, encoded, note_of, opened
from .runs import CHECKPOINT, RECIPE, RESULT, command, expanded, read_config, read_json, reading
from .series import read_series, run_of
from .task import Task
from .verification import Rebuilt, rebuild
from .version import __version__

Answer = tuple[dict[str, Any], str]
SIZES = (1, 2, 7, 64)
"""Batches that a program is tried on first; the others are of the next size."""
BATCH = 256
MOST_SAMPLES = 1024
"""Samples that a program is tried on, unless the task has fewer."""
LOOSE = 1e-3
"""How far outputs may be off by rounding, as a part of the largest one."""


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


@dataclass(frozen=True)
class Comparison:
    """What a program answers, beside what the network answers to the same batches.

    `samples` is "test", or "random" where the data set is not there, and then `num_right` is None.
    """

    samples: str
    num_samples: int
    identical: bool
    largest_difference: float
    num_other_classes: int
    num_right: int | None

    def __str__(self) -> str:
        said = f"{self.num_samples} {self.samples} samples: "
        if self.identical:
            said += "every output is the network's own, to the last bit"
        else:
            others = self.num_other_classes or "no"
            classes = "class differs" if self.num_other_classes == 1 else "classes differ"
            said += f"outputs differ by {self.largest_difference:.1e} at most, {others} {classes}"
        if self.num_right is None:
            return f"{said}; the data set is not here"
        percent = 100 * self.num_right / self.num_samples
        return f"{said}; {percent:.2f} % of them are classified right"


def export(
    path: str,
    *,
    task: str | None,
    out: str | None = None,
    kind: str | None = None,
    bare: bool = False,
    device: str | None = None,
    data: str | None = None,
) -> Answer:
    """Write an ended task of a run as a program, if it answers as the network does."""
    place = _one_run(expanded(path))
    name = _checked_task(place, task)
    kind = _kind(out, kind)
    file = _checked_file(place, name, out, kind)
    check_installed(kind)
    # A program is bound to the kind of device it is made on, and every machine has a CPU.
    rebuilt = rebuild(place, device=device or "cpu", data=data, verb="export", stand_in=True)
    net = rebuilt.net
    if name not in net.tasks:
        raise RunError(f"task {name!r} of {place} has not ended yet; {_ended(net.tasks)}")
    own = next(each for each in rebuilt.experiment.tasks if each.name == name)
    samples, labels = _samples(own, rebuilt, bare=bare)
    network = net.subnetwork(name)
    prepare: Any = own.prepare  # Those of recipes are all of one kind.
    module = network if bare else Deployed(network, prepare).to(rebuilt.device)
    with torch.no_grad():
        outputs = module(samples[:2])
    certificate = net.certificates[name].digest
    about = {
        "task": name,
        "certificate": certificate,
        "inputs": _described(samples),
        "outputs": _described(outputs),
        "prepared": not bare,
        "clnp": __version__,
    }
    example = torch.zeros_like(samples[:2])
    written = encoded(module.eval(), example, kind, about)

    def ask(batch: Tensor) -> Tensor:
        found: Tensor = net(batch if bare else prepare(batch), task=name)
        return found

    compared: list[Comparison] = []

    def check(temporary: Path) -> None:
        program = opened(temporary, kind)
        origin = "random" if rebuilt.absent else "test"
        compared.append(compare(program, ask, samples, labels, origin=origin))

    _write(file, written, check, task=name)
    answer = {
        "file": str(file),
        "run": str(place),
        "format": kind,
        "device": str(rebuilt.device),
        **about,
        "bytes": len(written),
        "num_parameters": _num_parameters(network),
        "num_parameters_of_network": _num_parameters(rebuilt.experiment.model),
        "check": asdict(compared[0]),
        "load": _load(file, kind),
    }
    return answer, _text(answer, compared[0])


def compare(
    program: Program, ask: Program, samples: Tensor, labels: Tensor, *, origin: str
) -> Comparison:
    """Try a program on the samples, in batches of several sizes; an `ExportError` if it is wrong.

    Wrong is what rounding does not explain: a number that is not finite where the network's is, or
    that is off by more than a thousandth of the largest output.
    """
    sizes = [size for index, size in enumerate(SIZES) if sum(SIZES[: index + 1]) <= len(samples)]
    rest = len(samples) - sum(sizes)
    sizes += [BATCH] * (rest // BATCH) + ([rest % BATCH] if rest % BATCH else [])
    found, wanted = [], []
    with torch.no_grad():
        for batch in torch.split(samples, sizes):
            try:
                found.append(program(batch.clone()))
            except Exception as error:  # Whatever its runtime says.
                reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
                raise ExportError(f"it does not run on {len(batch)} samples: {reason}") from error
            wanted.append(ask(batch.clone()))
    got, own = torch.cat(found), torch.cat(wanted)
    if got.shape != own.shape or got.dtype != own.dtype:
        raise ExportError(f"it gives {_told(_described(got))}, not {_told(_described(own))}")
    same = (got == own) | (got.isnan() & own.isnan())
    difference = torch.where(same, 0.0, (got - own).abs()).max().item()
    largest = own[own.isfinite()].abs().max().item() if bool(own.isfinite().any()) else 0.0
    classes = got.argmax(1)
    num_others = int((classes != own.argmax(1)).sum())
    if not difference <= LOOSE * largest:  # Of NaN, nothing is true.
        raise ExportError(
            f"its outputs differ from the network's by {difference:.2g}, which rounding does not "
            f"explain, and {num_others} of {len(samples)} classes are others"
        )
    right = None if origin == "random" else int((classes == labels).sum())
    identical = bool(same.all())
    return Comparison(origin, len(samples), identical, difference, num_others, right)


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


def _checked_task(place: Path, task: str | None) -> str:
    """The task that is asked for, if it is one of the run; no data is needed to tell."""
    config = read_config(place)
    with reading(place):
        names = [each["name"] for each in config["tasks"]]
        ended = [each["task"] for each in read_json(place, RESULT, {}).get("tasks", [])]
    if not is_ours(config):
        raise RunError(
            f"{place} was learnt by {method_of(config)}; only tasks of a run of clnp can be "
            "exported, as networks of their own"
        )
    if task is None:
        raise ArgumentError(f"name the task to export, --task NAME; {_ended(ended)}")
    if task not in names:
        raise ArgumentError(unknown_name("task", task, names))
    if not (place / RECIPE).is_file():
        raise RunError(
            f"{place} was begun from Python, and its model is in no file; there, "
            f'clnp.ContinualNet.load("{place / CHECKPOINT}", model).subnetwork({task!r}) is the '
            "network, a plain module that torch.export takes"
        )
    return task


def _ended(tasks: Any) -> str:
    return f"ended: {', '.join(map(repr, tasks)) or 'none yet'}"


def _kind(out: str | None, kind: str | None) -> str:
    """The format that is asked for: by its name, or by how the file ends."""
    if out is None or os.path.isdir(expanded(out)):
        return kind or "pt2"
    ending = expanded(out).suffix[1:].lower()
    if ending not in FORMATS:
        raise ArgumentError(f"{out!r}: the name of the file must end in .pt2 or .onnx")
    if kind not in (None, ending):
        raise ArgumentError(f"--format {kind} and --out {out} contradict each other; leave one out")
    return ending


def _checked_file(place: Path, task: str, out: str | None, kind: str) -> Path:
    """Where to write; nothing is there but an earlier export of the task."""
    # As in names of files everywhere: what is no letter, digit, dot or hyphen may mean something.
    safe = re.sub(r"[^\w.-]+", "-", task).strip("-.")[:100] or "task"
    file = place / f"{safe}.{kind}" if out is None else expanded(out)
    if os.path.isdir(file):
        raise ArgumentError(f"{file} is a directory; name a file: {file / f'{safe}.{kind}'}")
    if not os.path.isdir(file.parent):
        raise ArgumentError(f"there is no directory {file.parent} to write {file.name} to; make it")
    if os.path.lexists(file) and (note_of(file, kind) or {}).get("task") != task:
        raise ArgumentError(
            f"{file} is there, and no export of task {task!r}; remove it, or name another file, "
            "--out FILE"
        )
    return file


def _samples(task: Task, rebuilt: Rebuilt, *, bare: bool) -> tuple[Tensor, Tensor]:
    """Samples of the test data, on the device, and their labels: as stored, or as inputs."""
    test: Any = task.test  # Those of recipes are tensors.
    samples, labels = (part[:MOST_SAMPLES].to(rebuilt.device) for part in test)
    if len(samples) == 1:  # An example of one sample would make a program for just one.
        samples, labels = samples.repeat_interleave(2, 0), labels.repeat_interleave(2, 0)
    return task.prepare(samples) if bare and task.prepare else samples, labels


def _described(tensor: Tensor) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": ["batch", *tensor.shape[1:]]}


def _told(described: dict[str, Any]) -> str:
    return f"{described['dtype']} [{', '.join(map(str, described['shape']))}]"


def _num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _write(file: Path, data: bytes, check: Callable[[Path], None], *, task: str) -> None:
    try:
        replace_file(file, data, check=check)
    except ExportError as error:
        raise ExportError(f"{file} was not written, for task {task!r}: {error}") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"cannot write {file}: {reason}; name another file, --out FILE") from error


def _load(file: Path, kind: str) -> list[str]:
    """Two lines of Python that run the program."""
    name = json.dumps(str(file), ensure_ascii=False)
    if kind == "pt2":
        return ["import torch", f"outputs = torch.export.load({name}).module()({INPUT})"]
    return [
        "import onnxruntime",
        f'(outputs,) = onnxruntime.InferenceSession({name}).run(None, {{"{INPUT}": {INPUT}}})',
    ]


def _text(answer: dict[str, Any], compared: Comparison) -> str:
    few, many = answer["num_parameters"], answer["num_parameters_of_network"]
    inputs = "samples as the data set holds them" if answer["prepared"] else "prepared inputs"
    first, second = answer["load"]
    return "\n".join(
        (
            f"{answer['file']}: task {answer['task']!r} of {answer['run']}, "
            f"{FORMATS[answer['format']]} that needs nothing of clnp",
            f"takes        {inputs}: {_told(answer['inputs'])}",
            f"gives        {_told(answer['outputs'])}",
            f"size         {few:,} parameters, {100 * few / many:.1f} % of the network's {many:,}; "
            f"{answer['bytes'] / 1e3:,.0f} kB",
            f"checked      read back and run on {compared}",
            f"certificate  {answer['certificate']} (SHA-256, verified)",
            f"load it      {first}",
            f"             {second}",
        )
    )

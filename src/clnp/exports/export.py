"""An ended task as a program in one file, which is tried beside the network before it is kept.

    clnp.export(net, "flowers", "flowers.pt2", x_test)

`program.py` makes and reads the files; `exporting.py` is the command line's way to it.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clnp.core.net import ContinualNet
from clnp.errors import ArgumentError, ExportError, RunError, first_line
from clnp.runs.directory import expanded
from clnp.storage.atomic import replace_file
from clnp.version import __version__

from .formats import FORMATS, Program, check_installed, encoded, note_of, opened

SIZES = (1, 2, 7, 64)
"""Batches that a program is tried on first; the others are of the next size."""
BATCH = 256
LOOSE = 1e-3
"""How far outputs may be off by rounding, as a part of the largest one."""
NOT_ALIKE = ("task", "certificate", "takes")
"""What of a note tells exports apart."""


@dataclass(frozen=True)
class Comparison:
    """What a program answers, beside what the network answers to the same batches.

    `samples` says what kind they are. `num_right` counts those that are classified right, where
    their classes are known.
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
            return said
        percent = 100 * self.num_right / self.num_samples
        return f"{said}; {percent:.2f} % of them are classified right"


def export(
    net: ContinualNet,
    task: str,
    file: str | os.PathLike[str],
    samples: Tensor,
    *,
    classes: Sequence[int | str] | None = None,
) -> dict[str, Any]:
    """Write an ended task as a program that needs nothing of clnp; what it is and how it did.

    The file ends in .pt2, for `torch.export.load`, or in .onnx. It is kept if it answers to
    `samples`, inputs of the network on its device, as the network does; none of them goes into it.
    `classes` says what the outputs stand for, which the file notes. An earlier export of the same
    task is replaced, and nothing else.
    """
    place = expanded(file)
    kind = kind_of(place)
    if not isinstance(samples, Tensor) or samples.ndim == 0 or not len(samples):
        raise ArgumentError("samples must be a tensor, one batch of what the network takes")
    samples = samples.detach()
    network = net.subnetwork(task)
    note = described(network, samples, task=task, certificate=net.certificates[task].digest)
    if classes is not None:
        note["classes"] = checked_classes(classes, note["outputs"])
    check_file(place, kind, note)
    check_installed(kind)

    def ask(batch: Tensor) -> Tensor:
        found: Tensor = net(batch, task=task)
        return found

    num_bytes, found = write_tried(place, network, ask, samples, note=note)
    numbers = {"format": kind, "bytes": num_bytes, "check": asdict(found)}
    return {"file": str(place), **note, **numbers, "num_parameters": num_parameters(network)}


def kind_of(file: Path) -> str:
    """The format that the name of a file asks for."""
    ending = file.suffix[1:].lower()
    if ending not in FORMATS:
        raise ArgumentError(f"'{file}': the name of the file must end in .pt2 or .onnx")
    return ending


def described(
    module: nn.Module, samples: Tensor, *, task: str, certificate: str, takes: str = "inputs"
) -> dict[str, Any]:
    """The note of a program: what it is, what it takes and what it gives."""
    try:
        with torch.no_grad():
            outputs = module(samples[:2])
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        reason = first_line(error)
        raise ArgumentError(
            f"samples of {shape_told(shape_of(samples))} do not fit the network, which must have "
            f"one input: {reason}"
        ) from error
    if not isinstance(outputs, Tensor):
        kind = type(outputs).__name__
        raise ExportError(f"the network gives a {kind}; only one tensor can be exported")
    return {
        "task": task,
        "certificate": certificate,
        "takes": takes,
        "inputs": shape_of(samples),
        "outputs": shape_of(outputs),
        "clnp": __version__,
    }


def checked_classes(classes: Sequence[int | str], outputs: dict[str, Any]) -> list[int | str]:
    """The classes, of which there is one for each output."""
    num = outputs["shape"][1] if len(outputs["shape"]) > 1 else 1
    if len(classes) != num:
        raise ArgumentError(f"classes has {len(classes)} names, and the task {num} outputs")
    return list(classes)


def check_file(file: Path, kind: str, note: dict[str, Any]) -> None:
    """Raise an `ArgumentError` unless the file can be written, or is an earlier one of its kind."""
    if os.path.isdir(file):
        raise ArgumentError(f"{file} is a directory; name a file")
    if not os.path.isdir(file.parent):
        raise ArgumentError(f"there is no directory {file.parent} to write {file.name} to; make it")
    if not os.path.lexists(file):
        return
    known = note_of(file, kind) or {}
    if any(known.get(key) != note[key] for key in NOT_ALIKE):
        raise ArgumentError(
            f"{file} is there, and no earlier export of the same network for task "
            f"{note['task']!r}; remove it, or name another file"
        )


def write_tried(
    file: Path,
    module: nn.Module,
    ask: Program,
    samples: Tensor,
    *,
    note: dict[str, Any],
    labels: Tensor | None = None,
    origin: str = "given",
) -> tuple[int, Comparison]:
    """Write a module as a program if it answers as `ask` does; the bytes, and how it did."""
    kind = kind_of(file)
    # One sample would make a program for just one; and what it is made with goes into the file.
    example = torch.zeros((2, *samples.shape[1:]), dtype=samples.dtype, device=samples.device)
    compared: list[Comparison] = []

    def check(temporary: Path) -> None:
        program = opened(temporary, kind, note["takes"])
        compared.append(compare(program, ask, samples, labels, origin=origin))

    try:
        written = encoded(module.eval(), example, kind, note)
        replace_file(file, written, check=check)
    except ExportError as error:
        told = f"{file} was not written, for task {note['task']!r}: {error}"
        raise ExportError(told) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"cannot write {file}: {reason}; name another file") from error
    return len(written), compared[0]


def compare(
    program: Program, ask: Program, samples: Tensor, labels: Tensor | None, *, origin: str
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
            found.append(_run(program, batch.clone()))
            wanted.append(ask(batch.clone()))
    got, own = torch.cat(found), torch.cat(wanted)
    if got.shape != own.shape or got.dtype != own.dtype:
        raise ExportError(f"it gives {shape_told(shape_of(got))}, not {shape_told(shape_of(own))}")
    finite = own[own.isfinite()]
    if not len(finite):
        raise ExportError("nothing that the network says of these samples is finite; give others")
    same = (got == own) | (got.isnan() & own.isnan())
    difference = torch.where(same, 0.0, (got - own).abs()).max().item()
    largest = finite.abs().max().item()
    # One number for each sample is no class.
    classes, others = (out.argmax(1) if out.ndim > 1 else out.new_zeros(0) for out in (got, own))
    num_others = int((classes != others).sum())
    if not difference <= LOOSE * largest:  # Of NaN, nothing is true.
        raise ExportError(
            f"its outputs differ from the network's by {difference:.2g}, which rounding does not "
            f"explain, and {num_others} of {len(samples)} classes are others"
        )
    right = None if labels is None else int((classes == labels).sum())
    return Comparison(origin, len(samples), bool(same.all()), difference, num_others, right)


def _run(program: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    try:
        return program(batch)
    except Exception as error:  # Whatever its runtime says.
        reason = first_line(error)
        raise ExportError(f"it does not run on {len(batch)} samples: {reason}") from error


def shape_of(tensor: Tensor) -> dict[str, Any]:
    """Type and shape of the samples of a batch."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": ["batch", *tensor.shape[1:]]}


def shape_told(shape: dict[str, Any]) -> str:
    """The same, to be read."""
    return f"{shape['dtype']} [{', '.join(map(str, shape['shape']))}]"


def num_parameters(module: nn.Module) -> int:
    """How many numbers the module has learnt."""
    return sum(parameter.numel() for parameter in module.parameters())

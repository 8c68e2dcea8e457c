"""An ended task as a program in one file, which is kept only if its outputs are the network's."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from clnp.core.certificate import Certificate
from clnp.core.net import ContinualNet, check_net
from clnp.errors import ArgumentError, ExportError, RunError, first_line
from clnp.plain import omitted
from clnp.runs.directory import expanded
from clnp.storage.atomic import replace_file
from clnp.version import __version__

from .formats import (
    FORMATS,
    Note,
    Preparation,
    Program,
    Shape,
    check_installed,
    encode,
    open_program,
    read_note,
)

BATCH = 256
"""Samples in a batch of the check, which starts with a batch of one."""
ROUNDING = 1e-3
"""The largest difference that rounding explains, as a part of the largest output."""
MOST_NAMED = 20
"""The largest number of classes that are shown."""


@dataclass(frozen=True)
class Check:
    """The outputs of a program beside those of the network, for the same samples.

    `samples` is "test", "given", or "random" where the data set is not on this machine.
    `num_right` counts the samples that are classified correctly, where their classes are known.
    """

    samples: str
    num_samples: int
    identical: bool
    largest_difference: float
    num_other_classes: int
    num_right: int | None

    def __str__(self) -> str:
        text = f"{self.num_samples} {self.samples} samples: "
        if self.identical:
            text += "all outputs are identical to the network's"
        else:
            text += f"outputs differ by at most {self.largest_difference:.1e}, "
            text += f"classes of {self.num_other_classes} samples differ"
        if self.num_right is not None:
            text += f"; {100 * self.num_right / self.num_samples:.2f} % are classified correctly"
        if self.samples == "random":
            text += "; the data set is not on this machine"
        return text


@dataclass(frozen=True, kw_only=True)
class Export(Note):
    """A program in a file; its text explains how to use it.

    `format` is "pt2" or "onnx", `load` has two lines of Python that run the program, and
    `num_parameters_of_network` counts those of the model of a run.
    """

    file: str
    run: str | None = omitted()
    format: str
    device: str
    bytes: int
    num_parameters: int
    num_parameters_of_network: int | None = omitted()
    check: Check
    load: tuple[str, str]

    def __str__(self) -> str:
        origin, verified = (f" of {self.run}", ", verified") if self.run else ("", "")
        kind = f"{'an array' if self.format == 'onnx' else 'a tensor'}, {self.inputs}"
        if self.takes == "samples":
            inputs = f"samples as clnp reads the data set: {kind}"
        elif self.preparation is None:
            inputs = f"inputs of the network: {kind}"
        else:
            inputs = f"prepared inputs: {kind}; {self.preparation}"
        outputs = str(self.outputs)
        if self.classes is not None:
            names = ", ".join(map(str, self.classes[:MOST_NAMED]))
            more = f", ... ({len(self.classes)})" if len(self.classes) > MOST_NAMED else ""
            outputs += f": scores of classes {names}{more}, before a softmax"
        size = f"{self.num_parameters:,} parameters"
        if many := self.num_parameters_of_network:
            size += f", {100 * self.num_parameters / many:.1f} % of the network's {many:,}"
        return "\n".join(
            (
                f"{self.file}: task {self.task!r}{origin}, {FORMATS[self.format]} that runs "
                "without clnp",
                f"inputs       {inputs}",
                f"outputs      {outputs}",
                f"size         {size}; {self.bytes / 1e3:,.0f} kB",
                f"check        read back and run on {self.check}",
                f"certificate  {self.certificate} (SHA-256{verified})",
                f"to run it    {self.load[0]}",
                f"             {self.load[1]}",
            )
        )


def export(
    net: ContinualNet,
    task: str,
    file: str | os.PathLike[str],
    samples: Tensor,
    *,
    classes: Sequence[int | str] | None = None,
) -> Export:
    """Write an ended task to a file that runs without clnp.

    The file is read back and run on `samples`. It is kept only if its outputs are those of the
    network, up to rounding. An earlier export of the same task is replaced.

    Args:
        net: The network.
        task: The name of an ended task.
        file: The file to write. It ends in `.pt2`, for `torch.export.load`, or in `.onnx`.
        samples: Inputs of the network, [batch, ...], on its device. The file does not contain them.
        classes: The classes that the outputs stand for, to be noted in the file.

    Returns:
        A description of the file: the shapes of its inputs and outputs, its size, and in `check`
        how its outputs compare with those of the network.

    Raises:
        ArgumentError: If the file cannot be written, or the samples do not fit the network.
        ExportError: If the network cannot be exported, or the outputs of the file differ.

    Example:
        >>> answer = clnp.export(net, "flowers", "flowers.pt2", x_test)
        >>> answer.check.identical
        True
        >>> outputs = torch.export.load("flowers.pt2").module()(x_test)
    """
    check_net(net)
    if not isinstance(samples, Tensor) or samples.ndim == 0 or not len(samples):
        raise ArgumentError(
            "samples is not a batch. Give a tensor of inputs of the network, [batch, ...]."
        )
    path, module = expanded(file), net.subnetwork(task)

    def reference(batch: Tensor) -> Tensor:
        outputs: Tensor = net(batch, task=task)
        return outputs

    return write(path, module, reference, samples, net.certificates[task], classes=classes)


def kind_of(file: Path) -> str:
    """Return the format that the name of a file stands for."""
    if (ending := file.suffix[1:].lower()) not in FORMATS:
        raise ArgumentError(f"{file} has no known format. Use a name that ends in .pt2 or .onnx.")
    return ending


def write(
    file: Path,
    module: nn.Module,
    reference: Program,
    samples: Tensor,
    certificate: Certificate,
    *,
    takes: str = "inputs",
    classes: Sequence[int | str] | None = None,
    preparation: Preparation | None = None,
    labels: Tensor | None = None,
    origin: str = "given",
) -> Export:
    """Write a module as a program, if its outputs for the samples are those of the reference."""
    kind, task = kind_of(file), certificate.task
    outputs = _outputs(module, samples[:2])
    num = outputs.shape[1] if outputs.ndim > 1 else 1
    if classes is not None and len(classes) != num:
        raise ArgumentError(
            f"classes has {len(classes)} entries, but task {task!r} has {num} outputs. Give one "
            "class for each output."
        )
    note = Note(
        task=task,
        certificate=certificate.digest,
        takes=takes,
        inputs=Shape.of(samples),
        outputs=Shape.of(outputs),
        clnp=__version__,
        classes=None if classes is None else tuple(classes),
        preparation=preparation,
    )
    _check_file(file, kind, note)
    check_installed(kind)
    # The file contains the example. Of one sample, PyTorch would make a program for one only.
    example = torch.zeros((2, *samples.shape[1:]), dtype=samples.dtype, device=samples.device)
    checks: list[Check] = []

    def check(written: Path) -> None:
        program = open_program(written, kind)
        checks.append(check_outputs(program, reference, samples, labels, origin=origin))

    try:
        encoded = encode(module.eval(), example, kind, note)
        replace_file(file, encoded, check=check)
    except ExportError as error:
        raise ExportError(
            f"task {task!r} was not written to {file}: {error}. Change the forward of the model, "
            f"or use net.subnetwork({task!r})."
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"cannot write {file}: {reason}. Choose another file.") from error
    return Export(
        **vars(note),
        file=str(file),
        format=kind,
        device=str(samples.device),
        bytes=len(encoded),
        num_parameters=sum(parameter.numel() for parameter in module.parameters()),
        check=checks[0],
        load=_load(file, kind, takes),
    )


def _outputs(module: nn.Module, samples: Tensor) -> Tensor:
    try:
        with torch.no_grad():
            outputs = module(samples)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ArgumentError(
            f"samples of {Shape.of(samples)} do not fit the network: {first_line(error)}. Give "
            "one tensor of its inputs, on its device."
        ) from error
    if not isinstance(outputs, Tensor):
        raise ExportError(
            f"the network returns a {type(outputs).__name__}. Only a network that returns one "
            "tensor can be exported."
        )
    return outputs


def _check_file(file: Path, kind: str, note: Note) -> None:
    """Raise an `ArgumentError` unless the file is new, or an earlier export of the same task."""
    if not os.path.isdir(file.parent):
        raise ArgumentError(
            f"the directory {file.parent} does not exist. Create it, or choose another one."
        )
    known = read_note(file, kind) if os.path.lexists(file) else note
    if known is None or known.identity != note.identity:
        raise ArgumentError(
            f"{file} exists, and is not an earlier export of task {note.task!r} of this network. "
            "Remove it, or choose another name."
        )


def check_outputs(
    program: Program,
    reference: Program,
    samples: Tensor,
    labels: Tensor | None = None,
    *,
    origin: str = "given",
) -> Check:
    """Compare outputs for one sample alone and for all in batches.

    Raises:
        ArgumentError: If no output of the network is finite.
        ExportError: If they differ by more than rounding explains.
    """
    found, expected = [], []
    with torch.no_grad():
        for batch in (samples[:1], *torch.split(samples.detach(), BATCH)):
            try:
                found.append(program(batch.clone()))
            except Exception as error:  # Each runtime has its own.
                reason = first_line(error)
                raise ExportError(f"it does not run on {len(batch)} samples: {reason}") from error
            expected.append(reference(batch.clone()))
    got, own = torch.cat(found), torch.cat(expected)
    if got.shape != own.shape or got.dtype != own.dtype:
        raise ExportError(f"its outputs are {Shape.of(got)}, not {Shape.of(own)}")
    finite = own[own.isfinite()]
    if not len(finite):
        raise ArgumentError(
            "all outputs of the network for these samples are NaN or infinite. Give other samples."
        )
    same = (got == own) | (got.isnan() & own.isnan())
    difference = torch.where(same, 0.0, (got - own).abs()).max().item()
    # Outputs of one dimension have no classes. The first sample was run twice.
    classes, others = (x[1:].argmax(1) if x.ndim > 1 else x.new_zeros(0) for x in (got, own))
    num_others = int((classes != others).sum())
    if not difference <= ROUNDING * finite.abs().max().item():  # It may be NaN.
        raise ExportError(
            f"its outputs differ from the network's by {difference:.2g}, more than rounding "
            f"explains, and classes of {num_others} of {len(samples)} samples differ"
        )
    right = None if labels is None else int((classes == labels).sum())
    return Check(origin, len(samples), bool(same.all()), difference, num_others, right)


def _load(file: Path, kind: str, takes: str) -> tuple[str, str]:
    """Return two lines of Python that run the program."""
    name = json.dumps(str(file), ensure_ascii=False)
    if kind == "pt2":
        return "import torch", f"outputs = torch.export.load({name}).module()({takes})"
    run = f'InferenceSession({name}).run(None, {{"{takes}": {takes}}})'
    return "import onnxruntime", f"(outputs,) = onnxruntime.{run}"

"""A module as a program in one file, in the format of `torch.export` or ONNX, and back.

    encode(module, example, "pt2", note)      the bytes of the file
    open_program(file, "pt2")(samples)        its outputs, for any number of samples

The file contains a note, JSON in its metadata, that describes the program.
"""

import contextlib
import io
import json
import logging
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from clnp.core.structure.kinds import keeps_statistics
from clnp.errors import ExportError, first_line
from clnp.plain import omitted, read, to_plain
from clnp.runs.trackers import require

FORMATS = {"pt2": "a PyTorch program", "onnx": "an ONNX model"}
OUTPUTS = "outputs"
"""The name of the outputs of an ONNX model."""
NOTE = "clnp.json"
BATCH = "batch"
MOST_NORMED = 65_535
"""The largest batch that cuDNN can normalise."""
TRACES = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")
"""Metadata of operations with names of classes and paths of this machine."""

Program = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Shape:
    """The type and the shape of a batch; the first entry of the shape is "batch"."""

    dtype: str
    shape: tuple[int | str, ...]

    @staticmethod
    def of(tensor: Tensor) -> "Shape":
        """Return the shape of a batch."""
        return Shape(str(tensor.dtype).removeprefix("torch."), (BATCH, *tensor.shape[1:]))

    def __str__(self) -> str:
        return f"{self.dtype} [{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Preparation:
    """The steps from samples as they are stored to inputs, in this order."""

    divide_by: float
    subtract: tuple[float, ...] | None = omitted()
    then_divide_by: tuple[float, ...] | None = omitted()
    flatten_and_take: tuple[int, ...] | None = omitted()

    def __str__(self) -> str:
        text = f"samples divided by {self.divide_by:g}"
        if self.subtract is not None and self.then_divide_by is not None:
            text += f", minus {list(self.subtract)}, divided by {list(self.then_divide_by)}"
        if self.flatten_and_take is not None:
            text += f", in the order stored in the {NOTE} of the file"
        return text


@dataclass(frozen=True, kw_only=True)
class Note:
    """The description of a program, in its file.

    It `takes` "samples" of the data set, or "inputs" that have been prepared.
    """

    task: str
    certificate: str
    takes: str
    inputs: Shape
    outputs: Shape
    clnp: str
    classes: tuple[int | str, ...] | None = omitted()
    preparation: Preparation | None = omitted()  # noqa: RUF009

    @property
    def identity(self) -> tuple[str, str, str]:
        """The same for all programs of one task of one network that take the same inputs."""
        return self.task, self.certificate, self.takes


def check_installed(kind: str) -> None:
    """Raise a `RunError` if a package that this format needs is not installed."""
    if kind == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            require(package, "onnx")


def encode(module: nn.Module, example: Tensor, kind: str, note: Note) -> bytes:
    """Return the module as a program for batches of any size.

    The example, a batch of two on the device of the module, is part of the file: it must not be
    data of the user.
    """
    try:
        with _silence():
            exported = _export(module, example)
            if kind == "onnx":
                return _onnx(exported, example, note)
            file = io.BytesIO()
            torch.export.save(exported, file, extra_files={NOTE: json.dumps(to_plain(note))})
            return file.getvalue()
    except (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError) as error:
        reason = first_line(error)
        if "specialized it to be a constant" in str(error):
            reason = (
                "its forward fixes the number of samples, as len(x) does; use x.shape[0], "
                "x.flatten(1) or x.view(-1, ...)"
            )
        elif f"Constraints violated ({BATCH})" in reason:
            reason = "its forward does something else for other numbers of samples"
        raise ExportError(f"PyTorch cannot make {FORMATS[kind]} of it: {reason}") from error


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Hide warnings of PyTorch about its own calls and about packages that are not installed."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _export(module: nn.Module, example: Tensor) -> ExportedProgram:
    """Return the operations of the module, without metadata about its source."""
    normed = any(map(keeps_statistics, module.modules()))
    most = MOST_NORMED if normed and example.device.type == "cuda" else None
    batch = ({0: Dim(BATCH, min=1, max=most)},)
    exported = torch.export.export(module, (example,), dynamic_shapes=batch, strict=False)
    for node in exported.graph.nodes:
        for name in TRACES:
            node.meta.pop(name, None)
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            # The dtype of samples is fixed; their device is not, so that a program can be moved.
            node.kwargs = {"dtype": node.kwargs["dtype"]}
    exported.graph_module.recompile()
    return exported


def _onnx(exported: ExportedProgram, example: Tensor, note: Note) -> bytes:
    made = torch.onnx.export(
        exported,
        (example,),
        input_names=[note.takes],
        output_names=[OUTPUTS],
        dynamo=True,
        verbose=False,
    )
    assert made is not None
    model: Any = made.model_proto
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = BATCH
    # Inner values have another name for the batch.
    del model.graph.value_info[:]
    model.metadata_props.add(key=NOTE, value=json.dumps(to_plain(note)))
    encoded: bytes = model.SerializeToString()
    return encoded


def open_program(file: Path, kind: str) -> Program:
    """Return the program in a file; an ONNX model runs on the CPU."""
    try:
        if kind == "pt2":
            with file.open("rb") as stream, _silence():
                program: Program = torch.export.load(stream).module()
            return program
        import onnxruntime  # type: ignore[import-untyped]

        session = onnxruntime.InferenceSession(
            file.read_bytes(), providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # Both have exceptions of many kinds.
        raise ExportError(f"it cannot be read back: {first_line(error)}") from error
    (inputs,) = session.get_inputs()

    def run(samples: Tensor) -> Tensor:
        (found,) = session.run([OUTPUTS], {inputs.name: samples.cpu().numpy()})
        return torch.from_numpy(found).to(samples.device)

    return run


def read_note(file: Path, kind: str) -> Note | None:
    """Return the note in a program; None if the file is not a program with a note."""
    try:
        if kind == "pt2":
            with zipfile.ZipFile(file) as archive:
                names = [name for name in archive.namelist() if name.endswith(f"/extra/{NOTE}")]
                text = archive.read(names[0]).decode()
        else:
            import onnx

            model = onnx.load(file, load_external_data=False)
            text = {each.key: each.value for each in model.metadata_props}[NOTE]
        return read(Note, json.loads(text))
    except Exception:  # Other files cause exceptions of many kinds.
        return None

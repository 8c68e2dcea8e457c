"""A module as a program in one file, which needs nothing of clnp: PyTorch's own kind, or ONNX.

    encoded(module, example, "pt2", note)      its bytes; any number of samples from 1 on
    opened(file, "pt2")(samples)               its outputs, read back from the file

A note goes with it, JSON in the file's own metadata, that says what it is and where it comes from.
"""

import contextlib
import io
import json
import logging
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from clnp.core.structure.kinds import keeps_statistics
from clnp.errors import ExportError, first_line
from clnp.runs.trackers import require

FORMATS = {"pt2": "a PyTorch program", "onnx": "an ONNX model"}
INPUT, OUTPUT = "samples", "outputs"
"""What inputs and outputs are called in an ONNX model; inputs have the name that the note has."""
NOTE = "clnp.json"
BATCH = "batch"
MOST_NORMED = 65_535
"""Samples that cuDNN normalises at once; a program that is made on a GPU takes no more."""
TRACES = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")
"""What PyTorch notes of each operation: classes, and paths of files on this machine."""

Program = Callable[[Tensor], Tensor]


def check_installed(kind: str) -> None:
    """Raise a `RunError` that says what to install, if programs of that kind need more."""
    if kind == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            require(package, "onnx")


def encoded(module: nn.Module, example: Tensor, kind: str, note: Mapping[str, Any]) -> bytes:
    """The module as a program of that kind; `example` is two samples, on its device.

    Both kinds keep the example, or may: it should be none of the user's data.
    """
    try:
        with _in_silence():
            exported = _exported(module, example)
            if kind == "onnx":
                return _onnx(exported, example, note)
            file = io.BytesIO()
            torch.export.save(exported, file, extra_files={NOTE: json.dumps(note)})
            return file.getvalue()
    except (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError) as error:
        reason = first_line(error)
        if "specialized it to be a constant" in str(error):
            reason = (
                "its forward settles for one number of samples, as len(x) does; write x.shape[0], "
                "x.flatten(1) or x.view(-1, ...)"
            )
        elif f"Constraints violated ({BATCH})" in reason:
            reason = "what its forward does depends on the number of samples"
        raise ExportError(f"PyTorch cannot make {FORMATS[kind]} of it: {reason}") from error


@contextlib.contextmanager
def _in_silence() -> Iterator[None]:
    """Let parts of PyTorch not warn of how they call one another, or of what is not installed."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _exported(module: nn.Module, example: Tensor) -> ExportedProgram:
    """The operations of the module, with any number of samples and free of what is ours."""
    normed = any(map(keeps_statistics, module.modules()))
    most = MOST_NORMED if normed and example.device.type == "cuda" else None
    batch = ({0: Dim(BATCH, min=1, max=most)},)
    exported = torch.export.export(module, (example,), dynamic_shapes=batch, strict=False)
    for node in exported.graph.nodes:
        for name in TRACES:
            node.meta.pop(name, None)
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            # Where samples are is the user's choice, module().to("cuda"); what they are is not.
            node.kwargs = {"dtype": node.kwargs["dtype"]}
    exported.graph_module.recompile()
    return exported


def _onnx(exported: ExportedProgram, example: Tensor, note: Mapping[str, Any]) -> bytes:
    made = torch.onnx.export(
        exported,
        (example,),
        dynamo=True,
        input_names=[note.get("takes", INPUT)],
        output_names=[OUTPUT],
        verbose=False,
    )
    assert made is not None
    model: Any = made.model_proto
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = BATCH
    # These are of inner values, and have the batch under another name.
    del model.graph.value_info[:]
    model.metadata_props.add(key=NOTE, value=json.dumps(note))
    encoded: bytes = model.SerializeToString()
    return encoded


def opened(file: Path, kind: str, takes: str = INPUT) -> Program:
    """The program in the file; on the device that it is for, an ONNX model on the CPU.

    `takes` is what the inputs of an ONNX model are called.
    """
    try:
        if kind == "pt2":
            with file.open("rb") as stream, _in_silence():
                program: Program = torch.export.load(stream).module()
            return program
        import onnxruntime  # type: ignore[import-untyped]

        session = onnxruntime.InferenceSession(
            file.read_bytes(), providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # Both have errors of their own, of which some derive from nothing.
        reason = first_line(error)
        raise ExportError(f"it cannot be read back: {reason}") from error

    def run(samples: Tensor) -> Tensor:
        found = session.run([OUTPUT], {takes: samples.cpu().numpy()})[0]
        return torch.from_numpy(found).to(samples.device)

    return run


def note_of(file: Path, kind: str) -> dict[str, Any] | None:
    """The note in a program of that kind; None if it is no such file, or has none."""
    try:
        if kind == "pt2":
            with zipfile.ZipFile(file) as archive:
                inside = [name for name in archive.namelist() if name.endswith(f"/extra/{NOTE}")]
                text = archive.read(inside[0])
        else:
            import onnx

            model = onnx.load(file, load_external_data=False)
            text = {each.key: each.value for each in model.metadata_props}[NOTE]
        found = json.loads(text)
    except Exception:  # Whatever is no such file: each kind has errors of its own.
        return None
    return found if isinstance(found, dict) else None

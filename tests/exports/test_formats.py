import functools
import importlib.util
import io
import re
import subprocess
import sys
import zipfile

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from clnp import ContinualNet, extras
from clnp.data import models
from clnp.data.labelled import Prepare
from clnp.errors import ExportError, RunError
from clnp.exports.formats import (
    Note,
    Preparation,
    Shape,
    _export,
    check_installed,
    encode,
    open_program,
    read_note,
)
from clnp.exports.from_run import Deployed

COLOURS = Prepare(255.0, mean=(0.4, 0.5, 0.6), deviation=(0.2, 0.3, 0.2))
REVERSED = Prepare(16.0, torch.arange(63, -1, -1))
NETWORKS = {
    "mlp": (models.MLP(64, (30, 30), 6), (1, 8, 8), REVERSED, "single"),
    "narrow": (models.NarrowCNN(6, widths=(6, 6, 8, 8, 20)), (3, 32, 32), COLOURS, "multi"),
    "wide": (models.WideCNN(6, widths=(6, 6, 8, 8, 20)), (3, 32, 32), COLOURS, "single"),
}
"""The networks of the recipes: a model, the shape of a sample, its preparation, and the head."""
SIZES = (1, 2, 7, 64, 256)
NOTE = Note(
    task="blumen & bäume",
    certificate="0" * 64,
    takes="samples",
    inputs=Shape("uint8", ("batch", 3)),
    outputs=Shape("float32", ("batch", 2)),
    clnp="1",
    classes=("rose", "tulip"),
    preparation=Preparation(255.0, flatten_and_take=(1, 0, 2)),
)


@pytest.fixture(params=["pt2", "onnx"])
def kind(request):
    if request.param == "onnx":
        pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    return request.param


def samples(shape, num=2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(256, (num, *shape), generator=draw, dtype=torch.uint8)


def learned(name, empty=None):
    """A network with two ended tasks of random weights, without neurons of a group or of "all"."""
    model, shape, _, head = NETWORKS[name]
    torch.manual_seed(0)
    net = ContinualNet(model, torch.zeros(2, *shape), head=head)
    for task in ("a", "b"):
        net.begin_task(task, 6 if head == "single" else 4)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(torch.randn_like(parameter) / 10)
        free = net.ledger.free().items()
        net.end_task(
            {group: range(0 if empty in (group, "all") else (num + 1) // 2) for group, num in free}
        )
    return net


@functools.cache
def encoded(name, kind):
    """The second task of a network, and its program with the preparation of samples."""
    net, (_, shape, prepare, _) = learned(name), NETWORKS[name]
    module = Deployed(net.subnetwork("b"), prepare).eval()
    return net, encode(module, samples(shape), kind, NOTE)


@pytest.fixture
def file(kind, tmp_path):
    return tmp_path / f"x.{kind}"


@pytest.mark.parametrize("name", NETWORKS)
def test_a_program_has_the_outputs_of_the_network(name, kind, file):
    net, data = encoded(name, kind)
    _, shape, prepare, _ = NETWORKS[name]
    file.write_bytes(data)
    program = open_program(file, kind)
    for size in SIZES:
        batch = samples(shape, size, seed=size)
        with torch.no_grad():
            found, expected = program(batch), net(prepare(batch), task="b")
        if kind == "pt2":
            assert torch.equal(found, expected), size
        else:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("empty", "kind"), [("conv1", "pt2"), ("all", "pt2"), ("all", "onnx")])
def test_a_task_without_a_neuron_of_some_group_can_be_exported(empty, kind, tmp_path):
    if kind == "onnx":
        pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    net, file, x = learned("narrow", empty), tmp_path / f"x.{kind}", torch.rand(7, 3, 32, 32)
    file.write_bytes(encode(net.subnetwork("b"), x[:2], kind, NOTE))
    with torch.no_grad():
        found, expected = open_program(file, kind)(x), net(x, task="b")
    tolerance = 0.0 if kind == "pt2" else 1e-4
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_a_program_has_no_paths_and_classes_of_this_machine(kind):
    _, data = encoded("wide", kind)
    parts = [data]
    if kind == "pt2":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = [archive.read(name) for name in archive.namelist()]
    for part in parts:
        assert not re.search(rb"\.py\b|clnp\.models|WideCNN", part)


def test_programs_run_without_clnp(tmp_path):
    runs = {"pt2": "torch.export.load('x.pt2').module()(x)"}
    if importlib.util.find_spec("onnxruntime"):
        session = "__import__('onnxruntime').InferenceSession('x.onnx')"
        runs["onnx"] = f"torch.tensor({session}.run(None, {{'samples': x.numpy()}})[0])"
    for kind in runs:
        net, data = encoded("mlp", kind)
        (tmp_path / f"x.{kind}").write_bytes(data)
    _, shape, prepare, _ = NETWORKS["mlp"]
    batch = samples(shape, 5)
    torch.save((batch, net(prepare(batch), task="b").detach()), tmp_path / "known.pt")
    code = "import sys, torch; sys.modules['clnp'] = None; x, y = torch.load('known.pt'); "
    code += "".join(f"torch.testing.assert_close({run}, y); " for run in runs.values())
    command = [sys.executable, "-c", f"{code} print('the same')"]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True)
    assert done.stdout == "the same\n", done.stderr


@pytest.mark.parametrize("name", ["mlp", "wide"])
def test_a_program_can_be_moved_to_another_device_but_has_a_fixed_dtype(name, tmp_path):
    file, shape = tmp_path / "x.pt2", NETWORKS[name][1]
    file.write_bytes(encoded(name, "pt2")[1])
    program = open_program(file, "pt2")
    with pytest.raises(RuntimeError, match="dtype"):
        program(torch.rand(2, *shape))
    for node in program.graph.nodes:
        given = (*node.args, *node.kwargs.values())
        assert not any(isinstance(each, torch.device) for each in given)
    # The meta device has no numbers, and every machine has one.
    found = program.to("meta")(samples(shape, 5).to("meta"))
    assert (found.device.type, found.shape) == ("meta", (5, 6))


def test_the_note_is_read_back_and_other_files_have_none(kind, file, tmp_path):
    _, data = encoded("mlp", kind)
    file.write_bytes(data)
    assert read_note(file, kind) == NOTE
    for wrong in (b"", b"hello", data[: len(data) // 2]):
        file.write_bytes(wrong)
        assert read_note(file, kind) is None
        with pytest.raises(ExportError, match=r"^it cannot be read back: \S"):
            open_program(file, kind)
    assert read_note(tmp_path, kind) is None
    torch.save({}, file)
    assert read_note(file, kind) is None


def test_the_error_says_why_pytorch_cannot_export_a_module():
    class Branches(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(ExportError, match=r"^PyTorch cannot make a PyTorch program of it: \S"):
        encode(Branches(), torch.zeros(2, 3), "pt2", NOTE)


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_onnx_needs_an_extra(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # Python takes it for a missing package.
    for other in {"onnx", "onnxscript", "onnxruntime"} - {package}:
        monkeypatch.setitem(sys.modules, other, torch)
    check_installed("pt2")
    message = f"{package} is not installed. Install it with {extras.command('onnx')}."
    with pytest.raises(RunError, match=re.escape(message)):
        check_installed("onnx")


@pytest.mark.parametrize(("norm", "most"), [(nn.BatchNorm2d, 65_535), (nn.Identity, None)])
def test_a_program_for_a_gpu_takes_as_many_samples_as_cudnn_normalises(norm, most):
    with FakeTensorMode(allow_non_fake_inputs=True):  # It needs no GPU.
        layers = nn.Conv2d(3, 4, 3, device="cuda"), norm(4, device="cuda")
        example = torch.zeros(2, 3, 8, 8, device="cuda")
        exported = _export(nn.Sequential(*layers).eval(), example)
    (limits,) = exported.range_constraints.values()
    assert int(limits.lower) <= 1
    assert (int(limits.upper) if most else None) == most
    assert most or limits.upper > 10**9


@pytest.mark.gpu
@pytest.mark.parametrize("name", NETWORKS)
def test_a_program_on_a_gpu(name, tmp_path):
    _, shape, prepare, _ = NETWORKS[name]
    net, file = learned(name).cuda(), tmp_path / "x.pt2"
    module = Deployed(net.subnetwork("b"), prepare).cuda().eval()
    file.write_bytes(encode(module, samples(shape).cuda(), "pt2", NOTE))
    own = open_program(file, "pt2")
    file.write_bytes(encode(module.cpu(), samples(shape), "pt2", NOTE))
    moved = open_program(file, "pt2").cuda()
    for size in SIZES:
        batch = samples(shape, size, seed=size).cuda()
        with torch.no_grad():
            expected = net(prepare(batch), task="b")
            assert torch.equal(own(batch), expected)
            assert torch.equal(moved(batch), expected)

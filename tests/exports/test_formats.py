import io
import re
import subprocess
import sys
import zipfile

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from clnp import ContinualNet
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
NETWORKS = {
    "mlp": (models.MLP(64, (30, 30), 6), (1, 8, 8), Prepare(16.0, torch.arange(63, -1, -1))),
    "narrow": (models.NarrowCNN(6, widths=(6, 6, 8, 8, 20)), (3, 32, 32), COLOURS),
    "wide": (models.WideCNN(6, widths=(6, 6, 8, 8, 20)), (3, 32, 32), COLOURS),
}
SIZES = (1, 2, 7, 64)
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


def half(group, num):
    return (num + 1) // 2


def learned(model, shape, *, head="multi", keep=half):
    """A network with two ended tasks of random weights."""
    torch.manual_seed(0)
    net = ContinualNet(model, torch.zeros(2, *shape), head=head)
    for name in ("a", "b"):
        net.begin_task(name, 6 if head == "single" else 4)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(torch.randn_like(parameter) / 10)
        net.end_task({group: range(keep(group, num)) for group, num in net.ledger.free().items()})
    return net


def file_of(module, example, kind, tmp_path):
    file = tmp_path / f"x.{kind}"
    file.write_bytes(encode(module, example, kind, NOTE))
    return file


@pytest.mark.parametrize("head", ["multi", "single"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_program_has_the_outputs_of_the_network_to_the_last_bit(name, head, tmp_path):
    model, shape, prepare = NETWORKS[name]
    net = learned(model, shape, head=head)
    for task in net.tasks:
        module = Deployed(net.subnetwork(task), prepare).eval()
        program = open_program(file_of(module, samples(shape), "pt2", tmp_path), "pt2")
        for size in (*SIZES, 256):
            batch = samples(shape, size, seed=size)
            with torch.no_grad():
                assert torch.equal(program(batch), net(prepare(batch), task=task)), size


@pytest.mark.parametrize("name", NETWORKS)
def test_an_onnx_model_has_the_outputs_of_the_network_up_to_rounding(name, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    model, shape, prepare = NETWORKS[name]
    net = learned(model, shape)
    module = Deployed(net.subnetwork("b"), prepare).eval()
    program = open_program(file_of(module, samples(shape), "onnx", tmp_path), "onnx")
    for size in SIZES:
        batch = samples(shape, size, seed=size)
        with torch.no_grad():
            expected = net(prepare(batch), task="b")
        torch.testing.assert_close(program(batch), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("empty", ["conv1", "conv4", "all"])
def test_a_task_without_a_neuron_of_some_group_can_be_exported(kind, empty, tmp_path):
    model, shape, _ = NETWORKS["narrow"]

    def keep(group, num):
        return 0 if empty in (group, "all") else half(group, num)

    net, x = learned(model, shape, keep=keep), torch.rand(7, *shape)
    for task in net.tasks if kind == "pt2" else ["b"]:
        file = file_of(net.subnetwork(task), x[:2], kind, tmp_path)
        with torch.no_grad():
            found, expected = open_program(file, kind)(x), net(x, task=task)
        tolerance = 0.0 if kind == "pt2" else 1e-4
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_a_program_has_no_paths_and_classes_of_this_machine(kind):
    model, shape, prepare = NETWORKS["wide"]
    data = encode(Deployed(model, prepare).eval(), samples(shape), kind, NOTE)
    parts = [data]
    if kind == "pt2":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = [archive.read(name) for name in archive.namelist()]
    for part in parts:
        assert not re.search(rb"\.py\b|clnp\.models|WideCNN", part)


def test_a_program_runs_without_clnp(kind, tmp_path):
    model, shape, prepare = NETWORKS["mlp"]
    batch = samples(shape, 5)
    module = Deployed(model, prepare).eval().requires_grad_(False)
    file_of(module, batch[:2], kind, tmp_path)
    torch.save((batch, module(batch)), tmp_path / "known.pt")
    runs = {
        "pt2": "torch.export.load('x.pt2').module()(x)",
        "onnx": "torch.tensor(__import__('onnxruntime').InferenceSession('x.onnx')"
        ".run(None, {'samples': x.numpy()})[0])",
    }
    code = (
        "import sys, torch; sys.modules['clnp'] = None; x, y = torch.load('known.pt'); "
        f"torch.testing.assert_close({runs[kind]}, y); print('the same')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True)
    assert done.stdout == "the same\n", done.stderr


@pytest.mark.parametrize("name", ["mlp", "wide"])
def test_a_program_can_be_moved_to_another_device_but_has_a_fixed_dtype(name, tmp_path):
    model, shape, prepare = NETWORKS[name]
    module = Deployed(model, prepare).eval().requires_grad_(False)
    program = open_program(file_of(module, samples(shape), "pt2", tmp_path), "pt2")
    with pytest.raises(RuntimeError, match="dtype"):
        program(torch.rand(2, *shape))
    for node in program.graph.nodes:
        given = (*node.args, *node.kwargs.values())
        assert not any(isinstance(each, torch.device) for each in given)
    # The meta device has no numbers, and every machine has one.
    found = program.to("meta")(samples(shape, 5).to("meta"))
    assert (found.device.type, found.shape) == ("meta", (5, 6))


def test_the_note_is_read_back_and_other_files_have_none(kind, tmp_path):
    file = file_of(nn.Linear(3, 2).eval(), torch.zeros(2, 3), kind, tmp_path)
    assert read_note(file, kind) == NOTE
    assert NOTE.is_in(file, kind)
    data = file.read_bytes()
    for wrong in (b"", b"hello", data[: len(data) // 2]):
        file.write_bytes(wrong)
        assert read_note(file, kind) is None
        assert not NOTE.is_in(file, kind)
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
    with pytest.raises(RunError, match=rf"^{package} is not installed.*'clnp\[onnx\]'"):
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
@pytest.mark.parametrize("head", ["multi", "single"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_program_on_a_gpu(name, head, tmp_path):
    model, shape, prepare = NETWORKS[name]
    net = learned(model, shape, head=head).cuda()
    there, here = samples(shape).cuda(), samples(shape)
    module = Deployed(net.subnetwork("b"), prepare).cuda().eval()
    own = open_program(file_of(module, there, "pt2", tmp_path), "pt2")
    moved = open_program(file_of(module.cpu(), here, "pt2", tmp_path), "pt2").cuda()
    for size in (*SIZES, 256):
        batch = samples(shape, size, seed=size).cuda()
        with torch.no_grad():
            expected = net(prepare(batch), task="b")
            assert torch.equal(own(batch), expected)
            assert torch.equal(moved(batch), expected)

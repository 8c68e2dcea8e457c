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
from clnp.exports.export import SIZES
from clnp.exports.formats import _exported, check_installed, encoded, note_of, opened
from clnp.exports.from_run import Deployed

COLOURS = Prepare(255.0, mean=(0.4, 0.5, 0.6), deviation=(0.2, 0.3, 0.2))
NETWORKS = {
    "mlp": (models.MLP(64, (30, 30), 6), (1, 8, 8), Prepare(16.0, torch.arange(63, -1, -1))),
    "narrow": (models.NarrowCNN(6, widths=(6, 6, 8, 8, 20)), (3, 32, 32), COLOURS),
    "wide": (models.WideCNN(6, widths=(6, 6, 8, 8, 20)), (3, 32, 32), COLOURS),
}


def samples(shape, num=2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(256, (num, *shape), generator=draw, dtype=torch.uint8)


def learnt(model, shape, *, head, keep):
    """A network with two ended tasks of random weights, of which each keeps so much of a group."""
    torch.manual_seed(0)
    net = ContinualNet(model, torch.zeros(2, *shape), head=head)
    for name in ("a", "b"):
        net.begin_task(name, 6 if head == "single" else 4)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(torch.randn_like(parameter) / 10)
        net.end_task({group: range(keep(group, num)) for group, num in net.ledger.free().items()})
    return net


def half(group, num):
    return (num + 1) // 2


def file_of(module, example, kind, tmp_path, note=None):
    file = tmp_path / f"x.{kind}"
    file.write_bytes(encoded(module, example, kind, note or {}))
    return file


@pytest.mark.parametrize("head", ["multi", "single"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_program_answers_as_the_network_to_the_last_bit(name, head, tmp_path):
    model, shape, prepare = NETWORKS[name]
    net = learnt(model, shape, head=head, keep=half)
    for task in net.tasks:
        module = Deployed(net.subnetwork(task), prepare).eval()
        program = opened(file_of(module, samples(shape), "pt2", tmp_path), "pt2")
        for size in (*SIZES, 256):
            batch = samples(shape, size, seed=size)
            with torch.no_grad():
                assert torch.equal(program(batch), net(prepare(batch), task=task)), size


@pytest.mark.parametrize("name", NETWORKS)
def test_an_onnx_model_answers_as_the_network_up_to_rounding(name, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    model, shape, prepare = NETWORKS[name]
    net = learnt(model, shape, head="multi", keep=half)
    module = Deployed(net.subnetwork("b"), prepare).eval()
    program = opened(file_of(module, samples(shape), "onnx", tmp_path), "onnx")
    for size in SIZES:
        batch = samples(shape, size, seed=size)
        with torch.no_grad():
            wanted = net(prepare(batch), task="b")
        torch.testing.assert_close(program(batch), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "empty"), [("pt2", "conv1"), ("pt2", "conv4"), ("pt2", "all"), ("onnx", "conv4")]
)
def test_a_task_without_a_neuron_of_some_group_is_a_program_too(kind, empty, tmp_path):
    if kind == "onnx":
        pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    model, shape, _ = NETWORKS["narrow"]
    net = learnt(
        model,
        shape,
        head="multi",
        keep=lambda group, num: 0 if empty in (group, "all") else half(group, num),
    )
    x = torch.rand(7, *shape)
    for task in net.tasks:
        file = file_of(net.subnetwork(task), x[:2], kind, tmp_path)
        with torch.no_grad():
            found, wanted = opened(file, kind)(x), net(x, task=task)
        if kind == "pt2":
            assert torch.equal(found, wanted)
        else:
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["pt2", "onnx"])
def test_a_program_says_nothing_of_this_machine(kind, tmp_path):
    if kind == "onnx":
        pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    model, shape, prepare = NETWORKS["wide"]
    data = encoded(Deployed(model, prepare).eval(), samples(shape), kind, {})
    parts = [data]
    if kind == "pt2":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = [archive.read(name) for name in archive.namelist()]
    for part in parts:
        assert not re.search(rb"\.py\b|clnp\.models|WideCNN", part)


@pytest.mark.parametrize("kind", ["pt2", "onnx"])
def test_a_program_runs_where_clnp_is_not(kind, tmp_path):
    if kind == "onnx":
        pytest.importorskip("onnxruntime", reason="needs the extra onnx")
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
        f"torch.testing.assert_close({runs[kind]}, y); print('as it was')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True)
    assert done.stdout == "as it was\n", done.stderr


def test_nothing_in_a_program_is_bound_to_the_device_it_was_made_on(tmp_path):
    for name in ("mlp", "wide"):
        model, shape, prepare = NETWORKS[name]
        module = Deployed(model, prepare).eval().requires_grad_(False)
        program = opened(file_of(module, samples(shape), "pt2", tmp_path), "pt2")
        for node in program.graph.nodes:
            given = (*node.args, *node.kwargs.values())
            assert not any(isinstance(each, torch.device) for each in given)
        # A device without numbers, which every machine has.
        found = program.to("meta")(samples(shape, 5).to("meta"))
        assert (found.device.type, found.shape) == ("meta", (5, 6))


def test_numbers_of_another_type_than_stored_are_refused(tmp_path):
    model, shape, prepare = NETWORKS["mlp"]
    module = Deployed(model, prepare).eval()
    program = opened(file_of(module, samples(shape), "pt2", tmp_path), "pt2")
    with pytest.raises(RuntimeError, match="dtype"):
        program(torch.rand(2, *shape))


@pytest.mark.parametrize("kind", ["pt2", "onnx"])
def test_the_note_is_read_back_and_other_files_have_none(kind, tmp_path):
    if kind == "onnx":
        pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    module, note = nn.Linear(3, 2).eval(), {"task": "blumen & bäume", "shape": [1, 2]}
    file = file_of(module, torch.zeros(2, 3), kind, tmp_path, note)
    assert note_of(file, kind) == note
    assert note_of(file_of(module, torch.zeros(2, 3), kind, tmp_path), kind) == {}
    data = file.read_bytes()
    for wrong in (b"", b"hello", data[: len(data) // 2]):
        file.write_bytes(wrong)
        assert note_of(file, kind) is None
    assert note_of(tmp_path, kind) is None
    torch.save({}, file)
    assert note_of(file, kind) is None


@pytest.mark.parametrize("kind", ["pt2", "onnx"])
def test_a_file_that_is_no_program_is_told(kind, tmp_path):
    if kind == "onnx":
        pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    file = tmp_path / "x"
    file.write_bytes(b"hello")
    with pytest.raises(ExportError, match=r"^it cannot be read back: \S"):
        opened(file, kind)


def test_what_pytorch_cannot_export_is_told():
    class Branches(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(ExportError, match=r"^PyTorch cannot make a PyTorch program of it: \S"):
        encoded(Branches(), torch.zeros(2, 3), "pt2", {})


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_the_extra_is_asked_for_where_a_package_is_missing(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # Python then takes it as not installed.
    for other in {"onnx", "onnxscript", "onnxruntime"} - {package}:
        monkeypatch.setitem(sys.modules, other, torch)
    check_installed("pt2")
    words = rf"^{package} is not installed; install it: pip install 'clnp\[onnx\]'$"
    with pytest.raises(RunError, match=words):
        check_installed("onnx")


@pytest.mark.parametrize(("norm", "most"), [(nn.BatchNorm2d, 65_535), (nn.Identity, None)])
def test_a_program_of_a_gpu_takes_as_many_samples_as_cudnn_normalises(norm, most):
    """No GPU is needed: PyTorch follows tensors that are nowhere, as it does to export."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        layers = nn.Conv2d(3, 4, 3, device="cuda"), norm(4, device="cuda")
        example = torch.zeros(2, 3, 8, 8, device="cuda")
        exported = _exported(nn.Sequential(*layers).eval(), example)
    (limits,) = exported.range_constraints.values()
    assert int(limits.lower) <= 1
    assert (int(limits.upper) if most else None) == most
    assert most or limits.upper > 10**9


@pytest.mark.gpu
@pytest.mark.parametrize("head", ["multi", "single"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_program_on_a_gpu(name, head, tmp_path):
    model, shape, prepare = NETWORKS[name]
    net = learnt(model, shape, head=head, keep=half).cuda()
    there, here = samples(shape).cuda(), samples(shape)
    module = Deployed(net.subnetwork("b"), prepare).cuda().eval()
    own = opened(file_of(module, there, "pt2", tmp_path), "pt2")
    moved = opened(file_of(module.cpu(), here, "pt2", tmp_path), "pt2").cuda()
    for size in (*SIZES, 256):
        batch = samples(shape, size, seed=size).cuda()
        with torch.no_grad():
            wanted = net(prepare(batch), task="b")
            assert torch.equal(own(batch), wanted)
            assert torch.equal(moved(batch), wanted)

import errno
import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import clnp
from clnp.errors import ArgumentError, ExportError, RunError, TaskError
from clnp.exports import export as module
from clnp.exports.export import check_outputs
from clnp.exports.formats import encode, read_note
from clnp.plain import to_json
from support.networks import HEADS, NETWORKS, example, learn, make

# ONNX is slow: a few networks stand for all.
CASES = [(name, HEADS[number % 2], "pt2") for number, name in enumerate(NETWORKS)]
CASES += [("conv", "single", "onnx"), ("squeeze", "multi", "onnx")]


@pytest.mark.parametrize(("name", "head", "kind"), CASES)
def test_a_task_of_a_network_is_exported(name, head, kind, tmp_path):
    if kind == "onnx":
        pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    net, x, file = make(name, head=head), example(name, num=12), tmp_path / f"b.{kind}"
    learn(net, "a", x)
    learn(net, "b", x)
    answer = clnp.export(net, "b", file, x)
    assert answer.check.num_samples == 12
    assert answer.check.identical or kind == "onnx"
    assert answer.certificate == net.certificates["b"].digest
    assert answer.bytes == file.stat().st_size
    if kind == "pt2":
        program = torch.export.load(file).module()
        assert torch.equal(program(x[:5]), net(x[:5], task="b"))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A network with a task, inputs, a file of it, and what the export answered."""
    net, x = make("mlp"), example("mlp", num=12)
    learn(net, "a", x[:8])
    file = tmp_path_factory.mktemp("made") / "a.pt2"
    return net, x, file, clnp.export(net, "a", file, x)


@pytest.fixture
def net(made):
    return made[0]


@pytest.fixture
def x(made):
    return made[1]


@pytest.fixture
def old(made, tmp_path):
    """An earlier export of the task."""
    return Path(shutil.copy(made[2], tmp_path / "old.pt2"))


def test_the_file_does_not_contain_the_samples(net, x, old):
    size = old.stat().st_size
    (stored,) = torch.export.load(old).example_inputs[0]
    assert not stored.any()
    many = torch.cat([x, torch.rand(5000, *x.shape[1:])])
    assert clnp.export(net, "a", old, many[:12]).bytes == size


def test_the_answer_and_the_note_describe_the_file(net, x, tmp_path):
    num = net(x, task="a").shape[1]
    names = tuple(f"class {number}" for number in range(num))
    answer = clnp.export(net, "a", tmp_path / "a.pt2", x, classes=names)
    note = read_note(tmp_path / "a.pt2", "pt2")
    assert note.classes == answer.classes == names
    assert (note.task, note.takes) == ("a", "inputs")
    plain = json.loads(to_json(answer))
    assert plain["inputs"] == {"dtype": "float32", "shape": ["batch", 6]}
    assert plain["check"]["samples"] == "given"
    assert "check        read back and run on 12 given samples: all outputs are" in str(answer)
    with pytest.raises(ArgumentError, match=f"classes has 1 entries, but task 'a' has {num} outp"):
        clnp.export(net, "a", tmp_path / "b.pt2", x, classes=["one"])


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("a.bin", "a.bin has no known format. Use a name that ends in .pt2 or .onnx"),
        ("no/a.pt2", "the directory no does not exist. Create it"),
        ("dir.pt2", "dir.pt2 exists, and is not an earlier export of task 'a'"),
        ("mine.pt2", "mine.pt2 exists, and is not an earlier export of task 'a'"),
        ("link.pt2", "link.pt2 exists, and is not an earlier export of task 'a'"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused(file, message, net, x, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dir.pt2").mkdir()
    (tmp_path / "mine.pt2").write_text("mine")
    (tmp_path / "link.pt2").symlink_to("nowhere")
    with pytest.raises(ArgumentError, match=message):
        clnp.export(net, "a", file, x)
    assert (tmp_path / "mine.pt2").read_text() == "mine"


def test_an_error_of_the_system_is_reported(net, x, tmp_path, monkeypatch):
    with pytest.raises(RunError, match=r"is too long for a path, with .* Choose a shorter one"):
        clnp.export(net, "a", tmp_path / f"{'a' * 300}.pt2", x)

    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("clnp.exports.export.replace_file", full)
    with pytest.raises(RunError, match=r"cannot write .*: No space left on device\. Choose"):
        clnp.export(net, "a", tmp_path / "a.pt2", x)


def test_an_earlier_export_is_replaced_if_task_and_network_are_the_same(x, tmp_path):
    net, other, file = make("mlp"), make("mlp", seed=1), tmp_path / "x.pt2"
    learn(net, "a", x)
    known = clnp.export(net, "a", file, x)
    learn(net, "b", x)
    learn(other, "a", x)
    for source, task in ((net, "b"), (other, "a")):
        with pytest.raises(ArgumentError, match="is not an earlier export of task"):
            clnp.export(source, task, file, x)
    assert file.stat().st_size == known.bytes
    clnp.export(net, "a", file, x)


def test_samples_must_be_inputs_of_the_network(net, x, tmp_path):
    file = tmp_path / "a.pt2"
    with pytest.raises(TaskError, match="unknown task 'b'"):
        clnp.export(net, "b", file, x)
    for wrong in (None, [1.0], torch.tensor(1.0), x[:0]):
        with pytest.raises(ArgumentError, match="samples is not a batch"):
            clnp.export(net, "a", file, wrong)
    for wrong in (x[:, :1], x.double(), x.long()):
        with pytest.raises(ArgumentError, match=r"samples of \w+ \[batch, .*\] do not fit"):
            clnp.export(net, "a", file, wrong)
    with pytest.raises(ArgumentError, match=r"all outputs of the network .* are NaN or infinite"):
        clnp.export(net, "a", file, torch.full_like(x, float("nan")))
    assert list(tmp_path.iterdir()) == []


class Other(nn.Module):
    """Other outputs of the same shape."""

    def forward(self, x):
        return torch.ones(x.shape[0], 4)


def test_a_file_with_other_outputs_is_not_kept(net, x, old, monkeypatch):
    before = old.read_bytes()
    monkeypatch.setattr(module, "encode", lambda module, *rest: encode(Other(), *rest))
    for name in ("new.pt2", "old.pt2"):
        message = rf"task 'a' was not written to .*{name}: its outputs differ from .*, more than"
        with pytest.raises(ExportError, match=message):
            clnp.export(net, "a", old.with_name(name), x)
    assert [file.name for file in old.parent.iterdir()] == ["old.pt2"]
    assert old.read_bytes() == before


def outputs_of(outputs):
    """A program whose samples are the indices of its outputs."""
    return lambda samples: outputs[samples[:, 0].long()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda own: torch.full_like(own, torch.nan), "its outputs differ .* by nan, more .*"),
        (lambda own: torch.cat([own[:99], own[99:] / 0]), "its outputs differ .* by inf, more .*"),
        (lambda own: own + 0.1, r"its outputs differ .* by 0\.1, more .*, and classes of 0 of .*"),
        (lambda own: own.flip(1), r"its outputs differ .*, and classes of 100 of 100 .*"),
        (lambda own: own[:, :2], r"its outputs are float32 \[batch, 2\], not float32 \[batch, 3\]"),
        (lambda own: own.double(), r"its outputs are float64 .*, not float32 \[batch, 3\]"),
        (lambda own: own[:9], r"it does not run on 100 samples: .*"),
    ],
)
def test_other_outputs_are_refused(change, message):
    own = torch.tensor([3.0, 2.0, 1.0]) + torch.rand(100, 3)
    with pytest.raises(ExportError, match=f"^{message}$"):
        check_outputs(outputs_of(change(own)), outputs_of(own), torch.arange(100)[:, None])


def test_differences_of_rounding_are_reported():
    own = torch.tensor([[3.0, 1.0], [2.0, 2.0]]).repeat(50, 1)
    off = own + torch.tensor([0.0, 1e-6])
    samples, labels = torch.arange(100)[:, None], torch.zeros(100, dtype=torch.int64)
    found = check_outputs(outputs_of(off), outputs_of(own), samples, labels, origin="test")
    assert not found.identical
    assert found.largest_difference == pytest.approx(1e-6, rel=0.1)
    assert (found.num_other_classes, found.num_right) == (50, 50)
    assert str(found) == (
        "100 test samples: outputs differ by at most 9.5e-07, classes of 50 samples differ; "
        "50.00 % are classified correctly"
    )


def test_a_program_is_checked_on_batches_of_several_sizes():
    sizes = []

    def program(samples):
        sizes.append(len(samples))
        return samples.float()

    check_outputs(program, torch.Tensor.float, torch.rand(700, 3))
    assert sizes == [1, 256, 256, 188]


class Shaped(nn.Module):
    """A network of one output, with another shape or type."""

    def __init__(self, shaped):
        super().__init__()
        self.fc1, self.fc2, self.shaped = nn.Linear(6, 8), nn.Linear(8, 1), shaped

    def forward(self, x):
        return self.shaped(self.fc2(torch.relu(self.fc1(x))))


def export_shaped(shaped, file):
    net = clnp.ContinualNet(Shaped(shaped), torch.zeros(2, 6))
    net.begin_task("a")
    net.end_task()
    return clnp.export(net, "a", file, example("mlp", num=12))


def test_outputs_of_one_dimension_are_compared_as_numbers(tmp_path):
    answer = export_shaped(lambda y: y.squeeze(1), tmp_path / "a.pt2")
    assert answer.outputs.shape == ("batch",)
    assert answer.check.identical
    assert answer.check.num_other_classes == 0


@pytest.mark.parametrize(
    ("shaped", "message"),
    [
        (lambda y: {"scores": y}, "the network returns a dict. Only a network that returns one"),
        (lambda y: y.reshape(len(y), 1), r"fixes the number of samples, as len\(x\) does; use x.s"),
    ],
)
def test_a_network_that_cannot_be_exported_is_refused(shaped, message, tmp_path):
    with pytest.raises(ExportError, match=message):
        export_shaped(shaped, tmp_path / "a.pt2")

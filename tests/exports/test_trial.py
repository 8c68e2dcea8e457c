"""Ended tasks as programs, tried beside the network."""

import json

import pytest
import torch
from torch import nn

import clnp
from clnp.errors import ArgumentError, ExportError, TaskError
from clnp.exports.export import compare
from clnp.exports.formats import note_of
from support.networks import HEADS, NETWORKS, example, learn, make

# ONNX takes its time: with one kind of head for each network.
CASES = [(name, head, "pt2") for name in NETWORKS for head in HEADS]
CASES += [(name, HEADS[number % 2], "onnx") for number, name in enumerate(NETWORKS)]


@pytest.mark.parametrize(("name", "head", "kind"), CASES)
def test_tasks_of_ones_own_network_are_exported(name, head, kind, tmp_path):
    if kind == "onnx":
        pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    net, x = make(name, head=head), example(name, num=12)
    learn(net, "a", x)
    learn(net, "b", x)
    for task in net.tasks:
        file = tmp_path / f"{task}.{kind}"
        answer = clnp.export(net, task, file, x)
        assert answer["check"]["num_samples"] == 12
        assert answer["check"]["identical"] or kind == "onnx"
        assert answer["certificate"] == net.certificates[task].digest
        assert answer["bytes"] == file.stat().st_size
        if kind == "pt2":
            program = torch.export.load(file).module()
            assert torch.equal(program(x[:5]), net(x[:5], task=task))


def ended():
    net, x = make("mlp"), example("mlp", num=12)
    learn(net, "a", x)
    return net, x


def test_nothing_of_the_samples_goes_into_the_file(tmp_path):
    net, x = ended()
    many = torch.cat([x, torch.rand(5000, *x.shape[1:])])
    few = clnp.export(net, "a", tmp_path / "few.pt2", x)
    assert few["bytes"] == clnp.export(net, "a", tmp_path / "many.pt2", many[:12])["bytes"]
    (stored,) = torch.export.load(tmp_path / "few.pt2").example_inputs[0]
    assert not stored.any()


def test_what_outputs_stand_for_is_noted(tmp_path):
    net, x = ended()
    num = net(x, task="a").shape[1]
    names = [f"class {number}" for number in range(num)]
    answer = clnp.export(net, "a", tmp_path / "a.pt2", x, classes=names)
    note = note_of(tmp_path / "a.pt2", "pt2")
    assert note["classes"] == answer["classes"] == names
    assert (note["task"], note["takes"]) == ("a", "inputs")
    assert json.loads(json.dumps(answer)) == answer
    with pytest.raises(ArgumentError, match=f"classes has 1 names, and the task {num} outputs"):
        clnp.export(net, "a", tmp_path / "a.pt2", x, classes=["one"])


def test_what_cannot_be_exported_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net, x = ended()
    for file, message in {
        "a.bin": "'a.bin': the name of the file must end in .pt2 or .onnx",
        "no/a.pt2": "there is no directory no to write a.pt2 to; make it",
    }.items():
        with pytest.raises(ArgumentError, match=message):
            clnp.export(net, "a", file, x)
    (tmp_path / "dir.pt2").mkdir()
    with pytest.raises(ArgumentError, match=r"dir\.pt2 is a directory; name a file"):
        clnp.export(net, "a", "dir.pt2", x)
    with pytest.raises(TaskError, match="unknown task 'b'"):
        clnp.export(net, "b", "b.pt2", x)
    for samples in (None, [1.0], torch.tensor(1.0), x[:0]):
        with pytest.raises(ArgumentError, match="samples must be a tensor, one batch"):
            clnp.export(net, "a", "a.pt2", samples)
    (tmp_path / "a.pt2").write_text("mine")
    with pytest.raises(ArgumentError, match=r"a\.pt2 is there, and no earlier export"):
        clnp.export(net, "a", "a.pt2", x)
    assert (tmp_path / "a.pt2").read_text() == "mine"


class Several(nn.Module):
    """A network whose outputs are in a dictionary."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 5), nn.Linear(5, 2)

    def forward(self, x):
        return {"scores": self.fc2(torch.relu(self.fc1(x)))}


def test_outputs_that_are_no_tensor_are_refused(tmp_path):
    x = torch.randn(4, 6)
    net = clnp.ContinualNet(Several(), x)
    net.begin_task("a")
    net.end_task()
    with pytest.raises(ExportError, match="the network gives a dict; only one tensor can be"):
        clnp.export(net, "a", tmp_path / "a.pt2", x)


def answers(outputs):
    """Something that gives the outputs of the samples, which are their numbers."""
    return lambda samples: outputs[samples[:, 0].long()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda own: torch.full_like(own, torch.nan), "its outputs differ .* by nan, which .*"),
        (lambda own: torch.cat([own[:99], own[99:] / 0]), "its outputs differ .* by inf, which .*"),
        (
            lambda own: own + 0.1,
            r"its outputs differ from .* by 0\.1, which .* and 0 .*",
        ),
        (lambda own: own.flip(1), r"its outputs differ .*, and 100 of 100 classes are others"),
        (lambda own: own[:, :2], r"it gives float32 \[batch, 2\], not float32 \[batch, 3\]"),
        (lambda own: own.double(), r"it gives float64 \[batch, 3\], not float32 \[batch, 3\]"),
        (lambda own: own[:9], r"it does not run on 64 samples: .*|it does not run on 7 .*"),
    ],
)
def test_a_program_that_is_wrong_is_refused(change, message):
    own = torch.tensor([3.0, 2.0, 1.0]) + torch.rand(100, 3)
    samples, labels = torch.arange(100)[:, None], torch.zeros(100, dtype=torch.int64)
    with pytest.raises(ExportError, match=f"^{message}$"):
        compare(answers(change(own)), answers(own), samples, labels, origin="test")


def test_what_rounding_does_is_told_and_not_refused():
    own = torch.tensor([[3.0, 1.0], [2.0, 2.0]]).repeat(50, 1)
    off = own + torch.tensor([0.0, 1e-6])
    samples, labels = torch.arange(100)[:, None], torch.zeros(100, dtype=torch.int64)
    found = compare(answers(off), answers(own), samples, labels, origin="test")
    assert not found.identical
    assert found.largest_difference == pytest.approx(1e-6, rel=0.1)
    assert (found.num_other_classes, found.num_right) == (50, 50)
    assert str(found) == (
        "100 test samples: outputs differ by 9.5e-07 at most, 50 classes differ; 50.00 % of them "
        "are classified right"
    )
    found = compare(answers(own), answers(own), samples, None, origin="random")
    assert str(found) == "100 random samples: every output is the network's own, to the last bit"


def test_a_program_is_tried_on_batches_of_many_sizes():
    sizes = []

    def program(samples):
        sizes.append(len(samples))
        return samples.float()

    for num in (2, 5, 10, 74, 75, 700):
        sizes.clear()
        inputs = torch.rand(num, 3)
        compare(program, torch.Tensor.float, inputs, inputs[:, 0].long(), origin="test")
        assert sum(sizes) == num
        assert sizes[:2] == ([1, 1] if num == 2 else [1, 2])
    assert sizes == [1, 2, 7, 64, 256, 256, 114]


class Shaped(nn.Module):
    """A network with one output, put into another shape by a function."""

    def __init__(self, shaped):
        super().__init__()
        self.fc1, self.fc2, self.shaped = nn.Linear(6, 8), nn.Linear(8, 1), shaped

    def forward(self, x):
        return self.shaped(self.fc2(torch.relu(self.fc1(x))))


def with_outputs(shaped):
    net = clnp.ContinualNet(Shaped(shaped), torch.zeros(2, 6))
    net.begin_task("a")
    net.end_task()
    return net, torch.randn(12, 6, generator=torch.Generator().manual_seed(0))


def test_a_forward_that_fixes_the_number_of_samples_is_told(tmp_path):
    net, x = with_outputs(lambda y: y.reshape(len(y), 1))
    with pytest.raises(ExportError, match=r"one number of samples, as len\(x\) does; write x.sha"):
        clnp.export(net, "a", tmp_path / "a.pt2", x)


def test_outputs_without_classes_are_compared_as_numbers(tmp_path):
    net, x = with_outputs(lambda y: y.squeeze(1))
    answer = clnp.export(net, "a", tmp_path / "a.pt2", x)
    assert answer["outputs"]["shape"] == ["batch"]
    assert answer["check"]["identical"]
    assert answer["check"]["num_other_classes"] == 0


def test_samples_that_say_nothing_or_do_not_fit_are_refused(tmp_path):
    net, x = ended()
    nothing = torch.full_like(x, float("nan"))
    with pytest.raises(ExportError, match="nothing that the network says of these samples is fini"):
        clnp.export(net, "a", tmp_path / "a.pt2", nothing)
    for wrong in (x[:, :1], x.double(), x.long()):
        with pytest.raises(ArgumentError, match=r"samples of \w+ \[batch, .*\] do not fit"):
            clnp.export(net, "a", tmp_path / "a.pt2", wrong)
    assert list(tmp_path.iterdir()) == []

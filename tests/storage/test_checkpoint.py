import errno
import hashlib
import json
import os
import random
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import clnp
from clnp.errors import (
    ArgumentError,
    CheckpointError,
    ForgettingError,
)
from clnp.storage import checkpoint
from support.assembled import Assembled
from support.networks import (
    HEADS,
    NETWORKS,
    Residual,
    copied_state,
    example,
    half,
    learn,
    make,
    mlp,
    same_state,
    train,
)


@pytest.fixture
def saved(tmp_path):
    """The path of a network with the ended task a and the open task b, and its bytes."""
    net = make()
    learn(net, "a", example("mlp"))
    net.begin_task("b", num_outputs=3)
    path = tmp_path / "net"
    clnp.save(net, path)
    return path, path.read_bytes()


def load(path) -> clnp.ContinualNet:
    return clnp.load(path, mlp())


def with_metadata(path, data: bytes, **changes: object) -> None:
    """Write the checkpoint again with other metadata; None takes an entry out."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"].update(changes)
    kept = {name: value for name, value in header["__metadata__"].items() if value is not None}
    header["__metadata__"] = kept
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NETWORKS)
def test_training_goes_on_from_an_open_task_bit_by_bit(tmp_path, name, head):
    network, _ = NETWORKS[name]
    net, x = make(name, head=head), example(name)
    learn(net, "a", x)
    net.begin_task("b", num_outputs=3)
    train(net, x)
    net.prune({group: range(1, n) for group, n in net.ledger.free().items()})
    clnp.save(net, tmp_path / "net")
    loaded = clnp.load(tmp_path / "net", network())
    assert (loaded.open_task, loaded.head) == ("b", head)
    assert (loaded.certificates, loaded.ledger) == (net.certificates, net.ledger)
    assert loaded.graph == net.graph
    for one in (net, loaded):
        torch.manual_seed(5)
        train(one, x)
    assert same_state(loaded.state_dict(), net.state_dict())
    assert loaded.end_task() == net.end_task()
    assert torch.equal(loaded(x, task="b"), net(x, task="b"))


def test_what_a_plan_found_out_about_an_open_task_comes_back(tmp_path):
    net, x = make(), example("mlp")
    learn(net, "a", x)
    net.begin_task("b")
    plan = net.plan_pruning(net.measure_activity([x]), thresholds=0.0)
    net.prune(plan)
    clnp.save(net, tmp_path / "net")
    loaded = load(tmp_path / "net")
    loaded.end_task()
    assert loaded.ledger.row("b").reused == plan.reused


def test_the_count_of_batches_of_an_open_task_comes_back(tmp_path):
    def network() -> nn.Module:
        norm = nn.BatchNorm1d(5, momentum=None)
        return nn.Sequential(nn.Linear(6, 5), norm, nn.ReLU(), nn.Linear(5, 4))

    x = example("mlp")
    net = clnp.ContinualNet(network(), x)
    net.begin_task("a")
    train(net, x)
    clnp.save(net, tmp_path / "net")
    loaded = clnp.load(tmp_path / "net", network())
    for one in (net, loaded):
        train(one, 2 * x)
    assert same_state(loaded.state_dict(), net.state_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["mlp", "conv", "shifted"])
def test_a_network_keeps_its_dtype_whatever_that_of_the_model_is(tmp_path, name, dtype):
    network, _ = NETWORKS[name]
    net, x = make(name).to(dtype), example(name).to(dtype)
    before = learn(net, "a", x)
    net.begin_task("b")
    clnp.save(net, tmp_path / "net")
    loaded = clnp.load(tmp_path / "net", network())
    assert {p.dtype for p in loaded.parameters()} == {dtype}
    assert torch.equal(loaded(x, task="a"), before)
    train(loaded, x)
    loaded.end_task(half(loaded))
    assert loaded(x, task="b").dtype == dtype
    loaded.begin_task("c")
    assert {p.dtype for p in loaded.parameters()} == {dtype}


def test_loading_leaves_random_numbers_and_the_given_model_alone(saved):
    path, _ = saved
    model = mlp()
    before, rng = copied_state(model), torch.get_rng_state()
    loaded = clnp.load(path, model)
    assert torch.equal(torch.get_rng_state(), rng)
    train(loaded, example("mlp"))
    assert same_state(model.state_dict(), before)
    assert isinstance(model.fc1, nn.Linear)
    assert type(model.fc1) is nn.Linear
    loaded.verify()


def test_a_loaded_network_is_saved_as_it_was(tmp_path, saved):
    path, _ = saved
    clnp.save(load(path), tmp_path / "again")
    record, tensors = checkpoint.read(path)
    again, tensors_again = checkpoint.read(tmp_path / "again")
    assert again == record
    assert same_state(tensors_again, tensors)


def test_a_truncated_file_is_refused_wherever_it_ends(saved):
    path, data = saved
    header = 8 + int.from_bytes(data[:8], "little")
    ends = {9, 10, 100, header - 1, header, header + 1, len(data) - 1}
    ends |= set(random.Random(0).sample(range(9, len(data)), 60))
    for end in ends:
        path.write_bytes(data[:end])
        with pytest.raises(CheckpointError, match="net is truncated: "):
            load(path)
    for end in range(9):
        path.write_bytes(data[:end])
        with pytest.raises(CheckpointError, match="net is not a clnp checkpoint"):
            load(path)


def test_a_changed_byte_is_refused_or_changes_nothing(saved):
    path, data = saved
    record, tensors = checkpoint.read(path)
    header = 8 + int.from_bytes(data[:8], "little")
    draw = random.Random(0)
    places = [*range(12), *draw.sample(range(12, header), 250)]
    places += [header - 1, header, len(data) - 1, *draw.sample(range(header, len(data)), 60)]
    refused = 0
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        try:
            found, now = checkpoint.read(path)
        except CheckpointError:
            refused += 1
        else:
            assert found == record
            assert same_state(now, tensors)
    assert refused > len(places) - 15


def test_a_changed_tensor_is_named(saved):
    path, data = saved
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"is corrupted: tensor \S+ does not match its SHA"):
        load(path)


def test_a_changed_manifest_is_refused(saved):
    path, data = saved
    path.write_bytes(data.replace(b"task", b"tusk", 1))
    with pytest.raises(CheckpointError, match="is corrupted: its manifest does not match its SHA"):
        load(path)


def test_a_header_that_cannot_be_read_is_refused(saved):
    path, data = saved
    path.write_bytes(data[:9] + b"!" + data[10:])
    with pytest.raises(CheckpointError, match="is corrupted: its header cannot be read"):
        load(path)


@pytest.mark.parametrize("manifest", ["null", "[]", "{}", "7", '{"tensors": {}, "graph": {}}', ""])
def test_a_manifest_of_something_else_is_refused(saved, manifest):
    path, data = saved
    digest = hashlib.sha256(manifest.encode()).hexdigest()
    with_metadata(path, data, manifest=manifest, sha256=digest)
    with pytest.raises(CheckpointError, match="is corrupted: "):
        load(path)


def test_metadata_of_something_else_are_refused(saved):
    path, data = saved
    with_metadata(path, data, manifest=7)
    with pytest.raises(CheckpointError, match="is corrupted: "):
        load(path)
    text = json.dumps({"__metadata__": ["format"]}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(CheckpointError, match="is not a clnp checkpoint"):
        load(path)


@pytest.mark.parametrize("version", ["0", "2", None])
def test_another_version_is_refused(saved, version):
    path, data = saved
    with_metadata(path, data, version=version)
    expected = f"has format version {version}, this clnp reads 1. Use the clnp that wrote it"
    with pytest.raises(CheckpointError, match=expected):
        load(path)


def test_files_of_others_are_refused(tmp_path):
    path = tmp_path / "net"
    safetensors.torch.save_file(mlp().state_dict(), path)
    with pytest.raises(CheckpointError, match="net is not a clnp checkpoint"):
        load(path)
    torch.save(mlp().state_dict(), path)
    with pytest.raises(CheckpointError, match="net is not a clnp checkpoint"):
        load(path)
    for data in (b"", b"{}", b"hello, world, this is text", bytes(100)):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match="net is not a clnp checkpoint"):
            load(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"net does not exist\. Check the path"):
        load(tmp_path / "net")


def test_a_compiled_network_is_saved_as_the_network_itself(tmp_path):
    net = make()
    learn(net, "a", example("mlp"))
    clnp.save(torch.compile(net, backend="eager"), tmp_path / "net")
    assert load(tmp_path / "net").certificates == net.certificates


def test_arguments_of_other_kinds_are_refused(tmp_path):
    net = make()
    with pytest.raises(ArgumentError, match=r"net is of type NoneType\. It must be a ContinualNet"):
        clnp.save(None, tmp_path / "net")
    with pytest.raises(ArgumentError, match=r"path is None\. It must be a path, as text or a"):
        clnp.save(net, None)
    with pytest.raises(ArgumentError, match="path is 3"):
        load(3)
    with pytest.raises(ArgumentError, match="path is None"):
        checkpoint.attached(None)
    with pytest.raises(ArgumentError, match=r"model is of type NoneType\. It must be a model like"):
        clnp.load(tmp_path / "net", None)
    net.begin_task("a")
    with pytest.raises(ArgumentError, match=r"state is of type dict\. It must be a copy by open_"):
        net.set_open_state({})


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read: Is a directory"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (clnp.models.MLP(6, (8, 5), 4), r"fc1 is Linear\(in_features=6, out_features=8"),
        (clnp.models.MLP(6, (7, 5), 3), r"fc3 is Linear\(in_features=5, out_features=3"),
        (clnp.models.MLP(6, (7,), 4), r"fc2 is Linear\(in_features=7, out_features=4"),
        (Residual(), r"\(model\) is Residual\(\), expected MLP\(\)"),
    ],
)
def test_another_model_is_refused(saved, model, expected):
    path, _ = saved
    before = copied_state(model)
    with pytest.raises(CheckpointError, match=f"net was made from another model: {expected}"):
        clnp.load(path, model)
    assert same_state(model.state_dict(), before)


def test_a_model_with_another_constant_is_refused(tmp_path):
    net = make("shifted")
    clnp.save(net, tmp_path / "net")
    other = NETWORKS["shifted"][0]()
    other.register_buffer("mean", torch.zeros(7))
    with pytest.raises(CheckpointError, match=r"(?s)net was made from another model: .*mean"):
        clnp.load(tmp_path / "net", other)


def test_a_network_that_was_damaged_before_it_was_saved_is_not_loaded(tmp_path):
    net = make()
    learn(net, "a", example("mlp"))
    net.model.fc1.weight_frozen[0, 0] += 1
    clnp.save(net, tmp_path / "net")
    with pytest.raises(ForgettingError, match=r"task 'a' has changed: fc1\.weight"):
        load(tmp_path / "net")


@pytest.mark.parametrize("function", ["replace", "fsync", "open"])
def test_a_failed_save_leaves_the_old_file_and_nothing_else(saved, monkeypatch, function):
    path, data = saved
    net = load(path)
    net.abandon_task()
    before = copied_state(net)

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(OSError, match="No space left"):
        clnp.save(net, path)
    monkeypatch.undo()
    assert path.read_bytes() == data
    assert os.listdir(path.parent) == ["net"]
    assert same_state(net.state_dict(), before)


def test_every_loaded_tensor_has_memory_of_its_own(saved):
    path, _ = saved
    for tensor in load(path).state_dict().values():
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


class Activated(nn.Module):
    """A dense network with an activation of its own and dropout."""

    def __init__(self, activation: nn.Module, dropout: nn.Module) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 5), nn.Linear(5, 4)
        self.activation, self.dropout = activation, dropout

    def forward(self, x):
        return self.fc2(self.dropout(self.activation(self.fc1(x))))


def test_a_model_that_computes_something_else_is_refused(tmp_path):
    x = example("mlp")
    net = clnp.ContinualNet(Activated(nn.ReLU(), nn.Dropout(0.5)), x)
    before = learn(net, "a", x)
    clnp.save(net, tmp_path / "net")
    for activation, expected in (
        (nn.Tanh(), r"activation is Tanh\(\), expected ReLU\(\)"),
        (nn.Sequential(nn.ReLU()), r"activation is Sequential\(\), expected ReLU\(\)"),
    ):
        with pytest.raises(CheckpointError, match=f"net was made from another model: {expected}"):
            clnp.load(tmp_path / "net", Activated(activation, nn.Dropout(0.5)))
    for rate in (0.0, 0.5, 0.9):
        model = Activated(nn.ReLU(), nn.Dropout(rate))
        loaded = clnp.load(tmp_path / "net", model)
        assert torch.equal(loaded(x, task="a"), before)
        assert loaded.model.dropout.p == rate


def test_a_tilde_is_the_home_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    clnp.save(make(), "~/net")
    assert os.listdir(tmp_path) == ["net"]
    assert load("~/net").tasks == ()
    assert load(Path("~/net")).tasks == ()


def test_a_file_may_have_a_long_name(tmp_path):
    path = tmp_path / ("n" * 250)
    clnp.save(make(), path)
    clnp.save(make(), path)
    assert os.listdir(tmp_path) == [path.name]
    load(path)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", ["mlp", "conv", "depthwise"])
def test_an_open_task_pruned_to_nothing_comes_back(tmp_path, name, head):
    network, _ = NETWORKS[name]
    net, x = make(name, head=head), example(name)
    for ended in (False, True):
        if ended:
            learn(net, "a", x)
        net.begin_task("b")
        net.prune(dict.fromkeys(net.graph.groups, ()))
        clnp.save(net, tmp_path / "net")
        loaded = clnp.load(tmp_path / "net", network())
        assert same_state(loaded.state_dict(), net.state_dict())
        assert torch.equal(loaded.eval()(x), net.eval()(x))
        net.abandon_task()


def test_what_is_attached_comes_back_and_an_optimizer_goes_on_as_if_never_stopped(tmp_path):
    x = example("mlp")
    y = torch.arange(len(x)) % 3
    net = make()
    net.begin_task("a")
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)

    def step(net, optimizer):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    step(net, optimizer)
    extra = {
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "note": "tensor:",
        "list": [None, 1.5],
    }
    clnp.save(net, tmp_path / "net", attached=extra)
    loaded = load(tmp_path / "net")
    found = clnp.storage.attached(tmp_path / "net")
    assert (found["epoch"], found["note"], found["list"]) == (3, "tensor:", [None, 1.5])
    again = torch.optim.AdamW(loaded.parameters(), lr=0.05)
    again.load_state_dict(found["optimizer"])
    for _ in range(3):
        step(net, optimizer)
        step(loaded, again)
    for one, other in zip(net.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(one, other)
    clnp.save(make(), tmp_path / "bare")
    assert clnp.storage.attached(tmp_path / "bare") is None


def test_what_cannot_be_stored_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ArgumentError, match="which cannot be stored"):
        clnp.save(make(), tmp_path / "net", attached={"f": print})
    assert not (tmp_path / "net").exists()


def test_a_network_that_is_loaded_in_inference_mode_can_be_trained(tmp_path):
    net, x = make("mlp"), example("mlp")
    before = learn(net, "a", x)
    net.begin_task("b")
    clnp.save(net, tmp_path / "net")
    with torch.inference_mode():
        loaded = clnp.load(tmp_path / "net", mlp())
    train(loaded, x)
    assert torch.equal(loaded(x, task="a"), before)


def test_constants_that_are_not_saved_are_converted_when_a_network_is_loaded(tmp_path):
    def made():
        torch.manual_seed(0)
        model = Assembled(
            lambda m, x: m.fc(m.first(x) * m.scale), first=nn.Linear(6, 5), fc=nn.Linear(5, 2)
        )
        model.register_buffer("scale", torch.tensor(1 / 3), persistent=False)
        return model

    x = torch.randn(3, 6, dtype=torch.float64)
    net = clnp.ContinualNet(made(), x.float()).double()
    net.begin_task("a")
    net.end_task()
    clnp.save(net, tmp_path / "net")
    loaded = clnp.load(tmp_path / "net", made())
    assert torch.equal(loaded(x, task="a"), net(x, task="a"))

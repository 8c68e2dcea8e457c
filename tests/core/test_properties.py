"""Zero forgetting, exactly: properties over random architectures, optimizers and heads.

Every comparison is `torch.equal` or an equal SHA-256: nothing that happens after a task has ended
may change one bit of its outputs.
"""

import copy
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import Tensor, nn
from torch.nn import functional as F

import clnp
from support.architectures import FAMILIES, Architecture, Choices, architectures, keeps, mlp
from support.networks import copied_state, same_state

EXAMPLES = settings.default.max_examples // 10
few = settings(max_examples=EXAMPLES)
heads = st.sampled_from(["multi", "single"])
seeds = st.integers(0, 2**16)

OPTIMIZERS = {
    "sgd": lambda tensors: torch.optim.SGD(tensors, lr=0.1),
    "momentum": lambda tensors: torch.optim.SGD(tensors, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda tensors: torch.optim.AdamW(tensors, lr=0.05, weight_decay=0.5),
}


class Witness:
    """What every ended task answered when it ended, to be compared with what it answers now."""

    def __init__(self, net: clnp.ContinualNet, architecture: Architecture) -> None:
        self.inputs = [architecture.inputs(5, seed=1), architecture.inputs(1, seed=2)]
        self.answers: dict[str, list[Tensor]] = {}
        self.certificates: dict[str, clnp.core.Certificate] = {}
        self.note(net)

    def note(self, net: clnp.ContinualNet) -> None:
        """Remember what each task answers that has ended since."""
        for task in net.tasks:
            if task not in self.answers:
                self.answers[task] = [net(x, task=task).detach() for x in self.inputs]
                assert all(bool(a.isfinite().all()) for a in self.answers[task])
        self.certificates = net.certificates

    def check(self, net: clnp.ContinualNet, *, plain: bool = True) -> None:
        """Fail unless every ended task is, bit by bit, what it was; `plain` exports it too."""
        assert list(net.tasks) == list(self.answers)
        for task, answers in self.answers.items():
            narrow = net.subnetwork(task) if plain else None
            for x, answer in zip(self.inputs, answers, strict=True):
                assert torch.equal(net(x, task=task), answer), task
                assert narrow is None or torch.equal(narrow(x), answer), task
        assert net.certificates == self.certificates
        net.verify()


def made(architecture: Architecture, head: str) -> clnp.ContinualNet:
    """A network, in training mode."""
    return clnp.ContinualNet(architecture.make(), architecture.inputs(2), head=head)


def has_room(net: clnp.ContinualNet, architecture: Architecture) -> bool:
    """Whether another task fits: a single head needs neurons of its own."""
    free = net.ledger.free()
    read = [group for group, _, _ in architecture.axes[architecture.classifier][1]]
    return net.head == "multi" or any(free[group] for group in read)


def train(
    net: clnp.ContinualNet,
    architecture: Architecture,
    optimizer: str | torch.optim.Optimizer = "adamw",
    *,
    steps: int = 2,
    clip: float | None = None,
) -> None:
    """A few steps in training mode on the open task."""
    net.train()
    parameters = list(net.parameters())
    x = architecture.inputs(6, seed=3)
    if not parameters:
        return
    if isinstance(optimizer, str):
        optimizer = OPTIMIZERS[optimizer](parameters)
    for _ in range(steps):
        outputs = net(x)
        target = torch.arange(len(x)) % outputs.shape[1]
        loss = F.cross_entropy(outputs, target) + net.l1_penalty(1e-3)
        optimizer.zero_grad()
        if loss.requires_grad:  # Not where neither the outputs nor the penalty have a Parameter.
            loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()


def free_part(net: clnp.ContinualNet) -> Iterator[Tensor]:
    """All that the open task may change: its Parameters and its BatchNorm statistics."""
    yield from net.parameters()
    yield from (t for name, t in net.named_buffers() if name.endswith("_free"))


def poison(net: clnp.ContinualNet) -> None:
    """NaN in everything that the open task may change."""
    with torch.no_grad():
        for tensor in free_part(net):
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)


def learn(data, net: clnp.ContinualNet, architecture: Architecture, *, num_tasks: int = 2) -> None:
    """Some tasks, each of which claims some of the free neurons: none, all, or anything between."""
    for _ in range(num_tasks):
        if not has_room(net, architecture):
            return
        net.begin_task(f"task {len(net.tasks)}")
        train(net, architecture, steps=1)
        net.end_task(data.draw(keeps(net.ledger.free())))


def two_tasks(
    data, family: str, head: str, *, dropout: bool = False
) -> tuple[clnp.ContinualNet, Architecture, Witness]:
    """A network with up to two ended tasks, and what they answer."""
    torch.manual_seed(0)
    architecture = data.draw(architectures((family,), dropout=dropout))
    net = made(architecture, head)
    learn(data, net, architecture)
    return net, architecture, Witness(net, architecture)


@contextmanager
def temporary_file() -> Iterator[Path]:
    """A path in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "net.safetensors"


@pytest.mark.parametrize("family", FAMILIES)
@few
@given(data=st.data(), head=heads, seed=seeds)
def test_later_tasks_change_nothing(family, data, head, seed):
    torch.manual_seed(seed)
    architecture = data.draw(architectures((family,), dropout=True))
    net = made(architecture, head)
    witness = Witness(net, architecture)
    for number in range(3):
        if not has_room(net, architecture):
            break
        net.begin_task(f"task {number}", data.draw(st.integers(1, architecture.num_outputs)))
        witness.check(net, plain=False)
        optimizer = data.draw(st.sampled_from(list(OPTIMIZERS)))
        train(net, architecture, optimizer, clip=data.draw(st.sampled_from([None, 0.1])))
        witness.check(net, plain=False)
        recalibrate = data.draw(st.sampled_from([None, [architecture.inputs(4, seed=5)]]))
        net.end_task(data.draw(keeps(net.ledger.free())), recalibrate=recalibrate)
        witness.note(net)
        witness.check(net)


@pytest.mark.parametrize("family", FAMILIES)
@few
@given(data=st.data(), head=heads, lr=st.sampled_from([1e30, float("inf")]))
def test_a_task_that_diverges_changes_nothing(family, data, head, lr):
    net, architecture, witness = two_tasks(data, family, head, dropout=True)
    if not has_room(net, architecture):
        return
    net.begin_task("diverges")
    parameters = list(net.parameters())
    if parameters:
        optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=0.1)
        train(net, architecture, optimizer, steps=4)
    if not all(bool(tensor.isfinite().all()) for tensor in free_part(net)):
        with pytest.raises(clnp.errors.DivergedError, match="diverged"):
            net.end_task()
        assert net.open_task == "diverges"
        witness.check(net, plain=False)
    net.abandon_task()
    learn(data, net, architecture, num_tasks=1)
    witness.note(net)
    witness.check(net)


@pytest.mark.parametrize("family", FAMILIES)
@few
@given(data=st.data(), head=heads)
def test_an_ended_task_reads_nothing_that_is_free(family, data, head):
    net, architecture, witness = two_tasks(data, family, head)
    if not has_room(net, architecture):
        with pytest.raises(clnp.errors.CapacityError, match="does not fit"):
            net.begin_task("full")
        return
    before = copied_state(net)
    net.begin_task("poisoned", 1)
    if data.draw(st.booleans()):
        train(net, architecture)
        net.prune(data.draw(keeps(net.ledger.free())))
    poison(net)
    witness.check(net)
    # A training step spreads the NaN wherever it can go.
    train(net, architecture, "momentum", steps=1)
    net.eval()
    net(architecture.inputs(3))
    witness.check(net, plain=False)
    with temporary_file() as path:
        clnp.save(net, path)
        witness.check(clnp.load(path, architecture.make()), plain=False)
    net.abandon_task()
    assert same_state(net.state_dict(), before)
    witness.check(net, plain=False)


@pytest.mark.parametrize("family", FAMILIES)
@few
@given(data=st.data(), head=heads)
def test_a_task_answers_as_its_plan_predicted(family, data, head):
    torch.manual_seed(0)
    architecture = data.draw(architectures((family,)))
    net = made(architecture, head)
    x = architecture.inputs(5, seed=1)
    for number in range(2):
        if not has_room(net, architecture):
            return
        net.begin_task(f"task {number}")
        train(net, architecture, steps=3)
        activity = net.measure_activity([x])
        predictions: list[Tensor] = []

        def score(predict, predictions=predictions) -> float:
            predictions.append(predict(x))
            target = torch.arange(len(x)) % architecture.num_outputs
            return -F.cross_entropy(predictions[-1], target).item()

        theta = data.draw(st.sampled_from([None, 0.0, 0.05, 0.3]))
        if theta is None:
            margin = data.draw(st.sampled_from([0.0, 0.1]))
            plan = net.plan_pruning(activity, score, margin=margin, allow_guessing=True)
            kept = [point.kept for point in plan.curve]
            predicted = predictions[kept.index(plan.kept)]
        else:
            plan = net.plan_pruning(activity, score, thresholds=theta)
            predicted = predictions[-1]
        net.end_task(plan)
        assert torch.equal(net(x, task=f"task {number}"), predicted)
        assert torch.equal(net.subnetwork(f"task {number}")(x), predicted)


@pytest.mark.parametrize("family", FAMILIES)
@few
@given(data=st.data(), head=heads)
def test_saving_and_loading_changes_nothing(family, data, head):
    net, architecture, witness = two_tasks(data, family, head)
    fits = has_room(net, architecture)
    if fits:
        net.begin_task("open")
        train(net, architecture, "adamw")
    with temporary_file() as path:
        clnp.save(net, path)
        loaded = clnp.load(path, architecture.make())
    witness.check(loaded)
    assert (loaded.open_task, loaded.ledger) == (net.open_task, net.ledger)
    if not fits:
        return
    for each in (net, loaded):
        train(each, architecture, "adamw")
    for a, b in zip(free_part(net), free_part(loaded), strict=True):
        assert torch.equal(a, b)
    keep = data.draw(keeps(net.ledger.free()))
    assert net.end_task(keep) == loaded.end_task(keep)
    witness.note(net)
    witness.check(loaded)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_task_pruned_to_nothing_can_be_saved_and_loaded(momentum, tmp_path):
    choices = Choices(norm="affine", momentum=momentum)
    architecture = mlp((4, 3), choices, num_inputs=2, num_outputs=2)
    net = made(architecture, "multi")
    net.begin_task("open")
    net.prune({"fc0": []})  # norm0 has no channel now, and fc1 has rows that read nothing.
    clnp.save(net, tmp_path / "net")
    loaded = clnp.load(tmp_path / "net", architecture.make())
    x = architecture.inputs(3)
    assert torch.equal(loaded.eval()(x), net.eval()(x))


@pytest.mark.parametrize("family", FAMILIES)
@few
@given(data=st.data(), head=heads, extra=st.integers(0, 3))
def test_widening_changes_nothing(family, data, head, extra):
    net, architecture, witness = two_tasks(data, family, head)
    before = net.ledger.free()
    chosen = data.draw(st.sets(st.sampled_from(list(architecture.groups)), min_size=1))
    net.widen(dict.fromkeys(chosen, extra))
    after = {group: count + extra * (group in chosen) for group, count in before.items()}
    assert net.ledger.free() == after
    witness.check(net)
    learn(data, net, architecture, num_tasks=1)
    witness.note(net)
    witness.check(net)


@pytest.mark.parametrize("family", FAMILIES)
@few
@given(data=st.data(), head=heads)
def test_a_copy_lives_on_its_own(family, data, head):
    net, architecture, witness = two_tasks(data, family, head)
    if has_room(net, architecture):
        net.begin_task("open")
        train(net, architecture)
    before = copied_state(net)
    other = copy.deepcopy(net)
    witness.check(other)
    if other.open_task:
        net.eval()
        other.eval()
        x = architecture.inputs(3)
        assert torch.equal(net(x), other(x))
        train(other, architecture, "momentum")
        other.end_task(data.draw(keeps(other.ledger.free())))
    assert same_state(net.state_dict(), before)
    witness.check(net)
    assert {task: other.certificates[task] for task in net.tasks} == witness.certificates
    for task, answers in witness.answers.items():
        assert torch.equal(other(witness.inputs[0], task=task), answers[0])


@few
@given(architecture=architectures(), head=heads)
def test_initial_weights_are_copied(architecture, head):
    torch.manual_seed(0)
    model = architecture.make()
    before = copy.deepcopy(model.state_dict())
    net = clnp.ContinualNet(model, architecture.inputs(2), head=head)
    net.begin_task("a", initial=model)
    x = architecture.inputs(3)
    assert torch.equal(net.eval()(x), copy.deepcopy(model).eval()(x))
    train(net, architecture, "momentum")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


@few
@given(architecture=architectures(), head=heads)
def test_what_is_frozen_is_no_parameter(architecture, head):
    torch.manual_seed(0)
    net = made(architecture, head)
    net.begin_task("a")
    net.end_task({group: range(0, size, 2) for group, size in architecture.groups.items()})
    assert list(net.parameters()) == []
    assert not any(tensor.requires_grad for tensor in net.buffers())
    if has_room(net, architecture):
        net.begin_task("b")
        names = [name.rpartition(".")[2] for name, _ in net.named_parameters()]
        assert {name.rpartition("_")[2] for name in names} <= {"free", "reuse"}
        size = sum(p.numel() for p in net.parameters())
        assert size < sum(p.numel() for p in architecture.make().parameters())


class Life(RuleBasedStateMachine):
    """Anything that can happen to a network, in any order."""

    @initialize(architecture=architectures(dropout=True), head=heads, seed=seeds)
    def make(self, architecture, head, seed) -> None:
        torch.manual_seed(seed)
        self.architecture = architecture
        self.net = made(architecture, head)
        self.witness = Witness(self.net, architecture)
        self.count = 0
        self.poisoned = False

    def is_open(self) -> bool:
        return self.net.open_task is not None

    @precondition(lambda self: not self.is_open())
    @rule(data=st.data())
    def begin(self, data) -> None:
        name = f"task {self.count}"
        if not has_room(self.net, self.architecture):
            with pytest.raises(clnp.errors.CapacityError, match="does not fit"):
                self.net.begin_task(name)
            return
        self.count += 1
        self.poisoned = False
        self.net.begin_task(name, data.draw(st.integers(1, self.architecture.num_outputs)))

    @precondition(is_open)
    @rule(optimizer=st.sampled_from(list(OPTIMIZERS)), clip=st.sampled_from([None, 0.1]))
    def train(self, optimizer, clip) -> None:
        train(self.net, self.architecture, optimizer, steps=1, clip=clip)

    @precondition(is_open)
    @rule()
    def poison(self) -> None:
        self.poisoned = any(True for _ in free_part(self.net))
        poison(self.net)

    @precondition(lambda self: self.is_open() and not self.poisoned)
    @rule()
    def recalibrate(self) -> None:
        self.net.recalibrate([self.architecture.inputs(4, seed=6)])

    @precondition(lambda self: self.is_open() and not self.poisoned)
    @rule(theta=st.sampled_from([0.0, 0.1, 0.5]))
    def prune_by_activity(self, theta) -> None:
        activity = self.net.measure_activity([self.architecture.inputs(4, seed=7)])
        self.net.prune(self.net.plan_pruning(activity, thresholds=theta))

    @precondition(lambda self: self.is_open() and not self.poisoned)
    @rule(data=st.data())
    def end(self, data) -> None:
        activity = self.net.measure_activity([self.architecture.inputs(4, seed=7)])
        self.net.end_task(data.draw(keeps(activity.num_free())))
        self.witness.note(self.net)

    @precondition(is_open)
    @rule()
    def abandon(self) -> None:
        self.net.abandon_task()

    @precondition(lambda self: not self.is_open())
    @rule(data=st.data())
    def widen(self, data) -> None:
        group = data.draw(st.sampled_from(list(self.architecture.groups)))
        self.net.widen({group: data.draw(st.integers(0, 2))})

    @rule()
    def save_and_load(self) -> None:
        with temporary_file() as path:
            clnp.save(self.net, path)
            self.net = clnp.load(path, self.architecture.make())

    @rule()
    def copy(self) -> None:
        self.net = copy.deepcopy(self.net)

    @rule(training=st.booleans())
    def set_mode(self, training) -> None:
        self.net.train(training)
        if self.is_open():
            self.net(self.architecture.inputs(4, seed=8))

    @invariant()
    def nothing_is_forgotten(self) -> None:
        if hasattr(self, "net"):
            self.witness.check(self.net, plain=False)

    def teardown(self) -> None:
        if hasattr(self, "net"):
            self.witness.check(self.net)


def test_nothing_is_forgotten_whatever_happens():
    run_state_machine_as_test(
        Life, settings=settings(max_examples=3 * EXAMPLES, stateful_step_count=15)
    )

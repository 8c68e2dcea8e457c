"""The passes of a network: of the open task, of one ended task, and of all together."""

import copy
import pickle
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest
import torch
import torch.utils.checkpoint
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import clnp
from clnp.core.layers.stage import Pass, Staged
from clnp.core.structure.axis import positions
from clnp.errors import TaskError
from support.architectures import (
    FAMILIES,
    Architecture,
    Choices,
    architectures,
    keeps,
    mlp as dense,
)
from support.assembled import Assembled
from support.networks import (
    HEADS,
    NETWORKS,
    copied_state,
    example,
    first,
    half,
    learn,
    make,
    mlp,
    num_parameters,
    same_state,
    train,
)

few = settings(max_examples=settings.default.max_examples // 10)


heads = st.sampled_from(HEADS)


X = example("mlp")


def check(net: clnp.ContinualNet, *args: Tensor, **kwargs: Tensor) -> dict[str, Tensor]:
    """What all tasks answer, if that is what each of them answers by itself."""
    answers = net.predict_all(*args, **kwargs)
    assert tuple(answers) == net.tasks
    for task, answer in answers.items():
        torch.testing.assert_close(answer, net(*args, **kwargs, task=task))
    return answers


def has_room(net: clnp.ContinualNet) -> bool:
    """Whether another task fits: a single head needs neurons of its own."""
    free = net.ledger.free()
    return net.head == "multi" or any(free[group] for group in net._body.head_groups)


def learned(name: str, head: str, num_tasks: int = 3) -> tuple[clnp.ContinualNet, Tensor]:
    """A network of that name with some ended tasks, and an input of it."""
    net, x = make(name, head=head), example(name)
    for number in range(num_tasks):
        if has_room(net):
            learn(net, f"task {number}", x)
    return net, x


def same(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    """Whether all tasks of the one answer in the other, and the same to the last bit."""
    return all(torch.equal(answer, others[task]) for task, answer in some.items())


@pytest.mark.parametrize("family", FAMILIES)
@few
@given(data=st.data(), head=heads, seed=st.integers(0, 2**16))
def test_whatever_tasks_claim_they_answer_as_one_by_one(family, data, head, seed):
    torch.manual_seed(seed)
    architecture: Architecture = data.draw(architectures((family,), dropout=True))
    x = architecture.inputs(3, seed=1, dtype=torch.float64)
    model = architecture.make().double()
    net = clnp.ContinualNet(model, architecture.inputs(2, dtype=torch.float64), head=head)
    assert net.predict_all(x) == {}
    before: dict[str, Tensor] = {}
    for number in range(data.draw(st.integers(1, 4))):
        if not has_room(net):
            break
        net.begin_task(f"task {number}", data.draw(st.integers(2, architecture.num_outputs)))
        if list(net.parameters()):
            train(net, x, steps=1)
        assert same(before, net.predict_all(x))
        net.end_task(data.draw(keeps(net.ledger.free())))
        answers = check(net, x)
        assert same(before, answers)
        before = answers
        extra = data.draw(st.integers(0, 2))
        net.widen(dict.fromkeys(data.draw(st.sets(st.sampled_from(list(net.graph.groups)))), extra))
        assert same(before, net.predict_all(x))


def of_later_tasks(net: clnp.ContinualNet, num_tasks: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Every frozen tensor, and where in it lies what the first tasks do not read."""
    frozen = net._body.stage.frozen
    own = {group: range(n) for group, n in net.ledger.rows[num_tasks - 1].widths.items()}
    for layer in net._body.layers.values():
        rows = positions(layer.site.rows, frozen, own)
        for slot in layer.slots:
            tensor = getattr(layer, f"{slot.name}_frozen")
            others = torch.ones_like(tensor, dtype=torch.bool)
            columns = positions(layer.site.columns, frozen, own) if slot.has_columns else None
            if columns is None:
                others[rows] = False
            else:
                others[rows[:, None], columns] = False
            yield tensor, others
    for number in range(num_tasks, len(net.tasks)):
        weight = getattr(net._body.head, f"weight_{number}")
        yield weight, torch.ones_like(weight, dtype=torch.bool)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_task_reads_nothing_of_a_later_one(name, head):
    net, x = learned(name, head)
    before = net.predict_all(x)
    for num_tasks in range(len(net.tasks) - 1, 0, -1):
        num_poisoned = 0
        for tensor, others in of_later_tasks(net, num_tasks):
            tensor[others] = torch.nan
            num_poisoned += int(others.sum())
        assert num_poisoned
        net._body.stage.showing = None
        after = net.predict_all(x)
        for number, task in enumerate(net.tasks):
            assert torch.equal(after[task], before[task]) == (number < num_tasks)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NETWORKS)
def test_what_stands_in_for_a_group_is_not_read(name, head):
    net, x = make(name, head=head), example(name)
    for group in net.graph.groups:
        net.begin_task(f"without {group}")
        net.end_task({**half(net), group: []})
    net.begin_task("last")
    net.end_task(first(dict.fromkeys(net.graph.groups, 1)))
    before, num_spoilt = check(net, x), 0

    def spoil(layer: Staged, _: object, outputs: Tensor) -> Tensor | None:
        nonlocal num_spoilt
        (segment,) = layer.site.rows
        usage = net.capacity().of(net.tasks[layer.stage.turn], segment.group)
        num_spoilt += usage.new == 0
        return outputs if usage.new else torch.full_like(outputs, torch.nan)

    for layer in net._body.layers.values():
        if layer.site.mixes:
            layer.register_forward_hook(spoil)
    assert same(before, net.predict_all(x))
    assert num_spoilt


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NETWORKS)
def test_all_tasks_together_compute_no_more_than_the_widest(name, head):
    net, x = learned(name, head)
    net.predict_all(x)
    for layer in net._body.layers.values():
        if layer.site.mixes:
            weights = [portion.tensors["weight"] for portion in layer._portions]
            num_rows = sum(len(weight) for weight in weights if weight.shape[1])
            assert num_rows == len(layer.weight_frozen)
            assert sum(weight.numel() for weight in weights) <= layer.weight_frozen.numel()


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NETWORKS)
def test_an_open_task_is_left_alone(name, head):
    net, x = learned(name, head, num_tasks=2)
    answers = net.predict_all(x)
    net.begin_task("open")
    train(net, x)
    other = copy.deepcopy(net)
    state, parameters = copied_state(net), list(net.parameters())
    modes = [module.training for module in net.modules()]
    assert same(answers, net.predict_all(x))
    assert "open" not in net.predict_all(x)
    assert [module.training for module in net.modules()] == modes
    assert same_state(net.state_dict(), state)
    assert all(a is b for a, b in zip(net.parameters(), parameters, strict=True))
    for each in (net, other):
        torch.manual_seed(0)
        for _ in range(2):
            train(each, x, steps=1)
            if each is net:
                net.predict_all(x)
    assert same_state(net.state_dict(), other.state_dict())
    activity = net.measure_activity([x])

    def score(predict) -> float:
        before = predict(x)
        assert same(answers, net.predict_all(x))
        assert torch.equal(predict(x), before)
        return 0.0

    net.end_task(net.plan_pruning(activity, score, thresholds=0.1))
    assert same(answers, check(net, x))
    net.verify()


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_reach_the_input(name, head):
    net, x = learned(name, head)
    assert not any(answer.requires_grad for answer in net.predict_all(x).values())
    x.requires_grad_()
    for task, answer in net.predict_all(x).items():
        found = torch.autograd.grad(answer.square().sum(), x, retain_graph=True)
        expected = torch.autograd.grad(net(x, task=task).square().sum(), x)
        torch.testing.assert_close(found, expected)
    with torch.no_grad():
        assert not any(answer.requires_grad for answer in net.predict_all(x).values())


def test_what_was_laid_out_outlives_inference_mode():
    net = learned("mlp", "multi")[0]
    with torch.inference_mode():
        before = net.predict_all(X)
    x = X.clone().requires_grad_()
    answers = net.predict_all(x)
    assert same(before, answers)
    answers["task 2"].sum().backward()
    assert bool(x.grad.any())


def test_tasks_are_laid_out_once(monkeypatch):
    net = learned("mlp", "multi")[0]
    calls = []
    layer = net.model.fc1
    kept = layer.portion_of
    monkeypatch.setattr(layer, "portion_of", lambda widths: calls.append(1) or kept(widths))
    before = net.predict_all(X)
    assert same(before, net.predict_all(X))
    assert len(calls) == 3
    net(X, task="task 1")
    assert not layer._portions
    assert same(before, net.predict_all(X))
    assert len(calls) == 6


def test_forward_may_go_on_after_the_classifier():
    class Averaged(nn.Module):
        """What follows the classifier mixes a task's outputs, in space and with one another."""

        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 1)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            y = self.conv2(F.relu(self.conv1(x)))
            y /= 0.1
            y = y.mean((2, 3))
            return {"p": y.softmax(1), "best": y.max(1, keepdim=True).values, "num": y.shape[1]}

    x = example("residual")
    net = clnp.ContinualNet(Averaged(), x)
    for num_outputs in (2, 7, 1):
        net.begin_task(str(num_outputs), num_outputs)
        net.end_task(half(net))
    for task, answer in net.predict_all(x).items():
        assert answer["num"] == answer["p"].shape[1] == int(task)
        torch.testing.assert_close(answer, net(x, task=task))


class Two(nn.Module):
    """Two inputs, one of which lies beside neurons: [batch, 6] twice -> [batch, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(6, 5), nn.Linear(11, 7), nn.Linear(7 + 5, 4)

    def forward(self, x: Tensor, *, y: Tensor) -> Tensor:
        h = torch.tanh(self.fc1(x))
        return self.fc3(torch.cat([F.relu(self.fc2(torch.cat([y, h], 1))), h], 1))


@pytest.mark.parametrize("head", HEADS)
def test_a_model_with_several_inputs_runs(head):
    y = example("mlp", seed=1)
    net = clnp.ContinualNet(Two(), {"x": X, "y": y}, head=head)
    for task in "abc":
        net.begin_task(task)
        net.end_task(half(net))
    assert same(check(net, X, y=y), check(net, x=X, y=y))


def test_forward_may_write_into_what_a_layer_has_read():
    class Writing(nn.Module):
        """In evaluation mode alone, where no gradient is in the way."""

        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2, self.fc3 = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.fc1(x))
            y = torch.tanh(self.fc2(h))
            h = h * 2 if self.training else h.mul_(2)
            return self.fc3(torch.cat([h, y], 1))

    net = clnp.ContinualNet(Writing(), X)
    for task in "abc":
        net.begin_task(task)
        net.end_task(half(net))
    check(net, X)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("turn", [0, 1, 2])
@pytest.mark.parametrize("num_calls", [0, 2])
def test_forward_takes_the_same_path_for_every_task(num_calls, turn, head):
    net = learned("mlp", head)[0]
    before = net.predict_all(X)
    layer, stage = net.model.fc2, net._body.stage
    kept = layer.forward

    def other(x: Tensor) -> Tensor:
        if stage.turn != turn:
            return kept(x)
        outputs = x.new_zeros(len(x), len(layer._portions[stage.turn].tensors["weight"]))
        for _ in range(num_calls):
            outputs = kept(x)
        return outputs

    layer.forward = other
    with pytest.raises(TaskError, match="fc2 did not run exactly once for every task: predict_all"):
        net.predict_all(X)
    layer.forward = kept
    assert same(before, net.predict_all(X))


def test_a_layer_that_no_task_runs_is_not_missed():
    class Early(nn.Module):
        """A network that leaves a layer out for inputs of one kind."""

        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2, self.fc3 = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = F.relu(self.fc1(x))
            return self.fc3(h + self.fc2(h) if len(x) > 1 else h)

    net = clnp.ContinualNet(Early(), X)
    for task in "abc":
        net.begin_task(task)
        net.end_task(half(net))
    check(net, X)
    check(net, X[:1])


@pytest.mark.parametrize("turn", [0, 1])
def test_a_pass_that_breaks_off_leaves_nothing(turn):
    net, x = learned("conv", "multi")
    before = net.predict_all(x)
    net.begin_task("open")
    net.train()
    modes = [module.training for module in net.modules()]

    def interrupt(layer: Staged, *_: object) -> None:
        if layer.stage.turn == turn:
            raise KeyboardInterrupt

    hook = net.model.fc1.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        net.predict_all(x)
    hook.remove()
    assert (net._body.stage.running, net._body.stage.kept) == (Pass.IDLE, {})
    assert [module.training for module in net.modules()] == modes
    assert same(before, net.predict_all(x))
    assert net._body.stage.kept == {}


def test_neurons_that_overflow_spoil_no_other_task():
    architecture = dense((4, 4), Choices(), num_inputs=2, num_outputs=2)
    net = clnp.ContinualNet(architecture.make(), architecture.inputs(2))
    x = architecture.inputs(3)
    for scale in (1.0, 1e30, 1.0):
        net.begin_task(f"task {len(net.tasks)}")
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(scale)
        net.end_task(half(net))
    answers = net.predict_all(x)
    assert not bool(answers["task 1"].isfinite().all())
    assert bool(answers["task 0"].isfinite().all())
    torch.testing.assert_close(answers["task 0"], net(x, task="task 0"))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_open_task_in_two_passes_is_the_ended_one_in_one(name, head):
    net, x = make(name, head=head).double(), example(name).double()
    learn(net, "a", x)
    net.begin_task("b")
    train(net, x)
    outputs = net.eval()(x)
    net.end_task()
    torch.testing.assert_close(net(x, task="b"), outputs)


class Noise(nn.Module):
    """Has a mode in a place of its own."""

    @property
    def training(self):
        return self.__dict__.get("mode", True)

    @training.setter
    def training(self, mode):
        self.__dict__["mode"] = mode

    def forward(self, x):
        return F.dropout(x, 0.5, self.training)


def test_a_mode_that_is_a_property_is_followed():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), Noise(), nn.Linear(8, 3))
    net = clnp.ContinualNet(model, X)
    net.begin_task("a")
    net.end_task({"0": range(4)})
    net.begin_task("b")
    net.train()
    assert torch.equal(net(X, task="a"), net(X, task="a"))
    assert net.model[2].training


def test_a_network_can_be_copied_after_an_interrupted_pass():
    net = make()
    before = learn(net, "a", X)
    net.begin_task("b")

    def interrupt(layer: nn.Module, *_: object) -> None:
        if layer.stage.running is Pass.FREE:
            raise KeyboardInterrupt

    hook = net.model.fc2.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        net(X)
    hook.remove()
    other = copy.deepcopy(net)
    assert torch.equal(other(X), net(X))
    assert torch.equal(other(X, task="a"), before)


def test_backward_reaches_every_parameter_of_the_open_task():
    for name in NETWORKS:
        net, x = make(name), example(name)
        learn(net, "a", x)
        net.begin_task("b")
        net.train()
        net(x).square().sum().backward()
        assert all(parameter.grad is not None for parameter in net.parameters())


def test_a_model_runs_through_its_network_only():
    net = make()
    expected = r"fc1 runs outside of a forward pass of its network\. Call the network, net\(x\) or"
    with pytest.raises(TaskError, match=expected):
        net.model(X)
    net.begin_task("a")
    for run in (net.model, net.model.fc1):
        with pytest.raises(TaskError, match=expected):
            run(X)
    net.end_task()
    net(X, task="a")
    with pytest.raises(TaskError, match=expected):
        net.model(X)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_layer_that_runs_again_in_the_backward_pass_is_an_error(reentrant):
    net = make()
    learn(net, "a", X)
    net.begin_task("b")
    layer = net.model.fc2
    kept = layer.forward

    def again(x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(kept, x, use_reentrant=reentrant)

    layer.forward = again
    outputs = net(X)
    with pytest.raises(TaskError, match=r"fc2 runs outside of .* Gradient checkpointing"):
        outputs.sum().backward()


@pytest.mark.parametrize(
    ("skipped", "expected"),
    [
        (Pass.FROZEN, "fc2 did not run when the frozen neurons did. From the second task on, for"),
        (Pass.FREE, "fc2 ran only when the frozen neurons did. From the second task on, forward"),
    ],
)
def test_forward_takes_the_same_path_in_both_passes(skipped, expected):
    net = make()
    before = learn(net, "a", X)
    net.begin_task("b")
    layer, stage = net.model.fc2, net._body.stage
    net.eval()
    outputs = net(X)
    kept = layer.forward
    layer.forward = lambda x: (
        x.new_zeros(8, 3 if skipped is Pass.FROZEN else 2) if stage.running is skipped else kept(x)
    )
    with pytest.raises(TaskError, match=expected):
        net(X)
    layer.forward = kept
    assert torch.equal(net(X), outputs)
    assert torch.equal(net(X, task="a"), before)


def test_what_an_interrupted_pass_carried_is_not_used():
    net = make()
    learn(net, "a", X)
    net.begin_task("b")
    net.eval()

    def interrupt(layer: nn.Module, *_: object) -> None:
        if layer.stage.running is Pass.FREE:
            raise KeyboardInterrupt

    hook = net.model.fc1.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        net(X)
    hook.remove()
    layer, stage, kept = net.model.fc2, net._body.stage, net.model.fc2.forward
    assert "fc2" in stage.carried
    layer.forward = lambda x: x.new_zeros(8, 3) if stage.running is Pass.FROZEN else kept(x)
    with pytest.raises(TaskError, match="fc2 did not run when the frozen neurons did"):
        net(X)


class Scaled(nn.Module):
    """A network that goes on in place with what the classifier gives."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 7), nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc2(torch.tanh(self.fc1(x)))
        y /= 0.1
        return y


@pytest.mark.parametrize(("head", "kept"), [("multi", 3), ("multi", 7), ("single", 3)])
def test_forward_may_go_on_in_place_after_the_classifier(head, kept):
    x = X.double()
    net = clnp.ContinualNet(Scaled().double(), x, head=head).eval()
    net.begin_task("a")
    net.end_task(first({"fc1": kept}))
    net.begin_task("b")
    outputs = net(x)
    outputs.square().sum().backward()
    found = torch.cat([block.grad for path, block in net._body.weights() if path == "fc2"], 1)
    net.zero_grad()  # The task ends with the weights that it began with.
    net.end_task()
    torch.testing.assert_close(net(x, task="b"), outputs, rtol=1e-12, atol=1e-12)
    dense = net.subnetwork("b").requires_grad_()
    dense(x).square().sum().backward()
    torch.testing.assert_close(found, dense.fc2.weight.grad[:, -found.shape[1] :])


class Nested(nn.Module):
    """A network whose input lies in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(6, 7), nn.Linear(7, 5), nn.Linear(5, 4)

    def forward(self, batch: dict[str, tuple[Tensor, Tensor]]) -> Tensor:
        x, shift = batch["x"]
        return self.fc3(torch.tanh(self.fc2(torch.tanh(self.fc1(x + shift)))))


def test_gradients_reach_an_input_in_a_structure_through_the_frozen_neurons():
    def batch(x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        return {"x": (x, torch.zeros_like(x))}

    torch.manual_seed(0)
    net = clnp.ContinualNet(Nested().double(), (batch(X.double()),))
    net.begin_task("a")
    net.end_task(first({"fc1": 4, "fc2": 2}))
    net.begin_task("b")
    found, expected = X.double().requires_grad_(), X.double().requires_grad_()
    net(batch(found)).square().sum().backward()
    net.zero_grad()  # The task ends with the weights that it began with.
    net.end_task()
    net.subnetwork("b")(batch(expected)).square().sum().backward()
    torch.testing.assert_close(found.grad, expected.grad)


def held(net: clnp.ContinualNet) -> list[Tensor]:
    """The tensors that layers and head have laid out at the moment."""
    parts = [module for module in net.modules() if isinstance(module, Staged)]
    assert len(parts) == 3
    shown = [tensor for part in parts for tensor in part._shown.values()]
    portions = [p for part in parts for portion in part._portions for p in portion.tensors.values()]
    return [*shown, *portions]


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.to("cpu"),
        lambda net: net.load_state_dict(net.state_dict()),
        lambda net: net.begin_task("c", 2),
    ],
)
@pytest.mark.parametrize("ask", [lambda net: net(X, task="a"), lambda net: net.predict_all(X)])
def test_what_was_laid_out_is_let_go(change, ask):
    """Old weights would stay in memory, on a GPU perhaps that the network has left."""
    net = make()
    for name in "ab":
        learn(net, name, X)
    before = ask(net)
    assert held(net)
    assert not held(copy.deepcopy(net))
    change(net)
    assert not held(net)
    after = ask(net)
    for one, other in zip(
        *(tuple(o.values()) if isinstance(o, dict) else (o,) for o in (before, after)), strict=True
    ):
        assert torch.equal(one, other)


@pytest.fixture
def busy_threads():
    """Threads that take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_threads_may_ask_different_tasks_while_another_trains(name, busy_threads):
    net, x = make(name), example(name)
    ended = {task: learn(net, task, x) for task in "ab"}
    net.begin_task("c")
    alone = copy.deepcopy(net)

    def work(net):
        torch.manual_seed(0)  # The one thread that draws random numbers.
        train(net, x, steps=20)
        net.eval()
        activity = net.measure_activity([x, x])
        assert not any(module.training for module in net.modules())
        plan = net.plan_pruning(
            activity, lambda predict: float(predict(x)[0, 0]), margin=9.0, allow_guessing=True
        )
        net.prune(plan)
        net.recalibrate([x, x])
        assert not any(module.training for module in net.modules())
        train(net, x, steps=20)
        net.eval()
        net.end_task(recalibrate=[x])
        return net(x, task="c")

    def ask(task):
        answers = 0
        while not trained.done() or answers < 20:
            with torch.no_grad():
                assert torch.equal(net(x, task=task), ended[task])
            answers += 1

    with ThreadPoolExecutor(4) as pool:
        trained = pool.submit(work, net)
        for asked in [pool.submit(ask, task) for task in "aba"]:
            asked.result()
        assert torch.equal(trained.result(), work(alone))
    assert alone.certificates == net.certificates
    net.verify()


@pytest.mark.parametrize("how", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_does_not_wait_for_the_network_that_it_was_made_from(how):
    net, x = make(), example("mlp")
    ended = learn(net, "a", x)
    with net._body.lock, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: how(net)(x, task="a"))
        assert torch.equal(asked.result(timeout=60), ended)


def test_a_module_that_was_put_in_later_is_in_evaluation_mode_for_ended_tasks():
    net, x = make("conv"), example("conv")
    ended = learn(net, "a", x)
    net.model.dropout = nn.Dropout(0.9)
    net.train()
    assert torch.equal(net(x, task="a"), ended)
    assert net.model.dropout.training
    net.begin_task("b")
    net.measure_activity([x])
    assert net.model.dropout.training


class OwnTrain(nn.Module):
    """Does something of its own when its mode changes; its normalisation stays as it is."""

    def __init__(self):
        super().__init__()
        self.first, self.bn, self.fc = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.rate = 0.0

    def train(self, mode=True):
        super().train(mode)
        self.bn.eval()
        self.rate = 0.5 if mode else 0.0

    def forward(self, x):
        h = self.bn(self.first(x))
        return self.fc(nn.functional.dropout(h, self.rate) if self.rate else h)


def test_a_model_may_do_something_of_its_own_when_its_mode_changes():
    torch.manual_seed(0)
    x = torch.randn(16, 6)
    net = clnp.ContinualNet(OwnTrain(), x)
    net.begin_task("a")
    net.eval()
    open_before = net(x)
    net.train()
    assert not torch.equal(net(x), open_before)
    activity = net.measure_activity([x])
    assert activity["first"].equal(net.measure_activity([x])["first"])
    assert (net.model.rate, net.model.training, net.model.bn.training) == (0.5, True, False)
    net.end_task({"first": range(4)})
    net.eval()
    before = net(x, task="a")
    net.train()
    assert torch.equal(net(x, task="a"), before)
    assert (net.model.rate, net.model.training, net.model.bn.training) == (0.5, True, False)
    assert torch.equal(net.subnetwork("a")(x), before)


def test_layers_may_be_called_by_keyword_and_by_forward():
    def run(m, x):
        h = torch.relu(m.first(input=x))
        return m.fc(input=torch.relu(m.second.forward(m.bn(input=h))))

    def plainly(m, x):
        return m.fc(torch.relu(m.second(m.bn(torch.relu(m.first(x))))))

    torch.manual_seed(0)
    layers = {"first": nn.Linear(6, 8), "bn": nn.BatchNorm1d(8)}
    layers |= {"second": nn.Linear(8, 7), "fc": nn.Linear(7, 3)}
    x = torch.randn(32, 6)
    found = []
    for forward in (run, plainly):
        model = Assembled(forward, **layers)
        net = clnp.ContinualNet(model, x)
        net.begin_task("a", initial=model)
        activity = net.measure_activity(x.split(8))
        net.end_task(net.plan_pruning(activity, thresholds=0.05), recalibrate=x.split(8))
        found.append((activity["first"], activity["second"], net(x, task="a")))
    assert (found[0][0] > 0).any()
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.filterwarnings("ignore")
@torch._dynamo.config.patch(recompile_limit=2)
def test_a_compiled_network_stays_compiled_if_the_compiler_is_reset():
    num_runs = 0

    def backend(graph, inputs):
        def run(*given):
            nonlocal num_runs
            num_runs += 1
            return graph.forward(*given)

        return run

    x = torch.randn(4, 6)
    net = clnp.ContinualNet(clnp.models.MLP(6, (40, 40), 3), x)
    compiled = torch.compile(net, backend=backend)
    for number in range(4):
        net.begin_task(f"t{number}")
        torch.compiler.reset()
        before = num_runs
        outputs = compiled(x)
        assert num_runs > before, number
        assert torch.allclose(outputs, net(x), atol=1e-6)
        outputs.sum().backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()
        net.end_task({group: range(2) for group in net.graph.groups})
    torch.compiler.reset()


def test_the_mode_does_not_change_in_the_middle_of_a_pass():
    net = make()
    changed = threading.Event()
    with net._body.lock:
        thread = threading.Thread(target=lambda: (net.eval(), changed.set()))
        thread.start()
        assert not changed.wait(0.05)
        assert net.training
    thread.join()
    assert not net.training


WAITING = {
    "predict_all": lambda net, path: net.predict_all(example("mlp")),
    "save": lambda net, path: clnp.save(net, path),
    "state_dict": lambda net, path: net.state_dict(),
    "begin_task": lambda net, path: net.begin_task("c"),
    "subnetwork": lambda net, path: net.subnetwork("b"),
    "verify": lambda net, path: net.verify(),
}


@pytest.mark.parametrize("call", WAITING)
def test_a_call_waits_for_a_task_that_is_ending_in_another_thread(call, tmp_path):
    net, x = make(), example("mlp")
    learn(net, "a", x)
    net.begin_task("b")
    begun = threading.Event()

    def ask():
        begun.set()
        return WAITING[call](net, tmp_path / "net.safetensors")

    with ThreadPoolExecutor(1) as pool:
        with net._body.lock:
            asked = pool.submit(ask)
            begun.wait()
            with pytest.raises(TimeoutError):
                asked.result(0.05)
            net.end_task(half(net))
        answer = asked.result()
    assert list(net.predict_all(x)) == ["a", "b"]
    if call == "predict_all":
        assert list(answer) == ["a", "b"]
    if call == "save":
        loaded = clnp.load(tmp_path / "net.safetensors", mlp())
        assert loaded.tasks == ("a", "b")


@pytest.mark.parametrize(("name", "num_calls"), [("mlp", 36), ("conv", 61)])
def test_a_training_step_takes_few_calls(name, num_calls):
    """ARCHITECTURE.md has the path and the numbers."""
    net, x = make(name), example(name)
    learn(net, "a", x)
    net.begin_task("b")
    files: list[str] = []

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/clnp/core/" in frame.f_code.co_filename:
            files.append(frame.f_code.co_filename)

    for profile in (None, count):  # The first step sets up what the others find.
        sys.setprofile(profile)
        try:
            (net(x).square().mean() + net.l1_penalty(1e-5)).backward()
        finally:
            sys.setprofile(None)
    assert len(files) <= num_calls
    assert len(set(files)) <= 6


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_subnetwork_is_plain_narrow_and_gives_the_same_outputs(name, head):
    network, _ = NETWORKS[name]
    net, x = make(name, head=head), example(name)
    before = {task: learn(net, task, x) for task in "ab"}
    net.begin_task("c")
    for task, outputs in before.items():
        plain = net.subnetwork(task)
        assert torch.equal(plain(x), outputs)
        assert not any("clnp" in type(m).__module__ for m in plain.modules() if m is not plain)
        assert type(plain) is network or name == "mlp"
        assert num_parameters(plain) < num_parameters(network())
        assert plain.state_dict().keys() == network().state_dict().keys()
        assert not any(module.training for module in plain.modules())
        assert not any(parameter.requires_grad for parameter in plain.parameters())


class PerStep(nn.Module):
    """A Linear that reads a transposed tensor, which is computed otherwise if it asks for grads."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv1d(11, 8, 3, padding=1), nn.Linear(8, 11)

    def forward(self, x):
        return self.fc(self.conv(x).relu().transpose(1, 2))


def test_a_subnetwork_computes_as_the_network_does():
    for seed in range(5):
        torch.manual_seed(seed)
        x = torch.randn(4, 11, 7)
        net = clnp.ContinualNet(PerStep(), x)
        net.begin_task("a")
        net.end_task(first({"conv": 4}))
        assert torch.equal(net.subnetwork("a")(x), net(x, task="a"))


def test_a_subnetwork_has_the_widths_of_the_ledger():
    net, x = make("conv"), example("conv")
    net.begin_task("a")
    net.end_task(first({"conv1": 2, "conv2": 3, "fc1": 4}))
    plain = net.subnetwork("a")
    assert plain.conv1.weight.shape == (2, 3, 3, 3)
    assert plain.conv2.weight.shape == (3, 2, 3, 3)
    assert plain.bn2.num_features == 3
    assert plain.fc1.weight.shape == (4, 27)
    assert plain.fc2.weight.shape == (4, 4)
    assert (plain.conv2.in_channels, plain.conv2.out_channels) == (2, 3)
    assert torch.equal(plain(x), net(x, task="a"))


def test_a_subnetwork_can_be_trained_and_shares_nothing_with_the_network():
    net, x = make("conv"), example("conv")
    before = learn(net, "a", x)
    state = copied_state(net)
    plain = net.subnetwork("a")
    start = copied_state(plain)
    train(plain.requires_grad_(), x)
    assert not torch.equal(plain.fc1.weight, start["fc1.weight"])
    assert not torch.equal(plain.bn1.running_mean, start["bn1.running_mean"])
    assert same_state(net.state_dict(), state)
    assert torch.equal(net(x, task="a"), before)
    net.verify()


def test_a_subnetwork_has_the_classes_of_the_layers_and_what_users_gave_them():
    class Special(nn.Linear):
        pass

    def run(m, x):
        for layer in (m.first, m.second):
            x = torch.tanh(layer(x)) if isinstance(layer, Special) else layer(x) * layer.gain
        return m.fc(x)

    torch.manual_seed(0)
    layers = {"first": Special(6, 5), "second": nn.Linear(5, 5), "fc": nn.Linear(5, 4)}
    layers["second"].gain = 0.5
    x = example("mlp")
    net = clnp.ContinualNet(Assembled(run, **layers), x)
    assert isinstance(net.model.first, Special)
    before = learn(net, "a", x)
    plain = net.subnetwork("a")
    assert type(plain.first) is Special
    assert type(plain.second) is nn.Linear
    assert vars(plain.second).keys() == vars(layers["second"]).keys()
    assert torch.equal(plain(x), before)


def test_an_unknown_or_open_task_has_no_subnetwork():
    net, x = make(), example("mlp")
    learn(net, "first", x)
    net.begin_task("b")
    with pytest.raises(TaskError, match=r"unknown task 'firsd'. Did you mean 'first'\?"):
        net.subnetwork("firsd")
    with pytest.raises(TaskError, match="unknown task 'b'"):
        net.subnetwork("b")

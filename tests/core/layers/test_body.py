"""All ended tasks on one input: as one by one up to rounding, and unchanged for ever to the bit."""

import copy
from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import clnp
from clnp.core.layers.stage import Pass, Staged
from clnp.core.structure.axis import positions
from clnp.errors import TaskError
from support.architectures import FAMILIES, Architecture, Choices, architectures, keeps, mlp
from support.networks import (
    HEADS,
    NETWORKS,
    copied_state,
    example,
    first,
    half,
    learn,
    make,
    same_state,
    train,
)

few = settings(max_examples=max(5, settings.default.max_examples // 6))
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


def learnt(name: str, head: str, num_tasks: int = 3) -> tuple[clnp.ContinualNet, Tensor]:
    """A network of that name with some ended tasks, and an input of it."""
    net, x = make(name, head=head), example(name)
    for number in range(num_tasks):
        if has_room(net):
            learn(net, f"task {number}", x)
    return net, x


def same(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    """Whether all tasks of the one answer in the other, and the same to the last bit."""
    return all(torch.equal(answer, others[task]) for task, answer in some.items())


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NETWORKS)
def test_all_tasks_answer_as_one_by_one_and_for_ever_the_same(name, head):
    net, x = make(name, head=head), example(name)
    before: dict[str, Tensor] = {}
    for number in range(4):
        if not has_room(net):
            break
        learn(net, f"task {number}", x)
        answers = check(net, x)
        assert same(before, answers)
        assert same(answers, net.predict_all(x))
        before = answers
    assert len(before) >= 3


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


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("keep", [{"fc1": 0, "fc2": 2}, {"fc1": 2, "fc2": 0}, {"fc1": 0, "fc2": 0}])
@pytest.mark.parametrize("turn", [0, 1, 2])
def test_a_task_may_have_no_neuron_in_a_group(turn, keep, head):
    net = make(head=head)
    for number in range(3):
        net.begin_task(f"task {number}")
        train(net, X)
        net.end_task(first(keep if number == turn else {"fc1": 2, "fc2": 1}))
    check(net, X)


@pytest.mark.parametrize("name", NETWORKS)
def test_tasks_of_a_full_network_answer_with_what_the_others_have_learnt(name):
    net, x = make(name), example(name)
    for task in "abc":
        net.begin_task(task)
        train(net, x)
        net.end_task()
    check(net, x)


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


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_task_reads_nothing_of_a_later_one(name, head, value):
    net, x = learnt(name, head)
    before = net.predict_all(x)
    for num_tasks in range(len(net.tasks) - 1, 0, -1):
        num_poisoned = 0
        for tensor, others in of_later_tasks(net, num_tasks):
            tensor[others] = value
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
    net, x = learnt(name, head)
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
    net, x = learnt(name, head, num_tasks=2)
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


def test_tasks_run_in_evaluation_mode_whatever_the_mode_is():
    net, x = learnt("conv", "multi")
    before = net.predict_all(x)
    net.train()
    net.model.bn1.eval()
    assert same(before, net.predict_all(x))
    assert net.model.dropout.training
    assert not net.model.bn1.training


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_reach_the_input(name, head):
    net, x = learnt(name, head)
    assert not any(answer.requires_grad for answer in net.predict_all(x).values())
    x.requires_grad_()
    for task, answer in net.predict_all(x).items():
        found = torch.autograd.grad(answer.square().sum(), x, retain_graph=True)
        expected = torch.autograd.grad(net(x, task=task).square().sum(), x)
        torch.testing.assert_close(found, expected)
    with torch.no_grad():
        assert not any(answer.requires_grad for answer in net.predict_all(x).values())


def test_what_was_laid_out_outlives_inference_mode():
    net = learnt("mlp", "multi")[0]
    with torch.inference_mode():
        before = net.predict_all(X)
    x = X.clone().requires_grad_()
    answers = net.predict_all(x)
    assert same(before, answers)
    answers["task 2"].sum().backward()
    assert bool(x.grad.any())


def test_tasks_are_laid_out_once(monkeypatch):
    net = learnt("mlp", "multi")[0]
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


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_loaded_network_and_a_copy_answer_the_same(name, head, tmp_path):
    net, x = learnt(name, head)
    before = net.predict_all(x)
    clnp.save(net, tmp_path / "net")
    loaded = clnp.load(tmp_path / "net", NETWORKS[name][0]())
    assert same(before, loaded.predict_all(x))
    assert same(before, copy.deepcopy(net).predict_all(x))
    state = copied_state(net)
    net.load_state_dict(state)
    assert same(before, net.predict_all(x))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", ["cnn", "wide"])
def test_images_may_be_in_another_memory_format(family, head):
    network = (
        clnp.models.WideCNN(3, widths=(6, 5, 4, 5, 6))
        if family == "wide"
        else NETWORKS["conv"][0]()
    )
    x = torch.randn(2, 3, 32, 32) if family == "wide" else example("conv")
    net = clnp.ContinualNet(network, x, head=head)
    for task in "ab":
        net.begin_task(task)
        net.end_task(half(net))
    check(net, x)
    check(net, x.to(memory_format=torch.channels_last))


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


@pytest.mark.parametrize("head", HEADS)
def test_neurons_may_lie_in_the_last_of_three_dimensions(head):
    x = torch.randn(2, 5, 6)
    layers = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 3)]
    net = clnp.ContinualNet(nn.Sequential(*layers), x, head=head)
    for task in "abc":
        net.begin_task(task)
        net.end_task(half(net))
    check(net, x)


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
    net = learnt("mlp", head)[0]
    before = net.predict_all(X)
    layer, stage = net.model.fc2, net._body.stage
    kept = layer.forward

    def other(x: Tensor) -> Tensor:
        if stage.turn != turn:
            return kept(x)
        outputs = x.new_zeros(len(x), len(layer.portion.tensors["weight"]))
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
    net, x = learnt("conv", "multi")
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


def test_laying_out_that_fails_leaves_the_tasks_as_they_were(monkeypatch):
    net = learnt("mlp", "multi")[0]
    before = {task: net(X, task=task) for task in net.tasks}

    def fail(widths: Sequence[object]) -> None:
        raise MemoryError

    monkeypatch.setattr(net.model.fc2, "portion_of", fail)
    with pytest.raises(MemoryError):
        net.predict_all(X)
    assert same(before, {task: net(X, task=task) for task in reversed(net.tasks)})


def test_neurons_that_overflow_spoil_no_other_task():
    architecture = mlp((4, 4), Choices(), num_inputs=2, num_outputs=2)
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

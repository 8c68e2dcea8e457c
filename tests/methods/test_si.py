import math

import pytest
import torch
from torch import nn

from clnp import Task, Training
from clnp.methods.dense import DenseNet
from clnp.methods.si import SI
from clnp.storage.packing import pack, unpack
from clnp.training.fit import Fit
from clnp.training.task import load
from support.forgetting import check_captured, check_resumes, remaining

CPU = torch.device("cpu")
NAME = "0.layers.0.weight"


def two_weights(start):
    """Outputs w_1 and w_2, whatever the input, which is 1."""
    net = DenseNet(nn.Sequential(nn.Linear(1, 2, bias=False)).double(), "0", shared_head=True)
    net.begin_task("first", 2)
    with torch.no_grad():
        net.trunk()[NAME].copy_(torch.tensor(start, dtype=torch.float64)[:, None])
    return net


def aims(name, targets):
    """The loss ((w_1 - t_1)^2 + (w_2 - t_2)^2) / 2, so that its gradient is w - t."""
    pair = (torch.ones(1, 1).double(), torch.tensor([targets], dtype=torch.float64))
    return load(Task(name, pair, pair, objective="regression"), CPU)


def by_hand(weights, start, importance, targets, *, steps, lr, momentum, clip, c):
    """The steps of one task in plain numbers: the weights, and omega."""
    weights, velocity, omega = list(weights), [0.0, 0.0], [0.0, 0.0]
    for _ in range(steps):
        own = [w - t for w, t in zip(weights, targets, strict=True)]
        full = [g + 2 * c * importance[k] * (weights[k] - start[k]) for k, g in enumerate(own)]
        shrink = min(1.0, clip / (math.hypot(*full) + 1e-6))
        for k in range(2):
            velocity[k] = momentum * velocity[k] + shrink * full[k]
            omega[k] -= own[k] * (-lr * velocity[k])
            weights[k] -= lr * velocity[k]
    return weights, omega


def test_two_tasks_are_learned_as_the_formulas_say():
    c, xi, steps = 0.7, 0.05, 4
    rates = {"lr": 0.3, "momentum": 0.5, "clip": 0.8}
    options = {"momentum": 0.5}
    training = Training(
        epochs=steps, lr=0.3, optimizer="SGD", optimizer_options=options, clip_norm=0.8
    )
    weights, importance = [0.5, -1.0], [0.0, 0.0]
    net = two_weights(weights)
    strategy = SI(strength=c, damping=xi).strategy(net)
    for index, targets in enumerate([(2.0, -0.7), (-1.0, 0.4), (0.3, 0.2)]):
        if index:
            net.begin_task(f"task {index}", 2)
        strategy.begin(index, None)
        assert strategy.path[NAME].tolist() == [[0.0], [0.0]]
        fit = Fit(net, aims("a", targets), training, seed=0, rule=strategy.rule())
        fit.run()
        start = weights
        weights, omega = by_hand(start, start, importance, targets, steps=steps, c=c, **rates)
        assert net.trunk()[NAME][:, 0].tolist() == pytest.approx(weights, rel=1e-12)
        assert strategy.path[NAME][:, 0].tolist() == pytest.approx(omega, rel=1e-12)
        surrogate = sum(c * importance[k] * (weights[k] - start[k]) ** 2 for k in range(2))
        last = fit.epochs[-1]
        assert last.penalised_loss - last.loss == pytest.approx(surrogate, abs=1e-6)
        strategy.end(index, aims("a", targets))
        net.end_task()
        importance = [
            max(0.0, importance[k] + omega[k] / ((weights[k] - start[k]) ** 2 + xi))
            for k in range(2)
        ]
        assert strategy.importance[NAME][:, 0].tolist() == pytest.approx(importance, rel=1e-12)
    assert min(importance) > 0.1


def test_an_importance_does_not_fall_below_zero():
    net = two_weights([1.0, 1.0])
    strategy = SI(damping=0.5).strategy(net)
    strategy.begin(0, None)
    for path, expected in ([0.25, -0.25], [0.5, 0.0]), ([-0.1, 0.1], [0.3, 0.2]):
        strategy.path[NAME] = torch.tensor(path).double()[:, None]
        strategy.end(0, None)
        assert strategy.importance[NAME][:, 0].tolist() == pytest.approx(expected)


def test_the_surrogate_is_what_autograd_would_make_of_it():
    net = two_weights([0.5, -1.0])
    net.end_task()
    strategy = SI(strength=0.3).strategy(net)
    strategy.begin(1, None)
    strategy.importance[NAME] = torch.tensor([[2.0], [5.0]]).double()
    weight, anchor = net.trunk()[NAME], strategy.anchor[NAME].clone()
    with torch.no_grad():
        weight.copy_(torch.tensor([[1.5], [0.25]]))
    weight.grad = torch.tensor([[1.0], [-1.0]]).double()
    rule = strategy.rule()
    rule.after_backward()
    loss = 0.3 * (strategy.importance[NAME] * (anchor - weight).square()).sum()
    (surrogate,) = torch.autograd.grad(loss, weight)
    assert torch.allclose(weight.grad, surrogate + torch.tensor([[1.0], [-1.0]]))
    assert rule.penalty() == pytest.approx(loss.item())


def test_the_path_integral_is_what_the_loss_has_fallen_by():
    torch.manual_seed(0)
    net = DenseNet(
        nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)), "2", shared_head=True
    )
    net.begin_task("a", 3)
    x = torch.randn(60, 5)
    data = load(Task("a", (x, x[:, :3].argmax(1)), (x, x[:, :3].argmax(1))), CPU)
    strategy = SI().strategy(net)
    strategy.begin(0, None)
    training = Training(epochs=400, lr=1e-3, optimizer="Adam", batch_size=60)
    fit = Fit(net, data, training, seed=0, rule=strategy.rule())
    fit.run()
    fallen = fit.epochs[0].loss - data.objective.loss(net(x), x[:, :3].argmax(1)).item()
    assert fallen > 0.2
    total = sum(path.sum().item() for path in strategy.path.values())
    assert total == pytest.approx(fallen, rel=0.02)


def test_a_step_that_overflowed_leaves_no_trace():
    net = two_weights([0.5, -1.0])
    strategy = SI().strategy(net)
    strategy.begin(0, None)
    rule = strategy.rule()
    net.trunk()[NAME].grad = torch.tensor([[math.inf], [math.nan]]).double()
    rule.after_backward()
    rule.after_step()
    assert strategy.path[NAME].tolist() == [[0.0], [0.0]]


def test_only_what_tasks_share_is_held():
    net = DenseNet(
        nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)), "2", shared_head=False
    )
    strategy = SI().strategy(net)
    for index in range(2):
        net.begin_task(f"task {index}", 3)
        strategy.begin(index, None)
        assert set(strategy.importance) == {"0.weight", "0.bias"}
        net.end_task()
    assert strategy.stored_bytes() == {"importance": 4 * (5 * 8 + 8)}


def test_tensors_stay_where_they_are_while_a_task_is_learned():
    net = two_weights([0.5, -1.0])
    strategy = SI().strategy(net)
    strategy.begin(0, None)
    kept = (strategy.importance, strategy.anchor, strategy.path)
    before = [tensors[NAME].data_ptr() for tensors in kept]
    training = Training(epochs=3, optimizer="SGD")
    Fit(net, aims("a", (1.0, 2.0)), training, seed=0, rule=strategy.rule()).run()
    assert [tensors[NAME].data_ptr() for tensors in kept] == before
    state = strategy.state()
    for name, tensors in zip(("importance", "anchor", "path"), kept, strict=True):
        assert state[name] is tensors


def test_it_forgets_less_than_fine_tuning(tmp_path, score_of_finetuning):
    assert remaining(SI(strength=1.0, damping=0.01), tmp_path) > score_of_finetuning + 15


@pytest.mark.parametrize(("head", "keep"), [("single", False), ("multi", True)])
def test_si_resumes(tmp_path, head, keep):
    check_resumes(SI(strength=1.0, keep_optimizer=keep), tmp_path, head=head)


@pytest.mark.parametrize("keep", [False, True])
def test_the_optimizer_goes_on_from_task_to_task_if_it_is_kept(keep):
    """Beside the surrogate, which is too weak to matter, as Adam alone over both tasks."""
    net = two_weights([0.5, -1.0])
    strategy = SI(strength=1e-30, keep_optimizer=keep).strategy(net)
    training = Training(epochs=5, lr=0.1, optimizer="Adam", alpha=0.0)
    weights = torch.tensor([0.5, -1.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=0.1)
    for index, targets in enumerate([(2.0, -0.7), (-1.0, 0.4), (0.3, 0.2)]):
        if index:
            net.begin_task(f"task {index}", 2)
        strategy.begin(index, None)
        Fit(net, aims("a", targets), training, seed=0, rule=strategy.rule()).run()
        strategy.end(index, aims("a", targets))
        net.end_task()
        tensors = {}
        state = unpack(pack(strategy.state(), tensors, name="si"), tensors)
        strategy = SI(strength=1e-30, keep_optimizer=keep).strategy(net)
        strategy.restore(state)  # As after a crash between two tasks.
        if not keep:
            optimizer = torch.optim.Adam([weights], lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            loss = (weights - torch.tensor(targets, dtype=torch.float64)).square().sum() / 2
            loss.backward()
            optimizer.step()
        found = net.trunk()[NAME][:, 0].tolist()
        assert found == pytest.approx(weights.tolist(), rel=1e-12)
    assert strategy.stored_bytes().get("optimizer", 0) == (2 * 2 * 8 + 4 if keep else 0)


def test_the_head_of_a_new_task_begins_without_averages(tmp_path):
    net = DenseNet(nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 2)), "1", shared_head=False)
    strategy = SI(keep_optimizer=True).strategy(net)
    training = Training(epochs=2, optimizer="Adam")
    pair = (torch.ones(4, 1), torch.tensor([0, 1, 0, 1]))
    for index in range(2):
        net.begin_task(f"task {index}", 2)
        strategy.begin(index, None)
        data = load(Task(f"task {index}", pair, pair, num_outputs=2), CPU)
        fit = Fit(net, data, training, seed=0, rule=strategy.rule())
        steps = [float(fit.optimizer.state[weight].get("step", 0)) for weight in net.parameters()]
        assert steps == ([0, 0, 0, 0] if index == 0 else [2, 2, 0, 0])
        fit.run()
        strategy.end(index, data)
        net.end_task()


@pytest.mark.gpu
@pytest.mark.parametrize("keep", [False, True])
def test_steps_can_be_captured(tmp_path, keep):
    check_captured(SI(strength=1.0, keep_optimizer=keep), tmp_path)

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import clnp
from clnp import Task, Training
from clnp.errors import ArgumentError
from clnp.methods import ewc
from clnp.methods.dense import DenseNet
from clnp.methods.ewc import EWC, fisher_diagonal
from clnp.records import RunFailed, RunStarted
from clnp.training.fit import Fit
from clnp.training.task import load
from support.forgetting import check_resumes, experiment, remaining
from support.networks import ConvNet, copied_state, same_state

CPU = torch.device("cpu")
WEIGHT, BIAS = "0.layers.0.weight", "0.layers.0.bias"


def regression(weights, bias):
    """Softmax regression in which all is shared: one input, two classes."""
    net = DenseNet(nn.Sequential(nn.Linear(1, 2)).double(), "0", shared_head=True)
    net.begin_task("a", 2)
    with torch.no_grad():
        net.trunk()[WEIGHT].copy_(torch.tensor(weights, dtype=torch.float64)[:, None])
        net.trunk()[BIAS].copy_(torch.tensor(bias, dtype=torch.float64))
    return net


def data(inputs):
    pair = (torch.tensor(inputs, dtype=torch.float64)[:, None], torch.arange(len(inputs)) % 2)
    return load(Task("a", pair, pair), CPU)


def fisher_by_hand(weights, bias, inputs):
    """E (d log p(y | x) / d theta)^2: for x, of w_j p_j (1 - p_j) x^2, and of b_j p_j (1 - p_j)."""
    of_weight = of_bias = 0.0
    for x in inputs:
        p = 1 / (1 + math.exp((weights[1] - weights[0]) * x + bias[1] - bias[0]))
        of_weight += p * (1 - p) * x * x / len(inputs)
        of_bias += p * (1 - p) / len(inputs)
    return of_weight, of_bias


WEIGHTS, BIASES, INPUTS = [0.8, -0.4], [0.1, 0.3], [-1.5, 0.5, 2.0, -0.25]


def test_the_fisher_information_of_softmax_regression():
    net = regression(WEIGHTS, BIASES)
    many = data(INPUTS * 2500)
    found = fisher_diagonal(net, many, num_samples=10000, seed=0, chunk=500)
    of_weight, of_bias = fisher_by_hand(WEIGHTS, BIASES, INPUTS)
    assert found[WEIGHT][:, 0].tolist() == pytest.approx([of_weight] * 2, rel=0.05)
    assert found[BIAS].tolist() == pytest.approx([of_bias] * 2, rel=0.05)


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [1, 0, 1, 1]])
def test_the_fisher_information_is_a_mean_of_squares_of_single_gradients(monkeypatch, labels):
    """With labels that are known, it is the same in plain numbers: (1[y = j] - p_j)^2 x^2."""
    net, drawn = regression(WEIGHTS, BIASES), dict(zip(INPUTS, labels, strict=True))
    seen = []
    forward = net.forward
    monkeypatch.setattr(net, "forward", lambda inputs: seen.append(inputs) or forward(inputs))

    def multinomial(chances, num):
        return torch.tensor([[drawn[x.item()]] for x in seen[-1]])

    monkeypatch.setattr(torch, "multinomial", multinomial)
    found = fisher_diagonal(net, data(INPUTS), num_samples=100, seed=0, chunk=2)
    expected = [0.0, 0.0]
    for x, label in drawn.items():
        scores = [math.exp(w * x + b) for w, b in zip(WEIGHTS, BIASES, strict=True)]
        for j in range(2):
            expected[j] += ((label == j) - scores[j] / sum(scores)) ** 2 * x * x / len(INPUTS)
    assert found[WEIGHT][:, 0].tolist() == pytest.approx(expected, rel=1e-9)


def test_the_fisher_information_uses_so_many_samples_and_leaves_the_network_alone():
    torch.manual_seed(0)
    net = DenseNet(ConvNet(), "fc2", shared_head=False)
    net.begin_task("a", 4)
    x = torch.randn(50, 3, 8, 8)
    images = load(Task("a", (x, torch.arange(50) % 4)), CPU)
    net.train()
    before = copied_state(net.model)
    sizes = []
    handle = net.model.conv1.register_forward_hook(lambda m, i, o: sizes.append(len(i[0])))
    fisher = fisher_diagonal(net, images, num_samples=20, seed=0)
    handle.remove()
    assert sum(sizes) == 20 + 2  # And one call for each chunk, which stands for its samples.
    assert net.training
    assert same_state(copied_state(net.model), before)
    assert fisher.keys() == net.trunk().keys()
    assert not any(name.startswith("fc2") for name in fisher)
    assert all(bool((values >= 0).all()) for values in fisher.values())
    again = fisher_diagonal(net, images, num_samples=20, seed=0)
    assert same_state(fisher, again)


def test_the_samples_of_the_fisher_information_differ_from_run_to_run(tmp_path, monkeypatch):
    seeds = []

    def noted(*given, seed, **options):
        seeds.append(seed)
        return fisher_diagonal(*given, seed=seed, **options)

    monkeypatch.setattr(ewc, "fisher_diagonal", noted)
    for seed in range(2):
        experiment(EWC(num_samples=10), seed=seed, epochs=1).run(tmp_path / str(seed))
    assert len(set(seeds)) == 6  # Three tasks with two seeds.


def test_the_pull_of_two_tasks_is_the_sum_of_two_penalties():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    net = DenseNet(model, "2", shared_head=True)
    strategy = EWC(strength=7.0, num_samples=40).strategy(net)
    places, fishers = [], []
    for index in range(2):
        net.begin_task(f"task {index}", 2)
        strategy.begin(index, None)
        with torch.no_grad():
            for weight in net.trunk().values():
                weight += torch.randn_like(weight)
        x = torch.randn(40, 3).double()
        task = load(Task("a", (x, (x[:, 0] > 0).long()), (x, (x[:, 0] > 0).long())), CPU)
        torch.manual_seed(index)
        strategy.end(index, task)
        net.end_task()
        places.append({name: weight.detach().clone() for name, weight in net.trunk().items()})
        torch.manual_seed(index)
        seed = int(torch.randint(2**62, ()))
        fishers.append(fisher_diagonal(net, task, num_samples=40, seed=seed))
    net.begin_task("task 2", 2)
    with torch.no_grad():
        for weight in net.trunk().values():
            weight += torch.randn_like(weight)
    loss = F.cross_entropy(net(x), (x[:, 0] > 0).long())
    penalties = [
        3.5 * (fisher[name] * (weight - place[name]).square()).sum()
        for place, fisher in zip(places, fishers, strict=True)
        for name, weight in net.trunk().items()
    ]
    weights = list(net.trunk().values())
    expected = torch.autograd.grad(loss + sum(penalties), weights, retain_graph=True)
    torch.autograd.backward(loss)
    strategy.rule().after_backward()
    for weight, gradient in zip(weights, expected, strict=True):
        assert torch.allclose(weight.grad, gradient, rtol=1e-10, atol=1e-12)
        assert gradient.abs().max() > 0.01
    num_weights = sum(weight.numel() for weight in weights)
    assert strategy.stored_bytes() == {"importance": 2 * 8 * num_weights}


def test_steps_of_a_second_task_by_hand():
    """SGD on the loss of one sample, and the spring lambda F (w - w*) of each weight."""
    net = regression(WEIGHTS, [0.0, 0.0])
    strategy = EWC(strength=2.0, num_samples=3).strategy(net)
    strategy.begin(0, None)
    strategy.end(0, data(INPUTS))
    net.end_task()
    net.begin_task("b", 2)
    strategy.begin(1, None)
    stiffness = {name: values.flatten().tolist() for name, values in strategy.stiffness.items()}
    w, b, x, lr = list(WEIGHTS), [0.0, 0.0], 0.7, 0.4
    training = Training(epochs=3, lr=lr, optimizer="SGD")
    Fit(net, data([x]), training, seed=0, rule=strategy.rule()).run()  # Its label is 0.
    for _ in range(3):
        scores = [math.exp(w[j] * x + b[j]) for j in range(2)]
        for j in range(2):
            slope = scores[j] / sum(scores) - (j == 0)
            w[j] -= lr * (slope * x + 2.0 * stiffness[WEIGHT][j] * (w[j] - WEIGHTS[j]))
            b[j] -= lr * (slope + 2.0 * stiffness[BIAS][j] * b[j])
    assert net.trunk()[WEIGHT][:, 0].tolist() == pytest.approx(w, rel=1e-9)
    assert net.trunk()[BIAS].tolist() == pytest.approx(b, rel=1e-9)


def test_the_first_task_is_left_alone():
    net = regression(WEIGHTS, BIASES)
    strategy = EWC().strategy(net)
    strategy.begin(0, None)
    net.trunk()[WEIGHT].grad = torch.ones(2, 1).double()
    strategy.rule().after_backward()
    assert net.trunk()[WEIGHT].grad.tolist() == [[1.0], [1.0]]
    assert strategy.stored_bytes() == {"importance": 0}


def test_layers_that_came_frozen_are_held_too():
    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
    model[0].weight.requires_grad_(False)
    net = DenseNet(model, "2", shared_head=True)
    net.begin_task("a", 4)
    assert all(weight.requires_grad for weight in net.parameters())
    assert not model[0].weight.requires_grad


def test_it_forgets_less_than_fine_tuning(tmp_path, score_of_finetuning):
    assert remaining(EWC(strength=300.0), tmp_path) > score_of_finetuning + 15


@pytest.mark.parametrize("head", ["single", "multi"])
def test_ewc_resumes(tmp_path, head):
    check_resumes(EWC(strength=1e4, num_samples=100), tmp_path, head=head)


def test_the_fisher_information_is_that_of_a_classifier(tmp_path):
    x = torch.randn(40, 6)
    first = clnp.Task("first", (x, (x[:, 0] > 0).long()))
    task = clnp.Task("a", (x, x[:, :1]), objective="regression", num_outputs=1)
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1))
    config = clnp.LearnerConfig(training=clnp.Training(1))
    experiment = clnp.Experiment(model, x[:2], [first, task], config, baseline=EWC())
    events = []
    with pytest.raises(
        ArgumentError, match="ewc: task 'a' is regression, but the Fisher information"
    ):
        experiment.run(tmp_path / "run", on_event=events.append)
    assert [type(event) for event in events] == [RunStarted, RunFailed]

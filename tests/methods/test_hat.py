import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import clnp
from clnp import Experiment, LearnerConfig, Task, Training
from clnp.core.structure.discover import discover
from clnp.errors import ArgumentError
from clnp.methods.dense import DenseNet
from clnp.methods.hat import ATTENTION, HAT, along, annealed, compensation
from clnp.records import EpochEnded
from support.forgetting import forgotten, labelled, method_of, permuted_rule
from support.networks import NETWORKS, copied_state, example
from support.runs import break_off, untimed


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def small(*, shared=False, **options):
    """2-2-1-2 with an open task; the groups are "0", of two neurons, and "2", of one."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 2))
    )
    graph = discover(model, torch.zeros(2, 2), classifier="4")
    assert graph.groups == {"0": 2, "2": 1}
    net = DenseNet(model, "4", shared_head=shared, graph=graph)
    strategy = HAT(**options).strategy(net)
    net.begin_task("a", 2)
    strategy.begin(0, None)
    return net, strategy


def write(tensor, values):
    with torch.no_grad():
        tensor.copy_(torch.tensor(values))


def test_gates_become_steep_within_an_epoch():
    assert annealed(0.0, 400.0) == 1 / 400
    assert annealed(0.5, 400.0) == pytest.approx((400 + 1 / 400) / 2)
    assert annealed(1.0, 400.0) == 400
    _, strategy = small()
    rule = strategy.rule()
    place = strategy.scale.data_ptr()
    for over in (0.0, 0.25, 0.75):
        rule.before_step(over)
        assert float(strategy.scale) == pytest.approx(1 / 400 + (400 - 1 / 400) * over)
    assert strategy.scale.data_ptr() == place  # A captured step reads it there.


def test_neurons_are_read_through_their_gates():
    net, strategy = small(s_max=8.0)
    write(net.extra[ATTENTION], [0.5, -0.25, 1.0])
    strategy.rule().before_step(0.25)
    x = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    first, second, head = net.model[0], net.model[2], net.heads.layers[0]

    def by_hand(scale):
        gates = [sigmoid(scale * e) for e in (0.5, -0.25, 1.0)]
        hidden = F.relu(first(x)) * torch.tensor(gates[:2])
        # The layer itself would gate what it reads.
        return head(F.relu(F.linear(hidden, second.weight, second.bias)) * gates[2])

    assert torch.allclose(net.train()(x), by_hand(1 / 8 + (8 - 1 / 8) * 0.25))
    assert torch.allclose(net.eval()(x), by_hand(8.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("network", ["mlp", "conv"])
def test_a_network_of_another_dtype_is_learned(tmp_path, network, dtype):
    x = example(network, num=40).to(dtype)
    tasks = [Task(name, (x, torch.arange(40) % 4), test=(x, torch.arange(40) % 4)) for name in "ab"]
    config = LearnerConfig(training=Training(1, lr=0.01, batch_size=20, clip_norm=1.0))
    model = NETWORKS[network][0]().to(dtype)
    made = Experiment(model, x[:2], tasks, config, baseline=HAT())
    result = made.run(tmp_path / "run")
    assert len(result.scores) == 2


def test_the_regulariser_by_hand():
    net, strategy = small(s_max=8.0, strength=0.75)
    write(net.extra[ATTENTION], [0.5, -0.25, 1.0])
    a = [sigmoid(2.0 * e) for e in (0.5, -0.25, 1.0)]
    rule = strategy.rule()
    strategy.scale.fill_(2.0)
    assert rule.loss(None, None).item() == pytest.approx(0.75 * sum(a) / 3)
    strategy.masks = [torch.tensor([0.2, 0.0, 1.0]), torch.tensor([0.1, 0.4, 0.5])]
    expected = 0.75 * (a[0] * 0.8 + a[1] * 0.6 + a[2] * 0.0) / (0.8 + 0.6 + 0.0)
    assert strategy.rule().loss(None, None).item() == pytest.approx(expected)
    strategy.masks = [torch.ones(3)]
    free_of_charge = strategy.rule().loss(None, None)
    free_of_charge.backward()
    assert free_of_charge.item() == 0
    assert (net.extra[ATTENTION].grad == 0).all()


@pytest.mark.parametrize("scale", [1 / 400, 0.5, 30.0, 400.0])
def test_the_gradient_of_the_embedding_is_compensated(scale):
    values = [0.01, -0.3, 2.0, -6.0]
    found = compensation(torch.tensor(values), torch.tensor(scale), 400.0)
    for value, factor in zip(values, found.tolist(), strict=True):
        exponent = max(-50.0, min(50.0, scale * value))
        expected = 400 / scale * (math.cosh(exponent) + 1) / (math.cosh(value) + 1)
        assert factor == pytest.approx(expected, rel=1e-4)


def test_a_compensated_gradient_is_that_of_a_plain_sigmoid_times_s_max():
    net, strategy = small(s_max=8.0, strength=0.75)
    write(net.extra[ATTENTION], [0.5, -0.25, 1.0])
    rule = strategy.rule()
    strategy.scale.fill_(3.0)
    rule.loss(None, None).backward()
    rule.after_backward()
    slopes = [sigmoid(e) * (1 - sigmoid(e)) for e in (0.5, -0.25, 1.0)]
    expected = [8 * 0.75 / 3 * slope for slope in slopes]
    assert net.extra[ATTENTION].grad.tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("shared", [False, True])
def test_gradients_of_weights_are_masked_by_hand(shared):
    net, strategy = small(shared=shared)
    strategy.masks = [torch.tensor([0.2, 0.9, 0.0]), torch.tensor([0.1, 1.0, 0.6])]
    # The highest gates of earlier tasks are 0.2 and 1.0, then 0.6.
    rule = strategy.rule()
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    rule.after_backward()
    gradient = {name: weight.grad.tolist() for name, weight in net.trunk().items()}
    close = pytest.approx
    assert gradient.pop("0.weight") == [close([0.8, 0.8]), close([0.0, 0.0])]
    assert gradient.pop("0.bias") == close([0.8, 0.0])
    assert gradient.pop("2.weight") == [close([1 - 0.2, 1 - 0.6])]
    assert gradient.pop("2.bias") == close([0.4])
    if shared:  # All outputs are used by every task.
        assert gradient.pop("4.layers.0.weight") == [close([0.4]), close([0.4])]
        assert gradient.pop("4.layers.0.bias") == [0.0, 0.0]
    else:
        assert all((p.grad == 1).all() for p in net.heads.parameters())
    assert gradient == {}


def test_the_first_task_is_free():
    net, strategy = small(shared=True)
    rule = strategy.rule()
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    rule.after_backward()
    assert all((weight.grad == 1).all() for weight in net.trunk().values())


def test_embeddings_are_drawn_trained_and_clamped():
    net, strategy = small()
    embedding = net.extra[ATTENTION]
    assert any(parameter is embedding for parameter in net.parameters())
    write(embedding, [9.0, -7.0, 5.0])
    strategy.rule().after_step()
    assert embedding.tolist() == [6.0, -6.0, 5.0]
    wide = nn.Sequential(nn.Linear(2, 20_000), nn.ReLU(), nn.Linear(20_000, 2))
    graph = discover(wide, torch.zeros(2, 2), classifier="2")
    other = DenseNet(wide, "2", shared_head=False, graph=graph)
    HAT().strategy(other).begin(0, None)
    assert other.extra[ATTENTION].mean().item() == pytest.approx(0, abs=0.05)
    assert other.extra[ATTENTION].std().item() == pytest.approx(1, abs=0.05)


def test_gates_lie_along_axes_as_neurons_do():
    graph = discover(NETWORKS["conv"][0](), example("conv"))
    gates = torch.arange(sum(graph.groups.values())).float()
    starts = {"conv1": 0, "conv2": 6, "fc1": 11}
    fc1 = along(graph.sites["fc1"].columns, gates, graph)
    assert fc1.tolist() == [starts["conv2"] + entry // 9 for entry in range(45)]
    assert along(graph.sites["conv1"].columns, gates, graph).tolist() == [1.0] * 3
    both = discover(NETWORKS["concatenating"][0](), example("concatenating"))
    gates = torch.arange(sum(both.groups.values())).float() + 2
    assert along(both.sites["both"].columns, gates, both).tolist() == [
        *range(2, 7),  # left
        *[1] * 6,  # the input
        *range(7, 11),  # right
    ]


def test_the_end_of_a_task_stores_its_hard_gates():
    net, strategy = small(s_max=8.0)
    write(net.extra[ATTENTION], [0.5, -0.25, 1.0])
    x = torch.randn(5, 2)
    outputs = net.eval()(x)
    strategy.scale.fill_(1.0)  # As within an epoch.
    strategy.end(0, None)
    net.end_task()
    assert ATTENTION not in net.extra
    assert strategy.masks[0].tolist() == pytest.approx([sigmoid(8 * e) for e in (0.5, -0.25, 1)])
    with strategy.running(0):
        assert torch.equal(net(x), outputs)
    assert strategy.stored_bytes() == {"masks": 3 * 4}


def method(network="mlp", *, head="multi", device="cpu", **options):
    torch.manual_seed(0)
    given = {"epochs": 2, "lr": 0.1, "batch_size": 16, "optimizer": "SGD", **options}
    training = Training(**given)
    return method_of(HAT(training=training), network, head=head, device=device)


@pytest.mark.parametrize(
    ("network", "head"), [*((name, "multi") for name in NETWORKS), ("mlp", "single")]
)
def test_gates_that_are_open_or_shut_protect_a_task_to_the_bit(network, head):
    made = method(network, head=head, optimizer_options={"momentum": 0.9})
    made.learn(labelled("a", network=network))
    (gates,) = made.strategy.masks
    made.strategy.masks = [torch.arange(len(gates)).remainder(3).ne(0).float()]
    x = example(network, num=20, seed=9)
    outputs, before = made.predict(x, "a"), copied_state(made.net.model)
    made.learn(labelled("b", network=network, seed=1))
    assert torch.equal(made.predict(x, "a"), outputs)
    changed = {n for n, t in before.items() if not torch.equal(made.net.model.state_dict()[n], t)}
    assert {name for name in made.net.trunk() if name.endswith("weight")} <= changed


@pytest.mark.gpu
@pytest.mark.parametrize("network", ["mlp", "conv"])
def test_captured_steps_are_the_same_steps(network):
    x = example(network, num=20, seed=9).cuda()
    outputs = []
    for graph in (True, False):
        # Adam leaves alone what never has a gradient.
        made = method(network, device="cuda", optimizer="Adam", lr=0.01, cuda_graph=graph)
        made.learn(labelled("a", network=network))
        (gates,) = made.strategy.masks
        made.strategy.masks = [torch.arange(len(gates)).remainder(3).ne(0).float().cuda()]
        first = made.predict(x, "a")
        made.learn(labelled("b", network=network, seed=1))
        assert torch.equal(made.predict(x, "a"), first)
        assert 100 < float(made.strategy.scale) < 400  # As the last step of an epoch has it.
        outputs.append(made.predict(x, "b"))
    if network == "mlp":  # Dropout draws other numbers in a captured step.
        assert torch.allclose(*outputs, atol=0.05)


def test_a_copy_of_the_open_task_holds_the_embedding():
    net, _ = small()
    state = net.open_state()
    before = net.extra[ATTENTION].detach().clone()
    place = net.extra[ATTENTION].data_ptr()
    write(net.extra[ATTENTION], [1.0, 2.0, 3.0])
    net.set_open_state(type(state).from_state(state.to_state()))
    assert torch.equal(net.extra[ATTENTION], before)
    assert net.extra[ATTENTION].data_ptr() == place


def test_a_network_without_a_graph_is_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with pytest.raises(ArgumentError, match="hat: the network has no graph"):
        HAT().strategy(DenseNet(model, "2", shared_head=False))


def experiment(baseline, *, epochs=15, patience=None):
    torch.manual_seed(0)
    sgd = {"optimizer": "SGD", "lr": 0.1, "batch_size": 16, "clip_norm": 10_000.0}
    config = LearnerConfig(training=Training(epochs=epochs, patience=patience, **sgd))
    model = clnp.models.MLP(12, (60, 60), 3)
    return Experiment(model, torch.zeros(2, 12), permuted_rule(), config, baseline=baseline)


def test_a_run_forgets_almost_nothing(tmp_path):
    result = experiment(HAT()).run(tmp_path / "hat")
    assert abs(forgotten(result)) < 2
    assert min(result.scores[-1]) > 60
    assert result.stored_bytes["masks"] == 3 * 120 * 4


@pytest.mark.parametrize(("number", "patience"), [(3, None), (4, 2)])
def test_hat_resumes(tmp_path, number, patience):
    made = experiment(HAT(), epochs=2, patience=patience)
    whole = made.run(tmp_path / "whole")
    break_off(made, tmp_path / "broken", EpochEnded, number)
    assert untimed(made.run(tmp_path / "broken")) == untimed(whole)

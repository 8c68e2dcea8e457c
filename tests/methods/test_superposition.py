import pytest
import torch
from torch import nn
from torch.nn import functional as F

from clnp import Task, Training
from clnp.methods.dense import DenseNet
from clnp.methods.superposition import Superposition, draw_context
from clnp.training.fit import Fit
from clnp.training.task import load
from support.forgetting import check_captured, check_resumes, remaining
from support.networks import NETWORKS, ConvNet, copied_state, example, mlp, same_state

CLASSIFIERS = {"mlp": "fc3", "conv": "fc2", "depthwise": "fc", "residual": "fc"}


def opened(model, classifier, *, shared=True, num_tasks=1, seed=0):
    """Return a network whose last task is open, and its strategy."""
    net = DenseNet(model, classifier, shared_head=shared)
    strategy = Superposition().strategy(net)
    for index in range(num_tasks):
        torch.manual_seed(seed)
        if index:
            net.end_task()
        net.begin_task(f"task {index}", 4)
        strategy.begin(index, None)
    return net, strategy


def test_two_weights_by_hand():
    """y = w_1 c_1 x_1 + w_2 c_2 x_2 + b, and a step of SGD on (y - t)^2."""
    model = nn.Sequential(nn.Linear(2, 1)).double()
    net = DenseNet(model, "0", shared_head=True)
    strategy = Superposition().strategy(net)
    w, b, lr = [0.5, -2.0], 0.25, 0.1
    samples = [([3.0, 1.0], 1.0), ([-1.0, 2.0], 0.5)]
    for index, (signs, (x, t)) in enumerate(zip([(1, -1), (-1, -1)], samples, strict=True)):
        net.begin_task(f"task {index}", 1)
        strategy.begin(index, None)
        (context,) = strategy.current.values()
        context.copy_(torch.tensor(signs))
        weight, bias = net.trunk().values()
        if index == 0:
            with torch.no_grad():
                weight.copy_(torch.tensor([w]))
                bias.fill_(b)
        pair = (torch.tensor([x]).double(), torch.tensor([[t]]).double())
        data = load(Task("a", pair, pair, objective="regression"), torch.device("cpu"))
        Fit(
            net,
            data,
            Training(epochs=1, lr=lr, optimizer="SGD"),
            seed=0,
            rule=strategy.rule(),
        ).run()
        residual = 2 * (w[0] * signs[0] * x[0] + w[1] * signs[1] * x[1] + b - t)
        w = [w[k] - lr * residual * signs[k] * x[k] for k in range(2)]
        b -= lr * residual
        assert weight[0].tolist() == pytest.approx(w, rel=1e-12)
        assert bias.item() == pytest.approx(b, rel=1e-12)
        net.end_task()


@pytest.mark.parametrize("name", sorted(CLASSIFIERS))
def test_a_task_sees_the_weights_with_its_signs(name):
    """As a plain network would compute whose weights have been multiplied."""
    torch.manual_seed(0)
    model, _ = NETWORKS[name]
    net, strategy = opened(model(), CLASSIFIERS[name], num_tasks=2)
    x, net = example(name), net.eval()
    plain = DenseNet(model(), CLASSIFIERS[name], shared_head=True).eval()
    for _ in range(2):
        plain.heads.add(4)
    for index in range(2):
        state = copied_state(net.model)
        for layer in strategy.current:
            signs = draw_context(strategy.seeds[index], layer, state[f"{layer}.weight"][0].shape)
            state[f"{layer}.weight"] *= signs
        plain.model.load_state_dict(state)
        with strategy.running(index):
            assert torch.allclose(net(x), plain(x), atol=1e-6)
        assert torch.allclose(net(x), plain(x), atol=1e-4) == (index == 1)


def test_which_layers_have_a_context():
    _, shared = opened(ConvNet(), "fc2")
    shapes = {name: tuple(context.shape) for name, context in shared.current.items()}
    expected = {"conv1": (3, 3, 3), "conv2": (6, 3, 3), "fc1": (45,), "fc2.layers.0": (7,)}
    assert shapes == expected
    _, own = opened(ConvNet(), "fc2", shared=False, num_tasks=2)
    assert list(own.current) == ["conv1", "conv2", "fc1"]
    depthwise, _ = NETWORKS["depthwise"]
    _, strategy = opened(depthwise(), "fc")
    assert list(strategy.current) == ["expand", "project", "fc.layers.0"]


def test_a_convolution_that_all_tasks_share_as_classifier():
    model = nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 4, 3, padding=1, padding_mode="reflect")
    )
    net, strategy = opened(model, "2", num_tasks=2)
    state, x = net.model.state_dict(), torch.randn(2, 3, 8, 8)
    first, last = strategy.current.values()
    hidden = F.relu(F.conv2d(x, state["0.weight"] * first, state["0.bias"]))
    padded = F.pad(hidden, (1, 1, 1, 1), mode="reflect")
    kernel = state["2.layers.0.weight"] * last
    assert torch.allclose(net(x), F.conv2d(padded, kernel, state["2.layers.0.bias"]), atol=1e-6)


def test_contexts_follow_the_seed_the_task_and_the_layer():
    drawn = {}
    for seed, index, layer in [(0, 0, "a"), (0, 0, "b"), (0, 1, "a"), (1, 0, "a")]:
        torch.manual_seed(seed)
        strategy = Superposition().strategy(DenseNet(mlp(), "fc3", shared_head=True))
        strategy.net.begin_task("task", 4)
        strategy.seeds = [0] * index
        strategy.begin(index, None)
        torch.rand(3)
        drawn[seed, index, layer] = draw_context(strategy.seeds[-1], layer, torch.Size([2000]))
    signs = torch.stack(list(drawn.values()))
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    # Independent: two of them agree in half of the places.
    correlation = signs @ signs.T / 2000
    assert (correlation - torch.eye(4)).abs().max() < 0.1
    assert signs.mean(1).abs().max() < 0.1


def test_running_puts_back_what_was_there():
    net, strategy = opened(mlp(), "fc3", num_tasks=3)
    x = example("mlp")
    before = {name: context.clone() for name, context in strategy.current.items()}
    places = {name: context.data_ptr() for name, context in strategy.current.items()}
    outputs = net(x)

    def interrupted():
        with strategy.running(0):
            assert not torch.equal(net(x), outputs)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert same_state(strategy.current, before)
    assert {name: context.data_ptr() for name, context in strategy.current.items()} == places
    assert torch.equal(net(x), outputs)


def test_the_network_looks_as_it_did():
    torch.manual_seed(0)
    net, _ = opened(ConvNet(), "fc2", num_tasks=2)
    plain = DenseNet(ConvNet(), "fc2", shared_head=True)
    plain.begin_task("a", 4)
    assert list(net.state()["tensors"]) == list(plain.state()["tensors"])
    assert all(weight.requires_grad for weight in net.parameters())


def test_contexts_are_counted_at_one_bit_a_sign():
    _, strategy = opened(mlp(), "fc3", num_tasks=3)
    assert strategy.stored_bytes() == {"contexts": 7}  # 3 tasks of 6 + 7 + 5 signs: 54 bits.


def test_it_forgets_less_than_fine_tuning(tmp_path, score_of_finetuning):
    assert remaining(Superposition(), tmp_path) > score_of_finetuning + 15


@pytest.mark.parametrize("head", ["single", "multi"])
def test_superposition_resumes(tmp_path, head):
    check_resumes(Superposition(), tmp_path, head=head)


@pytest.mark.gpu
def test_steps_can_be_captured(tmp_path):
    check_captured(Superposition(), tmp_path)

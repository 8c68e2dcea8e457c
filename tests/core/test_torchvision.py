"""Torchvision's own networks, and the three of the paper, through two tasks each.

Networks are as narrow as their constructors allow, and images as small as the networks accept.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import clnp

models = pytest.importorskip("torchvision").models

NUM_OUTPUTS = 3
OURS = (clnp.models.MLP, clnp.models.NarrowCNN, clnp.models.WideCNN)


def vgg11_bn() -> nn.Module:
    """Its own classifier is 4096 wide, which is 103 million weights: this one is 32 wide."""
    model = models.vgg11_bn(num_classes=NUM_OUTPUTS, init_weights=False)
    model.classifier[0] = nn.Linear(512 * 7 * 7, 32)
    model.classifier[3] = nn.Linear(32, 32)
    model.classifier[6] = nn.Linear(32, NUM_OUTPUTS)
    return model


NETWORKS = {
    "resnet18": (lambda: models.resnet18(num_classes=NUM_OUTPUTS), 64),
    "wide_resnet50_2": (lambda: models.wide_resnet50_2(num_classes=NUM_OUTPUTS), 64),
    "vgg11_bn": (vgg11_bn, 64),
    "mobilenet_v2": (lambda: models.mobilenet_v2(num_classes=NUM_OUTPUTS, width_mult=0.5), 64),
    "efficientnet_b0": (lambda: models.efficientnet_b0(num_classes=NUM_OUTPUTS), 64),
    "densenet121": (lambda: models.densenet121(num_classes=NUM_OUTPUTS), 64),
    "MLP": (lambda: clnp.models.MLP(48, (20, 20), NUM_OUTPUTS), 4),
    "NarrowCNN": (lambda: clnp.models.NarrowCNN(NUM_OUTPUTS, widths=(8, 8, 12, 12, 24)), 32),
    "WideCNN": (lambda: clnp.models.WideCNN(NUM_OUTPUTS, widths=(8, 8, 12, 12, 24)), 32),
}


def learn(net: clnp.ContinualNet, name: str, x: torch.Tensor) -> None:
    """Two steps of training; every second of the free neurons is claimed, from the second on."""
    net.begin_task(name)
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9, weight_decay=0.1)
    for _ in range(2):
        loss = F.cross_entropy(net(x), torch.arange(len(x)) % NUM_OUTPUTS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.end_task({group: range(1, count, 2) for group, count in net.ledger.free().items()})


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# The large ones with one kind of head only: 67 million weights take their time.
LARGE = ("wide_resnet50_2", "densenet121", "efficientnet_b0", "vgg11_bn")
CASES = [(name, "multi") for name in NETWORKS]
CASES += [(name, "single") for name in NETWORKS if name not in LARGE]


@pytest.mark.parametrize(("name", "head"), CASES)
def test_two_tasks(name, head):
    torch.manual_seed(0)
    make, side = NETWORKS[name]
    x, other = torch.randn(2, 2, 3, side, side)
    model = make()
    before = num_parameters(model)
    net = clnp.ContinualNet(model, x, head=head)
    del model
    learn(net, "first", x)
    answers = [net(each, task="first").detach() for each in (x, other)]
    assert all(bool(answer.isfinite().all()) for answer in answers)
    certificate = net.certificates["first"]
    learn(net, "second", other)
    net.train()
    for each, answer in zip((x, other), answers, strict=True):
        assert torch.equal(net(each, task="first"), answer)
    net.verify()
    assert net.certificates["first"] == certificate
    assert not torch.equal(net(x, task="second"), answers[0])
    for task in net.tasks:
        small = net.subnetwork(task)
        assert torch.equal(small(x), net(x, task=task))
        assert num_parameters(small) < before
        kinds = {kind for module in small.modules() for kind in type(module).__mro__}
        assert {kind for kind in kinds if kind.__module__.startswith("clnp.")} <= set(OURS)

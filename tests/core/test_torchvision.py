"""Torchvision's own networks, and the three of the paper, through two tasks each.

By default, each is made with few and narrow layers; `-m slow` runs the published sizes.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import clnp
from clnp.core.structure.axis import groups_of, num_entries
from clnp.core.structure.graph import Graph
from clnp.errors import GraphError

models = pytest.importorskip("torchvision").models

NUM_OUTPUTS = 3
OURS = (clnp.models.MLP, clnp.models.NarrowCNN, clnp.models.WideCNN)


def resnet(block: type[nn.Module], **settings: int) -> nn.Module:
    """Two of the four stages, whose widths are fixed."""
    model = models.ResNet(block, [2, 1, 1, 1], **settings)
    model.layer3, model.layer4 = nn.Identity(), nn.Identity()
    model.fc = nn.Linear(128 * block.expansion, NUM_OUTPUTS)
    return model


def vgg(features: nn.Module, num_features: int) -> nn.Module:
    """A VGG whose classifier is 32 wide: its own one has 120 million weights."""
    with torch.device("meta"):
        model = models.VGG(features, init_weights=False)
    model.classifier[0] = nn.Linear(num_features * 7 * 7, 32)
    model.classifier[3] = nn.Linear(32, 32)
    model.classifier[6] = nn.Linear(32, NUM_OUTPUTS)
    return model


def vgg11_bn() -> nn.Module:
    return vgg(models.vgg11_bn(init_weights=False).features, 512)


def efficientnet() -> nn.Module:
    block = models.efficientnet.MBConvConfig
    blocks = [block(1, 3, 1, 16, 8, 1, 1, 1), block(4, 5, 2, 8, 12, 2, 1, 1)]
    return models.EfficientNet(blocks, 0.2, num_classes=NUM_OUTPUTS)


def mobilenet() -> nn.Module:
    blocks = [[1, 8, 1, 1], [4, 12, 2, 2]]
    return models.MobileNetV2(NUM_OUTPUTS, inverted_residual_setting=blocks, width_mult=0.25)


SMALL = {
    "resnet": lambda: resnet(models.resnet.BasicBlock),
    "wide_resnet": lambda: resnet(models.resnet.Bottleneck, width_per_group=128),
    "vgg": lambda: vgg(models.vgg.make_layers([8, "M", 12, "M"], batch_norm=True), 12),
    "mobilenet": mobilenet,
    "efficientnet": efficientnet,
    "densenet": lambda: models.DenseNet(8, (2, 2), 16, num_classes=NUM_OUTPUTS),
    "MLP": lambda: clnp.models.MLP(3 * 32 * 32, (20, 20), NUM_OUTPUTS),
    "NarrowCNN": lambda: clnp.models.NarrowCNN(NUM_OUTPUTS, widths=(8, 8, 12, 12, 24)),
    "WideCNN": lambda: clnp.models.WideCNN(NUM_OUTPUTS, widths=(8, 8, 12, 12, 24)),
}
SINGLE = ("resnet", "mobilenet", "MLP", "WideCNN")
PUBLISHED = {
    "resnet18": (12, 2880, "fc"),
    "wide_resnet50_2": (37, 19008, "fc"),
    "vgg11_bn": (10, 2816, "classifier.6"),
    "mobilenet_v2": (25, 9128, "classifier.1"),
    "mobilenet_v3_small": (27, 4872, "classifier.3"),
    "efficientnet_b0": (40, 11404, "classifier.1"),
    "densenet121": (120, 10240, "classifier"),
    "squeezenet1_1": (25, 2944, "classifier.1"),
}
"""The numbers of groups and of neurons, and the classifier, of networks in their own size."""


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


def check_sites(model: nn.Module, graph: Graph) -> None:
    """Every layer with weights is there, and its axes have the sizes of its tensors."""
    owners = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    assert set(graph.sites) == owners
    for path, site in graph.sites.items():
        layer = model.get_submodule(path)
        if site.mixes:
            assert num_entries(site.columns, graph.groups) == layer.weight.shape[1]
        if path != graph.classifier:
            assert num_entries(site.rows, graph.groups) == layer.weight.shape[0]
        for segment in (*site.rows, *site.columns):
            assert segment.group is None or segment.size == graph.groups[segment.group]
    for group in graph.groups:
        assert graph.sites[group].mixes
        assert groups_of(graph.sites[group].rows) == [group]
        assert graph.readers(group)


def check_two_tasks(model: nn.Module, head: str, side: int) -> Graph:
    torch.manual_seed(0)
    x, other = torch.randn(2, 2, 3, side, side)
    before = num_parameters(model)
    net = clnp.ContinualNet(model, x, head=head)
    check_sites(model, net.graph)
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
    return net.graph


CASES = [*((name, "multi") for name in SMALL), *((name, "single") for name in SINGLE)]


@pytest.mark.parametrize(("name", "head"), CASES)
def test_two_tasks(name, head):
    check_two_tasks(SMALL[name](), head, 32)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name):
    make = vgg11_bn if name == "vgg11_bn" else getattr(models, name)
    graph = check_two_tasks(make(), "multi", 64)
    assert (len(graph.groups), sum(graph.groups.values()), graph.classifier) == PUBLISHED[name]


def test_resnet18():
    model = models.resnet18()
    graph = clnp.discover(model, torch.randn(1, 3, 32, 32))
    check_sites(model, graph)
    assert (len(graph.groups), sum(graph.groups.values()), graph.classifier) == (12, 2880, "fc")
    shared = [site for site in graph.sites.values() if groups_of(site.rows) == ["conv1"]]
    assert [site.path for site in shared if site.mixes] == [
        "conv1", "layer1.0.conv2", "layer1.1.conv2",
    ]  # fmt: skip
    assert [site.path for site in shared if not site.mixes] == [
        "bn1", "layer1.0.bn2", "layer1.1.bn2",
    ]  # fmt: skip
    assert [s.path for s in graph.readers("layer4.0.conv2")] == ["layer4.1.conv1", "fc"]


def test_shuffled_channels_are_one_problem_in_each_stage():
    model = models.ShuffleNetV2([2, 2, 2], [8, 16, 24, 32, 32])
    with pytest.raises(GraphError) as caught:
        clnp.discover(model, torch.randn(1, 3, 32, 32))
    problems = caught.value.problems
    assert [problem.where for problem in problems] == ["stage2.0", "stage3.0", "stage4.0"]
    assert all("splits the neuron axis" in problem.found for problem in problems)

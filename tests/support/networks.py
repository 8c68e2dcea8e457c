"""Small networks for tests, one for each way in which layers share neurons, and their training."""

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clnp


class ConvNet(nn.Module):
    """Convolutions with BatchNorm, a flatten, and dropout: [batch, 3, 8, 8] -> [batch, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 5, 3, bias=False)
        self.bn2 = nn.BatchNorm2d(5)
        self.fc1 = nn.Linear(5 * 3 * 3, 7)
        self.dropout = nn.Dropout(0.5)
        self.fc2 = nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.fc2(self.dropout(F.relu(self.fc1(x.flatten(1)))))


class Residual(nn.Module):
    """Two convolutions that add into one stream: [batch, 3, 6, 6] -> [batch, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.inner = nn.Conv2d(6, 5, 3, padding=1)
        self.outer = nn.Conv2d(5, 6, 3, padding=1)
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = F.relu(x + self.outer(F.relu(self.inner(x))))
        return self.fc(x.mean((2, 3)))


class Concatenating(nn.Module):
    """Two branches side by side, beside the input itself: [batch, 6] -> [batch, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(6, 5)
        self.right = nn.Linear(6, 4)
        self.both = nn.Linear(15, 6)
        self.fc = nn.Linear(6 + 5, 4)

    def forward(self, x: Tensor) -> Tensor:
        left, right = torch.tanh(self.left(x)), F.relu(self.right(x))
        both = F.relu(self.both(torch.cat([left, x, right], 1)))
        return self.fc(torch.cat([both, left], 1))


class SqueezeExcite(nn.Module):
    """Channels that are scaled by a gate made from all of them: [batch, 3, 6, 6] -> [batch, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.squeeze = nn.Linear(6, 3)
        self.excite = nn.Linear(3, 6)
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3))))))
        return self.fc((x * gate[:, :, None, None]).mean((2, 3)))


class Depthwise(nn.Module):
    """A depthwise convolution and PReLU between full ones: [batch, 3, 6, 6] -> [batch, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Conv2d(3, 6, 1)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.act = nn.PReLU(6)
        self.project = nn.Conv2d(6, 5, 1)
        self.fc = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm(self.depthwise(F.relu(self.expand(x)))))
        return self.fc(F.relu(self.project(x)).mean((2, 3)))


class Shifted(nn.Module):
    """A dense network that first subtracts a constant from its input: [batch, 6] -> [batch, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.linspace(-1, 1, 6))
        self.fc1 = nn.Linear(6, 5)
        self.fc2 = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(x - self.mean)))


def mlp() -> clnp.models.MLP:
    """The dense network 6-7-5-4, layers fc1, fc2 and fc3."""
    return clnp.models.MLP(6, (7, 5), 4)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (6,)),
    "conv": (ConvNet, (3, 8, 8)),
    "residual": (Residual, (3, 6, 6)),
    "concatenating": (Concatenating, (6,)),
    "squeeze": (SqueezeExcite, (3, 6, 6)),
    "depthwise": (Depthwise, (3, 6, 6)),
    "shifted": (Shifted, (6,)),
}
"""Name: how to make the network, and the shape of one of its inputs."""

HEADS = ("multi", "single")


def example(name: str, *, num: int = 8, seed: int = 0) -> Tensor:
    """A batch of `num` inputs of the network of that name."""
    _, shape = NETWORKS[name]
    return torch.randn(num, *shape, generator=torch.Generator().manual_seed(seed))


def make(name: str = "mlp", *, head: str = "multi", seed: int = 0) -> clnp.ContinualNet:
    """A continual network, always with the same weights to come."""
    torch.manual_seed(seed)
    network, _ = NETWORKS[name]
    return clnp.ContinualNet(network(), example(name), head=head)


def train(net: nn.Module, x: Tensor, *, steps: int = 3, seed: int = 0) -> None:
    """A few steps of SGD with momentum on random targets, in training mode."""
    y = torch.randint(0, 2, (len(x),), generator=torch.Generator().manual_seed(seed))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net.train()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()


def first(counts: Mapping[str, int]) -> dict[str, Sequence[int]]:
    """Explicit neurons to keep: the first `counts[g]` free ones of each group."""
    return {group: range(count) for group, count in counts.items()}


def half(net: clnp.ContinualNet) -> dict[str, Sequence[int]]:
    """Explicit neurons to keep: every second of the free ones of each group."""
    return {group: range(0, free, 2) for group, free in net.ledger.free().items()}


def learn(net: clnp.ContinualNet, task: str, x: Tensor, *, steps: int = 3) -> Tensor:
    """The outputs of a task that is begun, trained and ended with half of what was free."""
    net.begin_task(task)
    train(net, x, steps=steps, seed=len(net.tasks))
    net.end_task(half(net))
    return net(x, task=task)


def num_parameters(module: nn.Module) -> int:
    """How many numbers the module can train."""
    return sum(parameter.numel() for parameter in module.parameters())


def same_state(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two state dicts hold the same names and the same bytes."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def copied_state(module: nn.Module) -> dict[str, Tensor]:
    """The state dict of the module as it is now, in memory of its own."""
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}

"""Random small networks, each with its neuron groups spelled out by hand.

`axes` says for every layer with weights which neurons it makes (rows) and which it reads (columns),
as the builder of the network knows it: nothing here comes from `clnp`.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

Stretch = tuple[str | None, int, int]
"""A group, or None for network input; its number of neurons; the entries that each neuron has."""
Axis = tuple[Stretch, ...]

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d}
NORMS = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d}
MAX_POOLS = {1: nn.MaxPool1d, 2: nn.MaxPool2d}
AVERAGE_POOLS = {1: nn.AvgPool1d, 2: nn.AvgPool2d}
MEANS = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d}
SIDE = 4
"""Height and width of the images."""


@dataclass(frozen=True)
class Architecture:
    """How to make a network, what it takes, and which layers share neurons."""

    name: str
    make: Callable[[], nn.Module] = field(repr=False)
    shape: tuple[int, ...]
    num_outputs: int
    axes: dict[str, tuple[Axis, Axis]] = field(repr=False)
    classifier: str = "head"

    @property
    def groups(self) -> dict[str, int]:
        """The number of neurons of each group."""
        return {group: size for rows, _ in self.axes.values() for group, size, _ in rows if group}

    def inputs(self, batch: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
        """A batch of random inputs."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(batch, *self.shape, generator=generator, dtype=dtype)


@dataclass(frozen=True)
class Choices:
    """What the layers of one network have in common."""

    activation: str = "relu"
    bias: bool = True
    norm: str = "none"
    momentum: float | None = 0.1
    rate: float = 0.0

    def activate(self, num_neurons: int) -> nn.Module:
        """The activation, for that many neurons."""
        if self.activation == "prelu":
            return nn.PReLU(num_neurons)
        return {
            "relu": nn.ReLU,
            "in-place relu": lambda: nn.ReLU(inplace=True),
            "tanh": nn.Tanh,
            "leaky": nn.LeakyReLU,
            "gelu": nn.GELU,
        }[self.activation]()

    def normalise(self, dims: int, num_neurons: int) -> nn.Module:
        """BatchNorm, or nothing."""
        if self.norm == "none":
            return nn.Identity()
        affine = self.norm == "affine"
        return NORMS[dims](num_neurons, eps=1e-3, affine=affine, momentum=self.momentum)


class Spelling:
    """Collects, layer by layer, which neurons a network's layers make and read."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.axes: dict[str, tuple[Axis, Axis]] = {}

    def mix(self, path: str, rows: Axis, columns: Axis) -> Axis:
        """A Linear layer or a convolution; its rows come back."""
        self.axes[path] = (rows, columns)
        return rows

    def act(self, path: str, axis: Axis) -> None:
        """A layer that acts on each neuron by itself."""
        self.axes[path] = (axis, axis)

    def finish(self, norm: str | None, activation: str | None, axis: Axis) -> None:
        """The norm and the activation behind a layer, as far as they have weights."""
        if norm and self.choices.norm != "none":
            self.act(norm, axis)
        if activation and self.choices.activation == "prelu":
            self.act(activation, axis)


def neurons(group: str, size: int) -> Axis:
    """The neurons of one group."""
    return ((group, size, 1),)


def network_input(size: int) -> Axis:
    """Network input."""
    return ((None, size, 1),)


def spread(axis: Axis, span: int) -> Axis:
    """The axis after flattening maps of `span` places."""
    return tuple((group, size, entries * span) for group, size, entries in axis)


def mlp(widths: tuple[int, ...], choices: Choices, *, num_inputs: int, num_outputs: int):
    """Linear layers, with BatchNorm or without."""

    def make() -> nn.Module:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        num_in = num_inputs
        for number, width in enumerate(widths):
            layers[f"fc{number}"] = nn.Linear(num_in, width, bias=choices.bias)
            layers[f"norm{number}"] = choices.normalise(0, width)
            layers[f"act{number}"] = choices.activate(width)
            layers[f"drop{number}"] = nn.Dropout(choices.rate)
            num_in = width
        layers["head"] = nn.Linear(num_in, num_outputs, bias=choices.bias)
        return nn.Sequential(layers)

    spelling = Spelling(choices)
    axis = network_input(num_inputs)
    for number, width in enumerate(widths):
        axis = spelling.mix(f"fc{number}", neurons(f"fc{number}", width), axis)
        spelling.finish(f"norm{number}", f"act{number}", axis)
    spelling.mix("head", (), axis)
    return Architecture(f"mlp{widths} {choices}", make, (num_inputs,), num_outputs, spelling.axes)


def cnn(
    widths: tuple[int, ...],
    choices: Choices,
    *,
    dims: int,
    num_inputs: int,
    num_outputs: int,
    pool: str,
    end: str,
):
    """Convolutions, a pool after the first, and a classifier behind `end`.

    `end` is "flatten", "mean", "linear" (a hidden Linear layer behind flatten) or "conv" (the
    classifier is a convolution whose outputs are averaged).
    """
    side = {"none": SIDE, "max": SIDE // 2, "average": SIDE // 2}[pool]
    hidden = widths[-1] + 1

    def make() -> nn.Module:
        conv, layers = CONVOLUTIONS[dims], OrderedDict[str, nn.Module]()
        num_in = num_inputs
        for number, width in enumerate(widths):
            kernel = 3 if number % 2 == 0 else 1
            layers[f"conv{number}"] = conv(
                num_in, width, kernel, padding=kernel // 2, bias=choices.bias
            )
            layers[f"norm{number}"] = choices.normalise(dims, width)
            layers[f"act{number}"] = choices.activate(width)
            if number == 0 and pool != "none":
                layers["pool"] = (MAX_POOLS if pool == "max" else AVERAGE_POOLS)[dims](2)
            layers[f"drop{number}"] = nn.Dropout(choices.rate)
            num_in = width
        if end == "mean":
            layers["mean"] = MEANS[dims](1)
        if end == "conv":
            layers["head"] = conv(num_in, num_outputs, 1, bias=choices.bias)
            layers["mean"] = MEANS[dims](1)
        layers["flatten"] = nn.Flatten()
        num_in *= 1 if end == "mean" else side**dims
        if end == "linear":
            layers["fc"] = nn.Linear(num_in, hidden, bias=choices.bias)
            layers["act"] = choices.activate(hidden)
            num_in = hidden
        if end != "conv":
            layers["head"] = nn.Linear(num_in, num_outputs, bias=choices.bias)
        return nn.Sequential(layers)

    spelling = Spelling(choices)
    axis = network_input(num_inputs)
    for number, width in enumerate(widths):
        axis = spelling.mix(f"conv{number}", neurons(f"conv{number}", width), axis)
        spelling.finish(f"norm{number}", f"act{number}", axis)
    if end in ("flatten", "linear"):
        axis = spread(axis, side**dims)
    if end == "linear":
        axis = spelling.mix("fc", neurons("fc", hidden), axis)
        spelling.finish(None, "act", axis)
    spelling.mix("head", (), axis)
    return Architecture(
        f"cnn{dims}d{widths} {pool} {end} {choices}",
        make,
        (num_inputs, *[SIDE] * dims),
        num_outputs,
        spelling.axes,
    )


class Residual(nn.Module):
    """A stem, a block that adds its input, and a block that adds a projection of it."""

    def __init__(
        self,
        widths: tuple[int, ...],
        choices: Choices,
        dims: int,
        num_inputs: int,
        num_outputs: int,
    ) -> None:
        super().__init__()
        width, inner, after = widths
        conv, bias = CONVOLUTIONS[dims], choices.bias
        self.stem = conv(num_inputs, width, 3, padding=1, bias=bias)
        self.norm0 = choices.normalise(dims, width)
        self.conv1 = conv(width, inner, 3, padding=1, bias=bias)
        self.norm1 = choices.normalise(dims, inner)
        self.act1 = choices.activate(inner)
        self.conv2 = conv(inner, width, 3, padding=1, bias=bias)
        self.norm2 = choices.normalise(dims, width)
        self.act2 = choices.activate(width)
        self.conv3 = conv(width, after, 3, stride=2, padding=1, bias=bias)
        self.norm3 = choices.normalise(dims, after)
        self.shortcut = conv(width, after, 1, stride=2, bias=bias)
        self.act3 = choices.activate(after)
        self.drop = nn.Dropout(choices.rate)
        self.pool = MEANS[dims](1)
        self.head = nn.Linear(after, num_outputs, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm0(self.stem(x))
        y = self.act1(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += x
        x = self.act2(y)
        x = self.act3(self.norm3(self.conv3(x)) + self.shortcut(x))
        return self.head(self.pool(self.drop(x)).flatten(1))


def residual(
    widths: tuple[int, int, int], choices: Choices, *, dims: int, num_inputs: int, num_outputs: int
):
    """A residual network with an identity and a projection."""
    spelling = Spelling(choices)
    stream, inside = neurons("stem", widths[0]), neurons("conv1", widths[1])
    last = neurons("conv3", widths[2])
    spelling.mix("stem", stream, network_input(num_inputs))
    spelling.finish("norm0", None, stream)
    spelling.mix("conv1", inside, stream)
    spelling.finish("norm1", "act1", inside)
    spelling.mix("conv2", stream, inside)
    spelling.finish("norm2", "act2", stream)
    spelling.mix("conv3", last, stream)
    spelling.finish("norm3", None, last)
    spelling.mix("shortcut", last, stream)
    spelling.finish(None, "act3", last)
    spelling.mix("head", (), last)
    return Architecture(
        f"residual{dims}d{widths} {choices}",
        lambda: Residual(widths, choices, dims, num_inputs, num_outputs),
        (num_inputs, *[SIDE] * dims),
        num_outputs,
        spelling.axes,
    )


class Concatenating(nn.Module):
    """Every layer reads all before it, network input among them; the norms act on all they read."""

    def __init__(
        self,
        widths: tuple[int, ...],
        choices: Choices,
        num_inputs: int,
        num_outputs: int,
        end: str,
    ) -> None:
        super().__init__()
        first, second, third = widths
        self.end, bias = end, choices.bias
        self.stem = nn.Conv2d(num_inputs, first, 3, padding=1, bias=bias)
        self.norm1 = choices.normalise(2, first)
        self.conv1 = nn.Conv2d(first, second, 3, padding=1, bias=bias)
        self.norm2 = choices.normalise(2, first + second)
        self.act2 = choices.activate(first + second)
        self.conv2 = nn.Conv2d(first + second + num_inputs, third, 1, bias=bias)
        self.drop = nn.Dropout(choices.rate)
        num_in = {"all": first + second + third, "last": third}[end]
        self.head = nn.Linear(num_in * 4, num_outputs, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        first = self.stem(x)
        second = self.conv1(F.relu(self.norm1(first)))
        both = self.act2(self.norm2(torch.cat([first, second], 1)))
        third = self.drop(F.relu(self.conv2(torch.cat([both, x], 1))))
        y = torch.cat([second, third, first], 1) if self.end == "all" else third
        return self.head(F.avg_pool2d(y, 2).flatten(1))


def concatenating(
    widths: tuple[int, int, int], choices: Choices, *, num_inputs: int, num_outputs: int, end: str
):
    """A network like densenet."""
    spelling = Spelling(choices)
    data = network_input(num_inputs)
    first, second = neurons("stem", widths[0]), neurons("conv1", widths[1])
    third = neurons("conv2", widths[2])
    spelling.mix("stem", first, data)
    spelling.finish("norm1", None, first)
    spelling.mix("conv1", second, first)
    spelling.finish("norm2", "act2", first + second)
    spelling.mix("conv2", third, first + second + data)
    spelling.mix("head", (), spread(second + third + first if end == "all" else third, 4))
    return Architecture(
        f"concatenating{widths} {end} {choices}",
        lambda: Concatenating(widths, choices, num_inputs, num_outputs, end),
        (num_inputs, SIDE, SIDE),
        num_outputs,
        spelling.axes,
    )


class Squeezing(nn.Module):
    """Expansion, depthwise convolution, squeeze-and-excitation, projection, residual addition."""

    def __init__(
        self, widths: tuple[int, ...], choices: Choices, num_inputs: int, num_outputs: int
    ) -> None:
        super().__init__()
        stream, inner, squeezed = widths
        bias = choices.bias
        self.stem = nn.Conv2d(num_inputs, stream, 1, bias=bias)
        self.expand = nn.Conv2d(stream, inner, 1, bias=bias)
        self.norm1 = choices.normalise(2, inner)
        self.act1 = choices.activate(inner)
        self.depthwise = nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=bias)
        self.norm2 = choices.normalise(2, inner)
        self.squeeze = nn.Conv2d(inner, squeezed, 1)
        self.excite = nn.Conv2d(squeezed, inner, 1)
        self.project = nn.Conv2d(inner, stream, 1, bias=bias)
        self.norm3 = choices.normalise(2, stream)
        self.drop = nn.Dropout(choices.rate)
        self.head = nn.Linear(stream, num_outputs, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = F.hardswish(self.norm2(self.depthwise(self.act1(self.norm1(self.expand(x))))))
        scale = F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))
        y = torch.sigmoid(self.excite(scale)) * y
        x = x + self.norm3(self.project(y))
        return self.head(self.drop(x).mean((2, 3)))


def squeezing(widths: tuple[int, int, int], choices: Choices, *, num_inputs: int, num_outputs: int):
    """A network like efficientnet."""
    spelling = Spelling(choices)
    stream, inner = neurons("stem", widths[0]), neurons("expand", widths[1])
    squeezed = neurons("squeeze", widths[2])
    spelling.mix("stem", stream, network_input(num_inputs))
    spelling.mix("expand", inner, stream)
    spelling.finish("norm1", "act1", inner)
    spelling.act("depthwise", inner)
    spelling.finish("norm2", None, inner)
    spelling.mix("squeeze", squeezed, inner)
    spelling.mix("excite", inner, squeezed)
    spelling.mix("project", stream, inner)
    spelling.finish("norm3", None, stream)
    spelling.mix("head", (), stream)
    return Architecture(
        f"squeezing{widths} {choices}",
        lambda: Squeezing(widths, choices, num_inputs, num_outputs),
        (num_inputs, SIDE, SIDE),
        num_outputs,
        spelling.axes,
    )


FAMILIES = ("mlp", "cnn", "residual", "concatenating", "squeezing")
ACTIVATIONS = ("relu", "in-place relu", "tanh", "leaky", "gelu", "prelu")


@st.composite
def architectures(draw, families: tuple[str, ...] = FAMILIES, *, dropout: bool = False):
    """Any of the networks above; `dropout` lets it have some."""
    family = draw(st.sampled_from(families))
    choices = Choices(
        activation=draw(st.sampled_from(ACTIVATIONS)),
        bias=draw(st.booleans()),
        norm=draw(st.sampled_from(["affine", "plain", "none"])),
        momentum=draw(st.sampled_from([0.1, 0.5, None])),
        rate=draw(st.sampled_from([0.0, 0.3])) if dropout else 0.0,
    )
    width = st.integers(2, 6)
    sizes = {"num_inputs": draw(st.integers(1, 3)), "num_outputs": draw(st.integers(2, 4))}
    if family == "mlp":
        return mlp(tuple(draw(st.lists(width, min_size=1, max_size=3))), choices, **sizes)
    if family == "cnn":
        return cnn(
            tuple(draw(st.lists(width, min_size=1, max_size=3))),
            choices,
            dims=draw(st.sampled_from([1, 2])),
            pool=draw(st.sampled_from(["none", "max", "average"])),
            end=draw(st.sampled_from(["flatten", "mean", "linear", "conv"])),
            **sizes,
        )
    widths = draw(st.tuples(width, width, width))
    if family == "residual":
        return residual(widths, choices, dims=draw(st.sampled_from([1, 2])), **sizes)
    if family == "concatenating":
        end = draw(st.sampled_from(["all", "last"]))
        return concatenating(widths, choices, end=end, **sizes)
    return squeezing(widths, choices, **sizes)


def subsets(num_neurons: int):
    """Some of the first whole numbers; none, all, and all but the first come up often."""
    everything = list(range(num_neurons))
    if not everything:
        return st.just([])
    some = st.lists(st.sampled_from(everything), unique=True)
    return st.one_of(some, st.just([]), st.just(everything), st.just(everything[1:]))


def keeps(free: dict[str, int]):
    """For each group, some of its free neurons."""
    return st.fixed_dictionaries({group: subsets(count) for group, count in free.items()})

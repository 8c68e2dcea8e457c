"""Count the operations and bytes of a training step, and compute the least time of an H200.

    python benchmarks/floor.py [--markdown]
    python benchmarks/floor.py --measure [--device cuda] [--precision tf32]

The step is that of the three networks of the paper, with batches of 256 and a fraction of each
layer frozen. Forward: all neurons, except with a single head the frozen ones of the last hidden
layer, which the open task does not read. Backward: the gradients of trained weights and of the
activations of free neurons; there is none towards frozen ones. Operations are the multiplications
and additions of matrix products and convolutions, with padding; the rest counts by its bytes.

Bytes: frozen weights are read once. For trained weights, the step reads the weight, writes the
gradient, and Adam reads weight, gradient and two moments and writes all but the gradient. The L1
term is a sign that Adam's kernel can add. Activations, and the gradients of those of free neurons,
are written once and read once; the input is read once. Activations have the precision of the step,
the rest is float32. Caches are not considered: where all that belongs to the weights is smaller
than the 50 MB of an H200's cache, a step may take less than the time for its bytes.

The floor is the larger of the times for operations and bytes, not their sum: a perfect step moves
the bytes of one part while it computes another. `--measure` runs the step through `Fit`, on a GPU
captured and replayed.
"""

import argparse
import statistics
from dataclasses import dataclass, replace

import torch
from frozen import MLP, NARROW_CNN, WIDE_CNN, Subject, with_fraction_frozen
from timing import aligned, machine, markdown
from torch import nn

import clnp
from clnp.training.fit import Fit, l1_rule
from clnp.training.task import load

BATCH = 256
FRACTIONS = (0.0, 0.25, 0.5, 0.75)
FLOPS = {"float32": 67e12, "tf32": 495e12, "bfloat16": 990e12}
"""Dense peak of an H200 in operations per second, from its data sheet."""
BANDWIDTH = 4.8e12
"""Bytes per second between an H200 and its memory, from its data sheet."""
FLOAT = 4
TRAINED = 9
"""Transfers of each trained weight, or of something of its size, to or from memory."""
NETWORKS = {"mlp": MLP, "narrow-cnn": NARROW_CNN, "wide-cnn": WIDE_CNN}


@dataclass(frozen=True)
class Layer:
    """A linear layer or convolution."""

    num_inputs: int
    num_outputs: int
    span: int
    """Weights from one neuron to another: those of a kernel, or of a flattened image."""
    num_places: int
    """Positions in the image at which an output is computed; 1 for a linear layer."""
    num_own: int
    """Other parameters of a neuron: its bias, or the scale and shift of BatchNorm."""


@dataclass(frozen=True)
class Part:
    """Numbers of input and output neurons of a layer, some of which are frozen."""

    layer: Layer
    frozen_inputs: int
    free_inputs: int
    frozen_outputs: int
    free_outputs: int
    passes_back: bool
    """Whether the free inputs are neurons, which need a gradient."""

    @property
    def frozen_weights(self) -> int:
        inputs = self.frozen_inputs if self.passes_back else self.layer.num_inputs
        return inputs * self.frozen_outputs * self.layer.span

    @property
    def trained_weights(self) -> int:
        return (self.frozen_inputs + self.free_inputs) * self.free_outputs * self.layer.span

    @property
    def flops(self) -> int:
        """Operations of the forward pass and of the gradients of weights and free inputs."""
        back = self.free_inputs * self.free_outputs * self.layer.span if self.passes_back else 0
        products = self.frozen_weights + 2 * self.trained_weights + back
        return 2 * BATCH * self.layer.num_places * products

    @property
    def num_numbers(self) -> int:
        """Bytes of weights, gradients and moments, times their transfers."""
        own = self.layer.num_own
        trained = self.trained_weights + own * self.free_outputs
        return self.frozen_weights + own * self.frozen_outputs + TRAINED * trained

    @property
    def num_activations(self) -> int:
        """Bytes of outputs and of the gradients of free ones, each written and read."""
        each = BATCH * self.layer.num_places
        return 2 * each * (self.frozen_outputs + 2 * self.free_outputs)


@dataclass(frozen=True)
class Cost:
    """The operations of a step, and the bytes that it moves in each precision."""

    flops: int
    num_numbers: int
    num_activations: int

    def num_bytes(self, precision: str) -> int:
        size = 2 if precision == "bfloat16" else FLOAT
        return FLOAT * self.num_numbers + size * self.num_activations

    def compute_time(self, precision: str) -> float:
        return self.flops / FLOPS[precision]

    def memory_time(self, precision: str) -> float:
        return self.num_bytes(precision) / BANDWIDTH

    def floor(self, precision: str) -> float:
        """Return the least seconds of a step."""
        return max(self.compute_time(precision), self.memory_time(precision))

    def bound(self, precision: str) -> str:
        """Return which of both sets the floor."""
        compute, memory = self.compute_time(precision), self.memory_time(precision)
        return "operations" if compute >= memory else "bytes"


def layers_of(network: Subject) -> list[Layer]:
    """Return the layers in order; each reads the one before it."""
    model = network.make()
    shapes: dict[nn.Module, torch.Size] = {}
    for module in model.children():
        module.register_forward_hook(lambda of, _, y: shapes.update({of: y.shape}))
    model.eval()(torch.zeros(1, *network.shape))
    layers: list[Layer] = []
    num_inputs = network.shape[0]
    for module in model.children():
        if isinstance(module, nn.BatchNorm2d):
            layers[-1] = replace(layers[-1], num_own=2)
        elif isinstance(module, nn.Linear | nn.Conv2d):
            num_outputs = len(module.weight)
            layers.append(
                Layer(
                    num_inputs,
                    num_outputs,
                    span=module.weight.numel() // (num_inputs * num_outputs),
                    num_places=shapes[module][2:].numel(),
                    num_own=int(module.bias is not None),
                )
            )
            num_inputs = num_outputs
    return layers


def parts_of(network: Subject, fraction: float) -> list[Part]:
    """Return the layers with this fraction of each group frozen."""
    layers = layers_of(network)
    single = network.head == "single"
    last = len(layers) - 1
    parts = []
    for place, layer in enumerate(layers):
        before, after = (int(n * fraction) for n in (layer.num_inputs, layer.num_outputs))
        is_read = place < last - 1 or (place == last - 1 and not single)
        reads_frozen = place > 0 and not (place == last and single)
        parts.append(
            Part(
                layer,
                frozen_inputs=before if reads_frozen else 0,
                free_inputs=layer.num_inputs - (before if place else 0),
                frozen_outputs=after if is_read else 0,
                free_outputs=layer.num_outputs - (after if place < last else 0),
                passes_back=place > 0,
            )
        )
    return parts


def cost_of(network: Subject, fraction: float) -> Cost:
    """Return the cost of a step with this fraction of each group frozen."""
    parts = parts_of(network, fraction)
    inputs = BATCH * torch.Size(network.shape).numel()
    return Cost(
        sum(part.flops for part in parts),
        sum(part.num_numbers for part in parts) + inputs,
        sum(part.num_activations for part in parts),
    )


def counted(networks: list[Subject]) -> list[list[str]]:
    """Return a row for each network and fraction, with the least time of an H200."""
    floors = [f"{precision}, µs" for precision in FLOPS]
    rows = [["network", "frozen", "GFLOP", "/ dense", "MB", "/ dense", *floors]]
    for network in networks:
        dense = cost_of(network, 0.0)
        for fraction in FRACTIONS:
            cost = cost_of(network, fraction)
            size, all_of_it = cost.num_bytes("float32"), dense.num_bytes("float32")
            rows.append(
                [
                    network.title,
                    f"{100 * fraction:g} %",
                    f"{cost.flops / 1e9:.2f}",
                    f"{cost.flops / dense.flops:.2f}x",
                    f"{size / 1e6:.0f}",
                    f"{size / all_of_it:.2f}x",
                    *(f"{1e6 * cost.floor(each):.0f} ({cost.bound(each)})" for each in FLOPS),
                ]
            )
    return rows


def measured(
    network: Subject, fraction: float, *, device: torch.device, training: clnp.Training, steps: int
) -> float:
    """Return the seconds of a step of `Fit`: the median of all epochs but the first."""
    x = torch.rand(steps * BATCH, *network.shape)
    y = torch.randint(0, 10, (len(x),))
    net = with_fraction_frozen(network.make, x[:2].to(device), head=network.head, fraction=fraction)
    task = clnp.Task("open", (x, y), (x[:1], y[:1]), num_outputs=10)
    rule = l1_rule(net, training.alpha)
    fit = Fit(net, load(task, device), training, seed=0, rule=rule)
    fit.run()
    return statistics.median(epoch.seconds for epoch in fit.epochs[1:]) / steps


def compared(
    networks: list[Subject], *, device: torch.device, training: clnp.Training, steps: int
) -> list[list[str]]:
    """Return a row for each network and fraction, with the measured time and the floor."""
    rows = [["network", "frozen", "measured, µs", "/ dense", "floor, µs", "measured / floor"]]
    for network in networks:
        dense = 0.0
        for fraction in FRACTIONS:
            floor = cost_of(network, fraction).floor(training.precision)
            took = measured(network, fraction, device=device, training=training, steps=steps)
            dense = dense or took
            rows.append(
                [
                    network.title,
                    f"{100 * fraction:g} %",
                    f"{1e6 * took:.0f}",
                    f"{took / dense:.2f}x",
                    f"{1e6 * floor:.0f}",
                    f"{took / floor:.1f}x",
                ]
            )
    return rows


def chosen() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    parser.add_argument("--measure", action="store_true", help="measure the step too")
    parser.add_argument("--device", default="cpu", help="device to measure on")
    parser.add_argument(
        "--precision", choices=FLOPS, default="float32", help="of the measured step"
    )
    parser.add_argument("--channels-last", action="store_true", help="memory format of images")
    parser.add_argument("--autotune", action="store_true", help="let cuDNN time its kernels first")
    parser.add_argument("--steps", type=int, default=100, help="steps of each of the four epochs")
    return parser.parse_args()


def main() -> None:
    options = chosen()
    networks = [NETWORKS[name] for name in options.network]
    show = markdown if options.markdown else aligned
    print(f"A training step, batch {BATCH}; the floor of an H200 and what sets it\n")
    print(show(counted(networks)))
    if not options.measure:
        return
    device = torch.device(options.device)
    # By default, PyTorch convolves float32 in TF32, also where products are exact.
    torch.backends.cudnn.allow_tf32 = options.precision != "float32"
    torch.backends.cudnn.benchmark = options.autotune
    training = clnp.Training(
        epochs=4,
        batch_size=BATCH,
        precision=options.precision,
        channels_last=options.channels_last,
        cuda_graph=True,
    )
    layout = ", channels last" if options.channels_last else ""
    tuned = ", kernels timed first" if options.autotune else ""
    how = f"{options.precision}{layout}{tuned}"
    print(f"\nMeasured: {machine(device)}, {how}, against the floor of an H200\n")
    print(show(compared(networks, device=device, training=training, steps=options.steps)))


if __name__ == "__main__":
    main()

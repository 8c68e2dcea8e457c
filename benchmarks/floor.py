"""The least that a training step can cost: operations and bytes, counted, and the time of an H200.

    python benchmarks/floor.py [--markdown]
    python benchmarks/floor.py --measure [--device cuda] [--precision tf32]

Counted is a step of the three networks of the paper, with batches of 256, when that fraction of
every layer is frozen. Forward: all neurons, but for the frozen ones of the last hidden layer when
the head is single, which the open task does not read. Backward: the gradients of trained weights,
and of the activations of free neurons; nothing goes towards what is frozen. Operations are the
multiplications and additions of matrix products and convolutions, those with padding included; all
else takes its time by the bytes that it moves.

Bytes: frozen weights are read once; of trained ones the step reads the weight, writes the gradient,
and Adam reads weight, gradient and two moments and writes all but the gradient. The L1 term is a
sign that Adam's kernel can add. Activations, and the gradients of those of free neurons, are
written once and read once, the input is read once. Activations are in the precision of the step,
all else is float32. What a cache saves is not taken off: where all that belongs to the weights is
smaller than the 50 MB of an H200's, a step may take less than the time for its bytes.

The floor is the larger of the time for the operations and the time for the bytes, not their sum: a
perfect step moves the bytes of one part while it computes another, and no step can take less than
either. `--measure` runs the step through `Fit`, on a GPU captured and replayed.
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
"""Dense peak of an H200, in operations a second, as its data sheet has it."""
BANDWIDTH = 4.8e12
"""Bytes a second between an H200 and its memory, likewise."""
FLOAT = 4
TRAINED = 9
"""How often a trained weight, or something of its size, goes through memory."""
NETWORKS = {"mlp": MLP, "narrow-cnn": NARROW_CNN, "wide-cnn": WIDE_CNN}


@dataclass(frozen=True)
class Layer:
    """A Linear layer or convolution, between neurons."""

    num_inputs: int
    num_outputs: int
    span: int
    """Weights from one neuron to another: those of a kernel, or of a flattened image."""
    num_places: int
    """Where in the image an output is computed; 1 for a Linear layer."""
    num_own: int
    """What else a neuron has: its bias, or the scale and shift of BatchNorm."""


@dataclass(frozen=True)
class Part:
    """How many neurons a layer reads and makes when some are frozen."""

    layer: Layer
    frozen_inputs: int
    free_inputs: int
    frozen_outputs: int
    free_outputs: int
    passes_back: bool
    """Whether the free inputs are neurons, which want a gradient."""

    @property
    def frozen_weights(self) -> int:
        inputs = self.frozen_inputs if self.passes_back else self.layer.num_inputs
        return inputs * self.frozen_outputs * self.layer.span

    @property
    def trained_weights(self) -> int:
        return (self.frozen_inputs + self.free_inputs) * self.free_outputs * self.layer.span

    @property
    def flops(self) -> int:
        """Of the forward pass, the gradients of the weights and those of the free inputs."""
        back = self.free_inputs * self.free_outputs * self.layer.span if self.passes_back else 0
        products = self.frozen_weights + 2 * self.trained_weights + back
        return 2 * BATCH * self.layer.num_places * products

    @property
    def num_numbers(self) -> int:
        """Weights and what belongs to them, as often as they go through memory."""
        own = self.layer.num_own
        trained = self.trained_weights + own * self.free_outputs
        return self.frozen_weights + own * self.frozen_outputs + TRAINED * trained

    @property
    def num_activations(self) -> int:
        """Outputs and the gradients of free ones, each written and read."""
        each = BATCH * self.layer.num_places
        return 2 * each * (self.frozen_outputs + 2 * self.free_outputs)


@dataclass(frozen=True)
class Cost:
    """What a step does: operations, and the bytes that it moves in each precision."""

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
        """Seconds that a step takes at least."""
        return max(self.compute_time(precision), self.memory_time(precision))

    def bound(self, precision: str) -> str:
        """What sets the floor."""
        compute, memory = self.compute_time(precision), self.memory_time(precision)
        return "operations" if compute >= memory else "bytes"


def layers_of(network: Subject) -> list[Layer]:
    """The layers in their order; each reads the one before it."""
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
    """The layers when that fraction of every group is frozen."""
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
    """What a step of the network costs with that fraction of every group frozen."""
    parts = parts_of(network, fraction)
    inputs = BATCH * torch.Size(network.shape).numel()
    return Cost(
        sum(part.flops for part in parts),
        sum(part.num_numbers for part in parts) + inputs,
        sum(part.num_activations for part in parts),
    )


def counted(networks: list[Subject]) -> list[list[str]]:
    """A row for each network and fraction; the time is what an H200 takes at least."""
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
    """Seconds of a step through `Fit`: the median of all epochs but the first."""
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
    """A row for each network and fraction: the step as it is, and the floor."""
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
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    parser.add_argument("--measure", action="store_true", help="measure the step, too")
    parser.add_argument("--device", default="cpu", help="where it is measured")
    parser.add_argument("--precision", choices=FLOPS, default="float32", help="that it is in")
    parser.add_argument("--channels-last", action="store_true", help="lay images out so")
    parser.add_argument("--autotune", action="store_true", help="let cuDNN time its kernels first")
    parser.add_argument("--steps", type=int, default=100, help="of each of four epochs")
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
    # PyTorch convolves float32 in TF32 unless told otherwise, also where products are exact.
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

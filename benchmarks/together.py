"""Train several small networks on one GPU: one after the other, on their own streams, or stacked.

    python benchmarks/together.py NUMBER {after,streams,stacked}

Prints the time of a step of one network: the 784-2000-2000-10 network with Adam and an L1 term,
batch 256, TF32, captured steps. Stacked weights use batched products. The result is the reason for
the lanes of `clnp.learner.grid`.
"""

import argparse

import torch
from timing import machine, seconds
from torch import Tensor, nn
from torch.nn import functional as F

BATCH, STEPS, WARM_UP, SAMPLES = 256, 200, 3, 20_000
SHAPES = ((784, 2000), (2000, 2000), (2000, 10))
ALPHA = 1e-5


class Networks:
    """One network, or `stacked` of them in one, with a step captured on its own stream."""

    def __init__(self, x: Tensor, y: Tensor, stacked: int | None) -> None:
        self.x, self.y, self.stacked = x, y, stacked
        many = () if stacked is None else (stacked,)
        row = () if stacked is None else (1,)
        device = x.device
        self.weights = [
            nn.Parameter(0.02 * torch.randn(*many, i, o, device=device)) for i, o in SHAPES
        ]
        self.biases = [nn.Parameter(torch.zeros(*many, *row, o, device=device)) for _, o in SHAPES]
        self.optimizer = torch.optim.Adam(
            [*self.weights, *self.biases],
            lr=torch.tensor(2e-3, device=device),
            capturable=True,
            fused=True,
        )
        self.indices = torch.zeros(*many, BATCH, dtype=torch.long, device=device)
        self.stream = torch.cuda.Stream()
        self.graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UP):
                self.step()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.step()

    def step(self) -> None:
        hidden = self.x[self.indices]
        multiply = torch.addmm if self.stacked is None else torch.baddbmm
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = multiply(bias, hidden, weight)
            hidden = F.relu(hidden) if number + 1 < len(self.weights) else hidden
        loss = F.cross_entropy(hidden.reshape(-1, 10), self.y[self.indices].reshape(-1))
        self.optimizer.zero_grad(set_to_none=True)
        (loss * (self.stacked or 1)).backward()
        signs = torch._foreach_sign(self.weights)
        torch._foreach_add_([weight.grad for weight in self.weights], signs, alpha=ALPHA)
        self.optimizer.step()

    def replay(self, indices: Tensor) -> None:
        self.indices.copy_(indices.expand(self.indices.shape))
        self.graph.replay()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("number", type=int)
    parser.add_argument("way", choices=("after", "streams", "stacked"))
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    device, number = torch.device("cuda"), options.number
    x = torch.rand(SAMPLES, 784, device=device)
    y = torch.randint(0, 10, (SAMPLES,), device=device)
    order = torch.randint(0, SAMPLES, (STEPS, BATCH), device=device)
    stacked = options.way == "stacked"
    networks = [
        Networks(x, y, number if stacked else None) for _ in range(1 if stacked else number)
    ]

    def run() -> None:
        if options.way == "streams":
            for indices in order:
                for network in networks:
                    with torch.cuda.stream(network.stream):
                        network.replay(indices)
        else:
            for network in networks:
                for indices in order:
                    network.replay(indices)

    run()
    took = seconds(run, device) / STEPS / number
    print(f"{machine(device)}")
    print(f"{number} networks, {options.way}: {1e6 * took:.0f} µs for a step of one")


if __name__ == "__main__":
    main()

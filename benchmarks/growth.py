"""Measure the time and memory of a step as more and more tasks have ended.

    python benchmarks/growth.py [--tasks 25] [--keep 0.04] [--rounds 3] [--device cpu]

The 784-2000-2000-10 network learns one task after the other, and each keeps a fixed fraction of
every hidden layer. With each task, the dense network takes the same steps in turns. A ratio is the
median over rounds (lowest .. highest). Memory is the peak of a step without the data: on a GPU by
the allocator, on a CPU the bytes of weights, gradients and the optimizer's moments.
"""

import argparse
import gc
from collections.abc import Callable

import torch
from step import BATCH, clnp_step, plain_step
from timing import aligned, machine, ratios, seconds, spread
from torch import nn

import clnp


def held_bytes(network: nn.Module, device: torch.device, before: int) -> int:
    """Return the peak bytes of a step; `before` are those on the GPU without a step."""
    trained = sum(parameter.nbytes for parameter in network.parameters())
    fixed = sum(buffer.nbytes for buffer in network.buffers())
    if device.type == "cuda":
        return fixed + trained + torch.cuda.max_memory_allocated(device) - before
    return fixed + 4 * trained


def held_now(device: torch.device) -> int:
    """Return the bytes on the GPU, and reset the peak."""
    if device.type != "cuda":
        return 0
    gc.collect()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def timed(
    step: Callable[[], None], device: torch.device, *, calls: int, rounds: int
) -> list[float]:
    """Return the seconds per call, one for each round."""

    def run() -> None:
        for _ in range(calls):
            step()

    run()
    return [seconds(run, device) / calls for _ in range(rounds)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=25)
    parser.add_argument("--keep", type=float, default=0.04)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.manual_seed(0)
    x, labels = torch.rand(BATCH, 784, device=device), torch.randint(0, 10, (BATCH,), device=device)
    dense = clnp.models.MLP().to(device)
    before = held_now(device)
    plain = plain_step(dense, x, labels)
    timed(plain, device, calls=options.calls, rounds=1)
    plain_bytes = held_bytes(dense, device, before)
    net = clnp.ContinualNet(clnp.models.MLP().to(device), x[:2], head="single")
    keep = {group: range(int(size * options.keep)) for group, size in net.graph.groups.items()}
    print(f"{machine(device)}, batch {BATCH}, {options.rounds} rounds of {options.calls} steps")
    print(f"each task keeps {options.keep:.0%} of every hidden layer\n")
    rows = [["task", "frozen before", "step / plain dense", "memory / plain dense"]]
    for number in range(1, options.tasks + 1):
        claimed, size = net.ledger.claimed()["fc1"], net.ledger.sizes["fc1"]
        reference = timed(plain, device, calls=options.calls, rounds=options.rounds)
        net.begin_task(f"task {number}")
        before = held_now(device)
        step = clnp_step(net, x, labels)
        times = timed(step, device, calls=options.calls, rounds=options.rounds)
        memory = held_bytes(net, device, before) / plain_bytes
        rows.append(
            [
                str(number),
                f"{claimed / size:.0%}",
                spread(ratios(times, reference), "x"),
                f"{memory:.2f}x",
            ]
        )
        del step
        net.end_task(keep)
    print(aligned(rows))


if __name__ == "__main__":
    main()

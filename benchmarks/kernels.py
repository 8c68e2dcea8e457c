"""Count the kernels of a training step on a GPU, and list those that take longest.

    python benchmarks/kernels.py [--steps 10] [--most 9] [--bfloat16]

The steps are those of `step.py`, not captured, with nothing and with half of each layer frozen;
with `--bfloat16` in that format, and images channels-last.
"""

import argparse

import torch
from frozen import MLP, NARROW_CNN, Subject, with_fraction_frozen
from step import ALPHA, BATCH
from timing import machine
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import clnp

WARM_UP = 5


def kernels(
    net: clnp.ContinualNet, x: torch.Tensor, num_steps: int, *, bfloat16: bool
) -> list[tuple[str, int, float]]:
    """Return name, number of calls and microseconds of each kernel in these steps."""
    labels = torch.randint(0, 10, (len(x),), device=x.device)
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    net.train()

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=bfloat16):
            loss = F.cross_entropy(net(x), labels)
        loss.backward()
        net.add_l1_gradient(ALPHA)
        optimizer.step()

    for _ in range(WARM_UP):
        step()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(num_steps):
            step()
        torch.cuda.synchronize()
    return [
        (event.key, event.count, event.self_device_time_total)
        for event in found.key_averages()
        if event.device_type.name == "CUDA"
        and event.self_device_time_total
        and not event.key.startswith("Optimizer.")  # It spans kernels that are there themselves.
    ]


def report(subject: Subject, x: torch.Tensor, *, steps: int, most: int, bfloat16: bool) -> None:
    if bfloat16 and x.ndim == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    for fraction in (0.0, 0.5):
        net = with_fraction_frozen(subject.make, x, head=subject.head, fraction=fraction)
        rows = kernels(net, x, steps, bfloat16=bfloat16)
        time, count = (sum(row[column] for row in rows) / steps for column in (2, 1))
        print(f"\n{subject.title}, {fraction:.0%} frozen: {time:.0f} µs in {count:.0f} kernels")
        for name, calls, took in sorted(rows, key=lambda row: -row[2])[:most]:
            print(f"  {took / steps:5.0f} µs  {calls / steps:4.0f}x  {name[:90]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--most", type=int, default=9, help="number of kernels to list")
    parser.add_argument("--bfloat16", action="store_true", help="bfloat16 and channels-last images")
    options = parser.parse_args()
    device = torch.device("cuda")
    how = "bfloat16, channels last" if options.bfloat16 else "float32"
    print(f"{machine(device)}, batch {BATCH}, {how}")
    listed = {"steps": options.steps, "most": options.most, "bfloat16": options.bfloat16}
    for subject in (MLP, NARROW_CNN):
        report(subject, torch.rand(BATCH, *subject.shape, device=device), **listed)


if __name__ == "__main__":
    main()

"""Measure a training step and inference as ratios to a hand-written plain PyTorch network.

    python benchmarks/step.py [--rounds 7] [--device cpu]

All candidates run in one process and take turns in every round, so a busy machine slows down all of
them. A ratio is the median over rounds of candidate / plain (lowest .. highest).
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from frozen import MLP, NARROW_CNN, Subject, with_fraction_frozen
from timing import machine, ratios, spread, wait_for
from torch import Tensor, nn
from torch.nn import functional as F

import clnp
from clnp.training.cuda_graph import CapturedStep
from clnp.training.optimizer import make_optimizer

ALPHA = 1e-5
BATCH = 256
LARGE_BATCH = 4096
"""For inference on a GPU too: with a small batch, it waits for the next kernel."""
FRACTIONS = {"task 1": 0.0, "25 %": 0.25, "50 %": 0.5, "75 %": 0.75}
"""Frozen fractions of each group."""


def plain_step(model: nn.Module, x: Tensor, labels: Tensor) -> Callable[[], None]:
    """Return a hand-written step of the dense network with an L1 term on its weights."""
    model.train()
    weights = [p for name, p in model.named_parameters() if name.endswith("weight")]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        penalty = sum((w.abs().sum() for w in weights), torch.zeros((), device=x.device))
        loss = F.cross_entropy(model(x), labels) + ALPHA * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def clnp_step(net: clnp.ContinualNet, x: Tensor, labels: Tensor) -> Callable[[], None]:
    """Return the same step of the open task as in the learner; on a GPU, captured."""
    net.train()
    captured = x.device.type == "cuda"
    training = clnp.Training(lr=1e-3)
    optimizer = make_optimizer(training, list(net.parameters()), captured=captured)

    def step(indices: Tensor | None = None) -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(net(x), labels).backward()
        net.add_l1_gradient(ALPHA)
        optimizer.step()

    if not captured:
        return step
    graph, indices = CapturedStep(step, 1, x.device), torch.zeros(1, dtype=torch.long).to(x.device)
    return lambda: graph(indices)


def inference(model: nn.Module, x: Tensor) -> Callable[[], None]:
    model.eval()

    def run() -> None:
        with torch.inference_mode():
            model(x)

    return run


def measured(
    candidates: dict[str, Callable[[], None]],
    *,
    rounds: int,
    seconds: float,
    device: torch.device,
) -> dict[str, list[float]]:
    """Return the seconds per call of each candidate, one for each round; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for run in candidates.values():
        for _ in range(3):
            run()
    for _ in range(rounds):
        for name, run in candidates.items():
            run()
            wait_for(device)
            start, calls = time.perf_counter(), 0
            while calls < 3 or time.perf_counter() - start < seconds:
                run()
                calls += 1
            wait_for(device)
            times[name].append((time.perf_counter() - start) / calls)
    return times


def ratio(times: dict[str, list[float]], name: str, plain: str) -> str:
    return spread(ratios(times[name], times[plain]), "x")


def report(subject: Subject, x: Tensor, *, rounds: int, seconds: float) -> None:
    make = subject.make
    labels = torch.randint(0, 10, (len(x),), device=x.device)
    nets = {
        name: with_fraction_frozen(make, x, head=subject.head, fraction=fraction)
        for name, fraction in FRACTIONS.items()
    }
    steps = {
        "plain": plain_step(make().to(x.device), x, labels),
        **{name: clnp_step(net, x, labels) for name, net in nets.items()},
    }
    times = measured(steps, rounds=rounds, seconds=seconds, device=x.device)
    print(f"\n{subject.title}: plain step {1e3 * statistics.median(times['plain']):.2f} ms")
    rows = [
        ("training step, task 1 / plain dense", "task 1", "at most 1.05x"),
        ("training step, 25 % frozen / plain dense", "25 %", ""),
        ("training step, 50 % frozen / plain dense", "50 %", "at most 0.50x"),
        ("training step, 75 % frozen / plain dense", "75 %", ""),
    ]
    for what, name, target in rows:
        print(f"  {what:48}{ratio(times, name, 'plain'):28}{target}")
    for size in (BATCH, LARGE_BATCH) if x.device.type == "cuda" else (BATCH,):
        inputs = x.repeat(size // BATCH, *[1] * (x.ndim - 1))
        answers = {
            "plain": inference(make().to(x.device), inputs),
            "subnetwork": inference(nets["50 %"].subnetwork("first"), inputs),
        }
        times = measured(answers, rounds=rounds, seconds=seconds, device=x.device)
        what = f"inference, dense / subnetwork, half used, {size}"
        print(f"  {what:48}{ratio(times, 'plain', 'subnetwork'):28}at least 2x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="number of rounds")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of each timing")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device(options.device)
    print(
        f"{machine(device)}, batch {BATCH}, {options.rounds} rounds: "
        "median ratio (lowest .. highest)"
    )
    timing = {"rounds": options.rounds, "seconds": options.seconds}
    for subject in (MLP, NARROW_CNN):
        report(subject, torch.rand(BATCH, *subject.shape, device=device), **timing)


if __name__ == "__main__":
    main()

"""Compare `predict_all` with running the tasks one by one.

    python benchmarks/predict_all.py [--rounds 7] [--device cpu]

All candidates run in one process and take turns in every round, so a busy machine slows down all of
them. A ratio is the median over rounds (lowest .. highest). The tasks claim equal parts of each
group, all of it together. *Exported* are the plain modules of `subnetwork`, one after the other:
the same products as `net(x, task=...)` without switching the task of the network.
"""

import argparse
import statistics
from collections.abc import Callable

import torch
from frozen import MLP, NARROW_CNN, Subject
from timing import machine, ratios, seconds, spread
from torch import Tensor

import clnp


def with_tasks(subject: Subject, x: Tensor, *, num_tasks: int) -> clnp.ContinualNet:
    """Return a full network in which each task owns an equal part of each group."""
    net = clnp.ContinualNet(subject.make().to(x.device), x[:2], head=subject.head)
    for number in range(num_tasks):
        left = num_tasks - number
        net.begin_task(f"task {number + 1}")
        net.end_task({group: range(n // left) for group, n in net.ledger.free().items()})
    return net


def measured(
    candidates: dict[str, Callable[[], object]], *, rounds: int, repeats: int, device: torch.device
) -> dict[str, list[float]]:
    """Return the seconds per call of each candidate, one for each round; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds + 1):
        for name, run in candidates.items():
            run()  # The weights that it gathers stay for the timed calls.
            took = seconds(lambda run=run: [run() for _ in range(repeats)], device) / repeats
            if number:  # The first round warms up.
                times[name].append(took)
    return times


def report(subject: Subject, x: Tensor, *, num_tasks: int, rounds: int, repeats: int) -> None:
    net = with_tasks(subject, x, num_tasks=num_tasks)
    dense = subject.make().to(x.device).eval()
    exported = [net.subnetwork(task) for task in net.tasks]
    for task, answer in net.predict_all(x).items():
        torch.testing.assert_close(answer, net(x, task=task), rtol=1e-4, atol=1e-4)
    candidates: dict[str, Callable[[], object]] = {
        "predict_all": lambda: net.predict_all(x),
        "net(x, task=...) one by one": lambda: [net(x, task=task) for task in net.tasks],
        "exported one by one": lambda: [module(x) for module in exported],
        "dense network, once": lambda: dense(x),
    }
    with torch.inference_mode():
        times = measured(candidates, rounds=rounds, repeats=repeats, device=x.device)
    ours = times.pop("predict_all")
    what = f"{subject.title}, {num_tasks} tasks, batch {len(x)}"
    print(f"\n{what}: {1e3 * statistics.median(ours):.2f} ms")
    for name, theirs in times.items():
        print(f"  {'predict_all / ' + name:44}{spread(ratios(ours, theirs), 'x')}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="number of rounds")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device(options.device)
    print(f"{machine(device)}, {options.rounds} rounds: median ratio (lowest .. highest)")
    for batch, repeats in ((256, 3), (1, 30)):
        timing = {"rounds": options.rounds, "repeats": repeats}
        for subject, num_tasks in ((MLP, 10), (NARROW_CNN, 6)):
            x = torch.rand(batch, *subject.shape, device=device)
            report(subject, x, num_tasks=num_tasks, **timing)


if __name__ == "__main__":
    main()

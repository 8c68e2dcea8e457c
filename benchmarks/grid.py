"""Compare candidates of a grid that are trained at the same time with one after the other.

    python benchmarks/grid.py [--candidates 4] [--rounds 3] [--device cpu] [--precision tf32]

A `Learner` trains the 784-2000-2000-10 network on a task of noise in the shape of MNIST with
several learning rates, one after the other and then at once, without the search for thresholds. A
ratio is the median over rounds (lowest .. highest).
"""

import argparse

import torch
from timing import machine, ratios, seconds, spread

import clnp
from clnp.learner.progress import Progress


class Trained(Exception):
    """Raised when all candidates are trained."""


def grid_seconds(
    task: clnp.Task, training: clnp.Training, *, num: int, at_once: int, device: torch.device
) -> float:
    """Return the seconds in which a learner trains all candidates."""
    torch.manual_seed(0)
    net = clnp.ContinualNet(
        clnp.models.MLP().to(device), torch.zeros(2, 784, device=device), head="single"
    )
    config = clnp.LearnerConfig(
        training=training,
        lrs=tuple(1e-3 * (1 + number) for number in range(num)),
        candidates_at_once=at_once,
    )

    def stop(progress: Progress) -> None:
        if len(progress.trained) == num:
            raise Trained

    def run() -> None:
        try:
            clnp.Learner(net, config, on_progress=stop).learn(task)
        except Trained:
            return

    return seconds(run, device)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--candidates", type=int, default=4)
    parser.add_argument("--samples", type=int, default=12_800, help="samples of an epoch")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.manual_seed(0)
    x, y = torch.rand(options.samples, 784), torch.randint(0, 10, (options.samples,))
    task = clnp.Task("noise", (x, y), (x[:1000], y[:1000]), num_outputs=10)
    training = clnp.Training(
        epochs=options.epochs,
        batch_size=256,
        alpha=1e-5,
        cuda_graph=True,
        precision=options.precision,
        input_dropout=0.2,
    )
    num = options.candidates
    times: dict[int, list[float]] = {1: [], num: []}
    for _ in range(options.rounds + 1):
        for at_once, found in times.items():
            took = grid_seconds(task, training, num=num, at_once=at_once, device=device)
            found.append(took)
    alone, together = times[1][1:], times[num][1:]  # The first round warms up.
    print(f"{machine(device)}, {options.precision}, {options.rounds} rounds")
    print(f"{num} candidates, {options.epochs} epochs of {options.samples} samples")
    print(f"one after the other  {spread(alone, ' s')}")
    print(f"at the same time     {spread(together, ' s')}")
    print(f"ratio                {spread(ratios(together, alone), 'x')}")


if __name__ == "__main__":
    main()

"""Compare the cost of pruning with an epoch of training.

    python benchmarks/pruning.py [--samples 10000] [--rounds 3] [--device cpu]

A task, ten patterns under noise, is trained for two epochs, of which the second counts, and then
pruned: neurons are measured on the training data, and thresholds are searched on a tenth as many
validation samples, one for all layers or one for each. The wide CNN, which runs on a GPU only, has
BatchNorm: it is measured without recalibration and with recalibration for every candidate. A ratio
is the median over rounds (lowest .. highest).
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from frozen import MLP, NARROW_CNN, WIDE_CNN
from timing import aligned, machine, ratios, seconds, spread
from torch import nn

import clnp
from clnp.training.fit import EVALUATION_BATCH, Fit, evaluate, l1_rule
from clnp.training.task import TaskData, load


@dataclass(frozen=True)
class Times:
    """Validation score, and seconds of an epoch, of measuring, and of both searches."""

    score: float
    epoch: float
    measuring: float
    together: float
    by_layer: float


def task_of(shape: tuple[int, ...], num_samples: int, device: torch.device) -> TaskData:
    """Return patterns of ten classes under noise, with a tenth as many for validation."""
    labels = torch.randint(0, 10, (num_samples * 11 // 10,))
    images = torch.rand(10, *shape)[labels] + torch.randn(len(labels), *shape)
    train, held_out = slice(num_samples), slice(num_samples, None)
    parts = (images[train], labels[train]), (images[held_out], labels[held_out])
    return load(clnp.Task("patterns", *parts, num_outputs=10), device)


def measured(
    model: nn.Module, data: TaskData, *, head: str, device: torch.device, recalibrating: bool
) -> Times:
    """Run one round."""
    net = clnp.ContinualNet(model.to(device), data.train.at(torch.arange(2))[0], head=head)
    net.begin_task("patterns", 10)
    training = clnp.Training(epochs=2, batch_size=256, alpha=1e-5, cuda_graph=True)
    fit = Fit(net, data, training, seed=0, rule=l1_rule(net, training.alpha))
    fit.run()

    def score(predict: Callable[..., Any], at_least: float | None) -> float:
        return evaluate(predict, data.validation, data.objective, at_least=at_least)

    found = []

    def measure() -> None:
        found.append(net.measure_activity(data.train.batches(EVALUATION_BATCH)))

    measuring = seconds(measure, device)
    num = clnp.LearnerConfig().calibration_samples
    some = list(data.train.some(num, most=EVALUATION_BATCH, seed=0)) if recalibrating else None

    def plan(*, per_layer: bool) -> None:
        net.plan_pruning(found[0], score, margin=1.0, per_layer=per_layer, recalibrate=some)

    together = seconds(lambda: plan(per_layer=False), device)
    by_layer = seconds(lambda: plan(per_layer=True), device)
    return Times(fit.epochs[1].score, fit.epochs[1].seconds, measuring, together, by_layer)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=10_000, help="training samples")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.manual_seed(0)
    print(f"{machine(device)}, {options.samples} samples, {options.rounds} rounds")
    rows = [
        [
            "against an epoch",
            "validation",
            "epoch",
            "measuring",
            "one threshold",
            "one for each layer",
        ]
    ]
    subjects = [(MLP, False), (NARROW_CNN, False)]
    if device.type == "cuda":
        subjects += [(WIDE_CNN, False), (WIDE_CNN, True)]
    for subject, recalibrating in subjects:
        data = task_of(subject.shape, options.samples, device)
        times = [
            measured(
                subject.make(), data, head=subject.head, device=device, recalibrating=recalibrating
            )
            for _ in range(options.rounds + 1)
        ][1:]
        epochs = [t.epoch for t in times]
        rows.append(
            [
                subject.title + ", recalibrated" * recalibrating,
                spread([t.score for t in times], digits=0),
                spread(epochs, " s"),
                spread(ratios([t.measuring for t in times], epochs), "x"),
                spread(ratios([t.together for t in times], epochs), "x"),
                spread(ratios([t.by_layer for t in times], epochs), "x"),
            ]
        )
    print(aligned(rows))


if __name__ == "__main__":
    main()

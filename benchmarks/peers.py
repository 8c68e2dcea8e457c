"""Measure an epoch of permuted MNIST in clnp, plain PyTorch and Avalanche, in turns.

    pip install 'clnp[bench]'
    python benchmarks/peers.py [--rounds 5] [--device cpu]

All systems train the same 784-2000-2000-10 network with Adam, rate 0.002, in batches of 256, on the
same float32 tensors, permuted beforehand. The inputs are noise unless `--data` is a directory with
MNIST: the time of a step does not depend on them. No system logs, and none evaluates, except for
the one validation sample that `Fit` needs.

In each round, every system starts again and learns one task after the other; they take turns task
by task. The epoch is the last one of its task. The whole task is all of its epochs and everything
that is done once: EWC's pass over the data for its importances, a pruning, the capture of a CUDA
graph. On a GPU, clnp replays captured steps, and clnp and the plain loops keep the data there;
Avalanche loads batches from the host, without worker processes.
"""

import argparse
import gc
import statistics
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import torch
from timing import aligned, machine, ratios, seconds, spread
from torch import Tensor, nn
from torch.nn import functional as F

import clnp
from clnp.data.labelled import LabelledData
from clnp.data.named import find
from clnp.data.streams import Permuted, permuted
from clnp.training.fit import Fit, l1_rule
from clnp.training.task import load

BATCH = 256
LR = 0.002
ALPHA = {"fc1": 2e-5, "fc2": 1e-4, "fc3": 1e-5}
PLAIN, NAIVE = "plain loop", "Avalanche Naive"

Learn = Callable[[int], list[float]]
"""Learns the task of a number, from 0, and returns the seconds of each epoch."""


@dataclass(frozen=True)
class Setting:
    """Inputs and labels of each task, on the host, and the epochs of each."""

    tasks: list[tuple[Tensor, Tensor]]
    device: torch.device
    epochs: int
    tf32: bool = False
    """Whether products on a GPU are rounded, for all systems."""


System = Callable[[Setting], Learn]
"""Makes a new network for the tasks of a setting."""


@dataclass(frozen=True)
class Measured:
    """Seconds of the last epoch of a task, and of the whole task."""

    epoch: float
    whole: float


Times = dict[str, list[list[Measured]]]
"""Times by system and task, one for each round."""


def noise(num_samples: int) -> LabelledData:
    """Return noise in the shape of MNIST, and random labels."""
    images = torch.randint(0, 256, (num_samples, 1, 28, 28), dtype=torch.uint8)
    data = images, torch.randint(0, 10, (num_samples,))
    return LabelledData("noise", data, data, 10, largest=255.0)


def tasks_of(
    data: LabelledData, *, num_tasks: int, num_samples: int
) -> list[tuple[Tensor, Tensor]]:
    """Return float32 inputs, [num_samples, 784], and labels of each task."""
    stream = Permuted("permuted", data.name, num_tasks=num_tasks, num_train=num_samples)
    made = []
    for task in permuted(data, stream, seed=0):
        images, labels = task.train
        made.append((task.prepare(images).flatten(1), labels))
    return made


def plain(setting: Setting, alpha: Mapping[str, float]) -> Learn:
    """Return a hand-written loop over data on the device, with the L1 term of `alpha`."""
    model = clnp.models.MLP().to(setting.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    weights = [(a, model.get_submodule(path).weight) for path, a in alpha.items()]

    def run_epoch(x: Tensor, y: Tensor) -> None:
        for indices in torch.randperm(len(x), device=x.device).split(BATCH):
            loss = F.cross_entropy(model(x[indices]), y[indices])
            for a, weight in weights:
                loss = loss + a * weight.abs().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def learn(number: int) -> list[float]:
        x, y = (part.to(setting.device) for part in setting.tasks[number])
        return [seconds(lambda: run_epoch(x, y), x.device) for _ in range(setting.epochs)]

    return learn


def continual(setting: Setting, keep: float) -> Learn:
    """Return clnp with its L1 term; each task keeps this fraction of each hidden layer."""
    model = clnp.models.MLP().to(setting.device)
    net = clnp.ContinualNet(model, torch.zeros(2, 784, device=setting.device), head="single")
    kept = {group: range(int(size * keep)) for group, size in net.graph.groups.items()}
    training = clnp.Training(
        epochs=setting.epochs,
        lr=LR,
        alpha=ALPHA,
        batch_size=BATCH,
        cuda_graph=True,
        precision="tf32" if setting.tf32 else "float32",
    )

    def learn(number: int) -> list[float]:
        x, y = setting.tasks[number]
        task = clnp.Task(f"task {number + 1}", (x, y), (x[:1], y[:1]), num_outputs=10)
        net.begin_task(task.name)
        rule = l1_rule(net, training.alpha)
        fit = Fit(net, load(task, setting.device), training, seed=number, rule=rule)
        fit.run()
        net.end_task(kept)
        return [epoch.seconds for epoch in fit.epochs]

    return learn


def strategies(keep: float) -> dict[str, System]:
    """Return Avalanche's strategies by name; an `ImportError` if it is not installed."""
    from avalanche.models.packnet import PackNetModel
    from avalanche.training.plugins import EvaluationPlugin
    from avalanche.training.supervised import EWC, Naive, PackNet, SynapticIntelligence

    def system(strategy: type, options: dict[str, float]) -> System:
        def begin(setting: Setting) -> Learn:
            # PackNet needs its own layers, and task labels.
            packs = strategy is PackNet
            model = (PackNetModel(clnp.models.MLP()) if packs else clnp.models.MLP()).to(
                setting.device
            )
            made = strategy(
                model=model,
                optimizer=torch.optim.Adam(model.parameters(), lr=LR),
                criterion=nn.CrossEntropyLoss(),
                train_mb_size=BATCH,
                train_epochs=setting.epochs,
                device=setting.device,
                evaluator=EvaluationPlugin(),
                **options,
            )
            return learn_with(made, experiences(setting, labelled=packs), device=setting.device)

        return begin

    return {
        NAIVE: system(Naive, {}),
        "Avalanche EWC": system(EWC, {"ewc_lambda": 1.0}),
        "Avalanche SI": system(SynapticIntelligence, {"si_lambda": 0.01}),
        "Avalanche PackNet": system(
            PackNet, {"post_prune_epochs": 1, "prune_proportion": 1 - keep}
        ),
    }


def experiences(setting: Setting, *, labelled: bool) -> list[Any]:
    """Return the tasks for Avalanche; without task labels, its loader has less to do."""
    from avalanche.benchmarks import (
        benchmark_from_datasets,
        task_incremental_benchmark,
        with_classes_timeline,
    )
    from avalanche.benchmarks.utils import AvalancheDataset
    from avalanche.benchmarks.utils.data_attribute import DataAttribute
    from torch.utils.data import TensorDataset

    datasets = [
        AvalancheDataset(
            [TensorDataset(x, y)],
            data_attributes=[DataAttribute(y.tolist(), "targets")] if labelled else None,
        )
        for x, y in setting.tasks
    ]
    benchmark = benchmark_from_datasets(train=datasets)
    if labelled:
        benchmark = with_classes_timeline(task_incremental_benchmark(benchmark))
    return list(benchmark.train_stream)


def learn_with(strategy: Any, experiences: list[Any], *, device: torch.device) -> Learn:
    """Return a strategy of Avalanche with timed epochs."""
    times: list[float] = []
    run_epoch = strategy.training_epoch
    strategy.training_epoch = lambda **options: times.append(
        seconds(lambda: run_epoch(**options), device)
    )

    def learn(number: int) -> list[float]:
        times.clear()
        strategy.train(experiences[number], num_workers=0)
        return list(times)

    return learn


def warmed_up(systems: dict[str, System], setting: Setting) -> dict[str, System]:
    """Return the systems that can learn a little of each task; print why others cannot."""
    few = replace(setting, tasks=[(x[: 2 * BATCH], y[: 2 * BATCH]) for x, y in setting.tasks])
    able = {}
    for name, begin in systems.items():
        try:
            learn = begin(few)
            for number in range(len(few.tasks)):
                learn(number)
        except Exception as error:
            if not name.startswith("Avalanche"):
                raise
            print(f"{name} is left out: {type(error).__name__}: {error}")
        else:
            able[name] = begin
    return able


def learned(learn: Learn, number: int, *, device: torch.device) -> Measured:
    """Learn the task of this number, and return its times."""
    gc.collect()  # Nobody is to clear away what another one left behind.
    epochs: list[float] = []
    whole = seconds(lambda: epochs.extend(learn(number)), device)
    return Measured(epochs[-1], whole)


def measured(systems: dict[str, System], setting: Setting, *, rounds: int) -> Times:
    """Return the times of each system and task, one for each round; systems take turns."""
    times: Times = {name: [[] for _ in setting.tasks] for name in systems}
    for current in range(1, rounds + 1):
        print(f"round {current} of {rounds}", file=sys.stderr)
        learners = {name: begin(setting) for name, begin in systems.items()}
        for number in range(len(setting.tasks)):
            for name, learn in learners.items():
                times[name][number].append(learned(learn, number, device=setting.device))
    return times


def table(times: Times, *, epochs: int) -> str:
    """Return a row for each system and task; ratios are within a round."""
    first = {name: [each.epoch for each in tasks[0]] for name, tasks in times.items()}
    whole = f"task of {epochs} epochs, s"
    rows = [["system", "task", "epoch, s", "/ Naive, task 1", "/ plain, task 1", whole]]
    for name, tasks in times.items():
        for number, values in enumerate(tasks, start=1):
            taken = [each.epoch for each in values]
            rows.append(
                [
                    name,
                    str(number),
                    spread(taken, digits=3),
                    spread(ratios(taken, first[NAIVE]), "x", digits=3) if NAIVE in first else "-",
                    f"{statistics.median(ratios(taken, first[PLAIN])):.3f}x",
                    f"{statistics.median(each.whole for each in values):.3f}",
                ]
            )
    return aligned(rows)


def chosen() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=12_800, help="samples of an epoch")
    parser.add_argument("--tasks", type=int, default=3, help="number of tasks")
    parser.add_argument("--epochs", type=int, default=2, help="epochs of each task; at least 2")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--tf32", action="store_true", help="round products on a GPU, in all systems"
    )
    parser.add_argument("--data", help="directory with MNIST's files; noise by default")
    parser.add_argument(
        "--keep",
        type=float,
        nargs="+",
        default=[0.04, 0.25],
        help="fractions of a layer that a task of clnp keeps, a row for each; 0.04 is about what "
        "the recipe permuted-mnist keeps",
    )
    options = parser.parse_args()
    if options.epochs < 2:
        parser.error("--epochs must be 2 or more: PackNet prunes before its last epoch")
    if max(options.keep) * options.tasks > 1:
        parser.error("--keep times --tasks is more than the whole network")
    return options


def systems_of(keep: list[float]) -> dict[str, System]:
    """Return all systems by name; those of Avalanche if it is installed."""
    systems: dict[str, System] = {
        PLAIN: lambda setting: plain(setting, {}),
        "plain loop with L1": lambda setting: plain(setting, ALPHA),
    }
    for fraction in keep:
        name = f"clnp, {100 * fraction:g} % kept"
        systems[name] = lambda setting, fraction=fraction: continual(setting, fraction)
    try:
        systems.update(strategies(keep[0]))
    except ImportError as error:
        print(f"Avalanche is left out ({error}): pip install 'clnp[bench]'")
    return systems


def main() -> None:
    options = chosen()
    warnings.filterwarnings("ignore", module="avalanche")
    torch.manual_seed(0)
    data = find("mnist", options.data) if options.data else noise(options.samples)
    setting = Setting(
        tasks_of(data, num_tasks=options.tasks, num_samples=options.samples),
        torch.device(options.device),
        options.epochs,
        options.tf32,
    )
    if options.tf32:
        torch.set_float32_matmul_precision("high")
    systems = systems_of(options.keep)
    peer = f"avalanche-lib {version('avalanche-lib')}, " if NAIVE in systems else ""
    print(
        f"{peer}{machine(setting.device)}; {data.name}, epochs of "
        f"{len(setting.tasks[0][0])} samples, {'TF32' if options.tf32 else 'float32'}, "
        f"{options.rounds} rounds: median (lowest .. highest)"
    )
    systems = warmed_up(systems, setting)
    gc.collect()
    gc.freeze()  # Collections need not search the modules of Avalanche.
    times = measured(systems, setting, rounds=options.rounds)
    gc.unfreeze()
    print(table(times, epochs=options.epochs))


if __name__ == "__main__":
    main()

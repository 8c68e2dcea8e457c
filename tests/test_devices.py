"""A default device of the user changes nothing.

Nothing can be computed on the device meta, so a tensor that is made there makes a test fail.
"""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clnp
from clnp import FineTuning, LearnerConfig, Task, Training
from clnp.data.named import digits, stand_in
from clnp.data.streams import Permuted, Split, tasks_of
from clnp.devices import on_the_host
from clnp.methods.registry import BASELINES
from clnp.records import RunResult, Timings
from clnp.training.objective import accuracy
from clnp.training.optimizer import check_optimizers
from support.networks import ConvNet

DEFAULTS = (nullcontext, lambda: torch.device("meta"))
CPU = torch.device("cpu")
TRAINING = Training(epochs=2, lr=0.01, batch_size=8)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 4))


NETWORKS = {"mlp": (mlp, (6,)), "cnn": (ConvNet, (3, 8, 8))}


def made(network: str) -> tuple[nn.Module, list[Task]]:
    """A model and its tasks, the same every time."""
    torch.manual_seed(0)
    kind, shape = NETWORKS[network]

    def labelled(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, *shape)
        first, second = x.flatten(1)[:, :2].unbind(1)
        return x, (first > 0).long() + 2 * (second > 0).long()

    return kind(), [Task(name, labelled(24), test=labelled(12)) for name in "ab"]


def results(
    path: Path, network: str, config: LearnerConfig, *, verify: bool = False, **options: Any
) -> list[RunResult]:
    """The results of a run, without and with another default device."""
    found = []
    for number, default in enumerate(DEFAULTS):
        model, tasks = made(network)
        experiment = clnp.Experiment(model, tasks[0].train[0][:2], tasks, config, **options)
        with default():
            result = experiment.run(path / str(number))
            if verify:
                assert clnp.verify(experiment, path / str(number)).verified
        found.append(replace(result, timings=Timings()))
    return found


CONFIGS = {
    "plain": LearnerConfig(margin=5.0, training=TRAINING),
    "contribution": LearnerConfig(
        margin=5.0, training=TRAINING, importance="contribution", per_layer=True
    ),
    "taylor": LearnerConfig(margin=5.0, training=TRAINING, importance="taylor"),
    "fine-tuning": LearnerConfig(
        margin=5.0,
        training=replace(TRAINING, augment=lambda x: x + torch.rand_like(x), input_dropout=0.1),
        fine_tuning=FineTuning(epochs=1, rounds=2),
    ),
    "grid": LearnerConfig(
        margin=5.0,
        alphas=(1e-5, 1e-3),
        candidates_at_once=2,
        training=replace(TRAINING, patience=1),
    ),
    "glorot in halves": LearnerConfig(
        training=replace(TRAINING, initialisation="glorot", precision="bfloat16", clip_norm=1.0)
    ),
    "streamed": LearnerConfig(training=TRAINING, resident=False),
}


@pytest.mark.parametrize("config", CONFIGS)
def test_a_run_of_the_learner_is_the_same(config, tmp_path):
    usual, other = results(tmp_path, "cnn", CONFIGS[config], verify=config == "plain")
    assert other == usual


@pytest.mark.parametrize("baseline", BASELINES)
def test_a_run_of_a_baseline_is_the_same(baseline, tmp_path):
    usual, other = results(tmp_path, "cnn", CONFIGS["plain"], baseline=baseline())
    assert other == usual


@pytest.mark.parametrize(("resident", "num_workers"), [(None, 0), (False, 0), (False, 1)])
def test_samples_one_by_one_are_learned_the_same(resident, num_workers):
    found = []
    for default in DEFAULTS:
        model, (task, _) = made("mlp")
        samples = [(x, int(y)) for x, y in zip(*task.train, strict=True)]
        training = replace(TRAINING, epochs=1)
        with default():
            net = clnp.ContinualNet(model, samples[0][0][None])
            config = LearnerConfig(training=training, resident=resident, num_workers=num_workers)
            report = clnp.Learner(net, config).learn(replace(task, train=samples))
        found.append((report.score, report.test_score, net(task.test[0], task="a")))
    (*usual, outputs), (*other, same) = found
    assert other == usual
    assert torch.equal(outputs, same)


@pytest.mark.parametrize("name", ["Adam", "NAdam", "Adagrad", "ASGD", "SGD"])
def test_an_optimizer_is_the_same(name, tmp_path):
    training = replace(TRAINING, optimizer=name, epochs=1)
    with torch.device("meta"):
        check_optimizers([training], nn.Linear(2, 2, device=CPU))
    usual, other = results(tmp_path, "mlp", LearnerConfig(training=training))
    assert other == usual


@pytest.mark.parametrize("network", NETWORKS)
def test_the_calls_of_a_network_are_the_same(network, tmp_path):
    found = []
    for default in DEFAULTS:
        model, tasks = made(network)
        x, y = tasks[0].train
        torch.manual_seed(1)
        with default():
            found.append(used(model, x, y, tmp_path / "net.safetensors"))
    usual, other = found
    assert all(tensor.device == CPU for tensor in other)
    assert all(torch.equal(a, b) for a, b in zip(usual, other, strict=True))


def used(model: nn.Module, x: Tensor, y: Tensor, path: Path) -> list[Tensor]:
    """What every call gives that a loop of one's own may have."""
    net = clnp.ContinualNet(model, x[:2])
    batches = [x[:20], x[20:]]
    found: list[Tensor] = []
    for name in ("a", "b"):
        net.begin_task(name)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for batch, targets in zip(batches, (y[:20], y[20:]), strict=True):
            (nn.functional.cross_entropy(net(batch), targets) + net.l1_penalty(1e-4)).backward()
            optimizer.step()
        activity = net.measure_activity(batches)
        found += [*activity.values(), *net.measure_contribution(batches).values()]
        net.recalibrate(batches)
        plan = net.plan_pruning(
            activity,
            lambda predict: accuracy(predict(x), y),
            margin=10.0,
            recalibrate=batches,
            allow_guessing=True,
        )
        net.prune(plan)
        net.end_task()
    net.widen({next(iter(net.graph.groups)): 2})
    net.begin_task("c")
    clnp.save(net, path, attached={"tensor": x, "empty": x[:0]})
    loaded = clnp.load(path, model)
    net.verify()
    loaded.verify()
    for each in (net, loaded):
        each.abandon_task()
        each.eval()
        found += [each(x, task="a"), each(x, task="b"), *each.predict_all(x).values()]
        found += [each.subnetwork("a").eval()(x), each.subnetwork("b").eval()(x)]
    return [tensor.detach() for tensor in found]


@pytest.mark.parametrize(
    "stream",
    [
        Permuted("permuted", "digits", num_tasks=2, num_train=50),
        Split("split", "digits", 2, order="shuffled"),
    ],
    ids=["permuted", "split"],
)
def test_tasks_made_of_data_sets_are_the_same(stream):
    usual, other = [], []
    for found, default in zip((usual, other), DEFAULTS, strict=True):
        with default():
            for find in (lambda name: digits(), lambda name: stand_in("digits")):
                for task in tasks_of(stream, find):
                    found += [*task.train, *task.test, task.prepare(task.train[0])]
    assert all(torch.equal(a, b) for a, b in zip(usual, other, strict=True))


def test_the_host_is_the_default_only_inside():
    assert isinstance(on_the_host(), nullcontext)
    with torch.device("meta"):
        with on_the_host():
            assert torch.zeros(1).device == CPU
        assert torch.zeros(1).is_meta

"""Small problems on which methods forget, and runs on them that break off."""

import torch

import clnp
from clnp import Experiment, LearnerConfig, Task, Training
from clnp.methods.method import Setting
from clnp.methods.runner import DenseMethod
from clnp.records import EpochEnded
from support.networks import NETWORKS, example
from support.runs import break_off, untimed


def permuted(*, num_tasks: int = 3, noise: float = 0.7, seed: int = 0) -> list[Task]:
    """Four clusters, with the inputs in another order for each task."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(4, 20, generator=generator)
    y = torch.randint(0, 4, (400,), generator=generator)
    x = centres[y] + noise * torch.randn(400, 20, generator=generator)
    orders = [torch.randperm(20, generator=generator) for _ in range(num_tasks)]
    return [
        Task(f"task {number}", (x[:300, order], y[:300]), test=(x[300:, order], y[300:]))
        for number, order in enumerate(orders)
    ]


def permuted_rule(num_tasks: int = 3) -> list[Task]:
    """A linear rule, with the inputs in another order for each task."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 12, generator=generator)
    y = (x @ torch.randn(12, 3, generator=generator)).argmax(1)
    orders = [torch.randperm(12, generator=generator) for _ in range(num_tasks)]
    return [
        Task(f"t{number}", (x[:300, order], y[:300]), test=(x[300:, order], y[300:]))
        for number, order in enumerate(orders)
    ]


def forgotten(result) -> float:
    """Return the mean loss of accuracy of the tasks since each was learned."""
    rows = result.scores
    lost = [rows[number][number] - rows[-1][number] for number in range(len(rows) - 1)]
    return sum(lost) / len(lost)


def experiment(
    baseline, *, head="single", noise=0.7, seed=0, device="cpu", **training
) -> Experiment:
    """The permuted tasks in a network 20-64-64-4, by the method."""
    torch.manual_seed(0)
    options = {"epochs": 8, "lr": 0.005, "batch_size": 32, **training}
    config = LearnerConfig(training=Training(**options))
    model, x = clnp.models.MLP(20, (64, 64), 4).to(device), torch.zeros(2, 20, device=device)
    tasks = permuted(noise=noise, seed=seed)
    return Experiment(model, x, tasks, config, head=head, seed=seed, baseline=baseline)


def remaining(baseline, directory) -> float:
    """Return the mean score of the tasks before the last once that one has been learned."""
    scores = []
    for seed in range(2):
        result = experiment(baseline, noise=1.5, seed=seed).run(directory / str(seed))
        assert all(row[-1] > 70 for row in result.scores)  # Each of them has been learned.
        scores += result.scores[-1][:-1]
    return sum(scores) / len(scores)


def check_resumes(baseline, directory, *, head: str = "single") -> None:
    """A run with a checkpoint before or inside its second task resumes to the same result."""
    whole = experiment(baseline, head=head, epochs=2).run(directory / "whole")
    for epoch in range(2):
        broken = directory / f"broken {epoch}"
        made = experiment(baseline, head=head, epochs=2)
        break_off(made, broken, EpochEnded, task="task 1", number=epoch)
        torch.manual_seed(99)  # Nothing may depend on the state of the generator.
        assert untimed(experiment(baseline, head=head, epochs=2).run(broken)) == untimed(whole)


def check_captured(baseline, directory) -> None:
    """On a GPU, captured steps have the same losses as others, up to rounding."""
    found = []
    for cuda_graph in (False, True):
        made = experiment(baseline, device="cuda", cuda_graph=cuda_graph)
        events = []
        made.run(directory / f"{cuda_graph}", on_event=events.append)
        epochs = [event for event in events if isinstance(event, EpochEnded)]
        found.append([(event.loss, event.penalised_loss) for event in epochs])
    plain, captured = torch.tensor(found)
    assert torch.allclose(plain, captured, rtol=0.05, atol=1e-3)


def labelled(name: str, *, network: str = "mlp", num: int = 96, seed: int = 0) -> Task:
    """Which of the first three inputs is largest, for a network of networks.py."""
    x = example(network, num=num, seed=seed)
    return Task(name, (x, x.flatten(1)[:, :3].argmax(1)), num_outputs=3)


def method_of(baseline, network: str, *, head: str, device: str, state=None) -> DenseMethod:
    """Return the method with that network, outside of a run, or restored from a state."""
    torch.manual_seed(0)
    setting = Setting(
        NETWORKS[network][0]().to(device),
        example(network).to(device),
        (),
        LearnerConfig(),
        head=head,
        classifier=None,
        seed=0,
        on_event=lambda event: None,
        on_progress=lambda: None,
    )
    return DenseMethod(baseline, setting, state)

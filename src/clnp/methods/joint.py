"""Joint training: all tasks at the same time.

    theta = argmin sum over tasks of L_t(theta), with a part of every batch for each task

It is the reference for continual learning, because it needs all data at once. As in the appendix of
the paper, a batch has a fixed number of samples of each task, an epoch ends when the smallest task
has no samples left, and with a single head the last hidden layer is cut into equal parts, one for
the outputs of each task.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from clnp.checks import COUNT, optional, settle
from clnp.core.layers.initialisation import initialisation, initialise
from clnp.core.layers.ledger import OpenTask
from clnp.core.record import OpenState
from clnp.core.structure.kinds import known_kind, plain_layer
from clnp.core.structure.surgery import with_layers
from clnp.errors import ArgumentError
from clnp.records import NetworkRecord, TaskRecord
from clnp.training.batches import RESIDENT_BYTES, Batches
from clnp.training.config import Training
from clnp.training.fit import StepRule
from clnp.training.objective import objective_named
from clnp.training.optimizer import check_optimizers
from clnp.training.rng import derive, isolated, seed_all
from clnp.training.search import LEARNING_RATE, Space
from clnp.training.task import Task

from .method import Setting, State, num_bytes
from .runner import WholeNetwork


@dataclass(frozen=True)
class Joint:
    """Joint training: every batch has samples of all tasks.

    Args:
        first: The number of samples of the first task in a batch.
        others: The number of samples of each other task. By default, tasks share a batch evenly.
        training: The settings of training, if they differ from those of the experiment.

    Example:
        >>> clnp.Experiment(model, x, tasks, baseline=clnp.methods.Joint(first=50, others=10))
    """

    first: int | None = None
    """Samples of the first task in a batch. The appendix of the paper has 50."""
    others: int | None = None
    """Samples of each other task, 10 in the appendix. By default, tasks share a batch evenly."""
    training: Training | None = None
    """The settings of training: `learner.training`, with the keys that a recipe changes here."""

    space: ClassVar[Space] = LEARNING_RATE

    def __post_init__(self) -> None:
        settle(self, {"first": optional(COUNT), "others": optional(COUNT)}, where="joint")

    def counts(self, num_tasks: int, batch_size: int) -> list[int]:
        """Return the number of samples of each task in a batch."""
        share = max(batch_size // num_tasks, 1)
        return [self.first or share, *[self.others or share] * (num_tasks - 1)]


class Mixed:
    """The data of several tasks in batches with a fixed number of samples of each.

    It has the interface of `Batches`. A task with fewer samples than that gives all of them. The
    task with the fewest batches sets the length of an epoch. Every epoch has a new random order.
    """

    def __init__(self, parts: Sequence[Batches], counts: Sequence[int]) -> None:
        sizes = [len(part) for part in parts]
        self.parts, self.counts = _prepared(parts), list(map(min, counts, sizes))
        self.device = parts[0].device
        self.num_steps = min(size // count for size, count in zip(sizes, self.counts, strict=True))
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        self.starts = torch.tensor(starts, device=self.device)
        inputs, targets = zip(*(_resident(part) for part in self.parts), strict=True)
        self.inputs: Tensor | None = torch.cat(inputs)
        self.targets = torch.cat(targets)

    def __len__(self) -> int:
        """Return the number of samples of an epoch."""
        return self.num_steps * sum(self.counts)

    def indices(self, size: int, *, seed: int) -> Iterator[Tensor]:
        """Yield the indices of the samples of each batch, ordered by task."""
        orders = []
        for number, (part, count) in enumerate(zip(self.parts, self.counts, strict=True)):
            generator = torch.Generator().manual_seed(derive(seed, "part", number))
            order = torch.randperm(len(part), generator=generator, device="cpu")
            order = order[: self.num_steps * count]
            orders.append(order.to(self.device).view(self.num_steps, count) + self.starts[number])
        yield from torch.cat(orders, 1)

    def batches(self, size: int, *, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of each batch."""
        for indices in self.indices(size, seed=seed):
            yield self.at(indices)

    def at(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of these samples, prepared task by task."""
        assert self.inputs is not None
        if not any(part.prepare for part in self.parts):
            return self.inputs[indices], self.targets[indices]
        chosen = torch.split(self.inputs[indices], self.counts)
        ready = [own.ready(part) for part, own in zip(chosen, self.parts, strict=True)]
        return torch.cat(ready), self.targets[indices]


def _prepared(parts: Sequence[Batches]) -> Sequence[Batches]:
    """Return the data prepared in advance, if that is possible for all tasks and fits in memory."""
    ready = [part.prepared() for part in parts]
    sizes = [part.inputs.nbytes for part in ready if part.inputs is not None]
    can = not any(part.prepare for part in ready) and sum(sizes) <= RESIDENT_BYTES
    return ready if can else parts


def _resident(part: Batches) -> tuple[Tensor, Tensor]:
    if part.inputs is None or part.targets is None:
        raise ArgumentError(
            "joint training needs all data on the device, but it is streamed. Set resident=True."
        )
    return part.inputs, part.targets


class JointHeads(nn.Module):
    """A classifier with a layer for each task, which reads all or a part of the input.

    In training, a batch has samples of all tasks; in evaluation, those of the task `current`.
    """

    def __init__(
        self, like: Any, num_outputs: Sequence[int], counts: list[int], *, cut: bool
    ) -> None:
        super().__init__()
        self.counts, self.current, self.cut = counts, 0, cut
        self.dim = known_kind(like).neuron_dim
        num_inputs = int(like.weight.shape[1])
        self.size = num_inputs // len(counts) if cut else num_inputs
        if not self.size:
            raise ArgumentError(
                f"joint: the last layer has {num_inputs} inputs, too few for {len(counts)} tasks. "
                "Widen the layer before it."
            )
        self.layers = nn.ModuleList(
            plain_layer(like, num_outputs=count, num_inputs=self.size) for count in num_outputs
        )

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self._head(x, self.current)
        parts = torch.split(x, self.counts)
        return torch.cat([self._head(part, number) for number, part in enumerate(parts)])

    def _head(self, x: Tensor, number: int) -> Tensor:
        if self.cut:
            x = x.narrow(self.dim, number * self.size, self.size)
        outputs: Tensor = self.layers[number](x)
        return outputs


class JointNet(nn.Module):
    """A copy of the model that learns all tasks at once."""

    def __init__(self, model: nn.Module, classifier: str, heads: JointHeads) -> None:
        super().__init__()
        self.heads = heads
        self.model = with_layers(model, {classifier: heads}).requires_grad_(True)
        self.open_task: str | None = "all tasks"

    def forward(self, inputs: Tensor) -> Any:
        return self.model(inputs)

    def open_state(self) -> OpenState:
        """Return a copy of the whole network."""
        tensors = {name: t.detach().clone() for name, t in self.model.state_dict().items()}
        return OpenState(OpenTask("all tasks", 0), {}, {}, tensors)

    def set_open_state(self, state: OpenState) -> None:
        """Restore a copy of the network."""
        self.model.load_state_dict(dict(state.tensors))


@dataclass(frozen=True)
class Validation:
    """The validation data of all tasks, which sets the task of the network."""

    net: JointNet
    parts: Sequence[Batches]

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one task after another."""
        for number, part in enumerate(self.parts):
            self.net.heads.current = number
            yield from part.batches(size)


class JointMethod(WholeNetwork):
    """Learns nothing until the last task, then all tasks."""

    def __init__(self, settings: Joint, setting: Setting, state: State | None) -> None:
        super().__init__(settings, setting)
        self.counts = settings.counts(len(setting.tasks), self.training.batch_size)
        self.finished = False
        like: Any = setting.model.get_submodule(self.graph.classifier)
        self.num_outputs = self._num_outputs() if state is None else list(state["num_outputs"])
        if len(set(self.num_outputs)) > 1:
            raise ArgumentError(
                f"joint: the tasks have different numbers of outputs, {self.num_outputs}. Give all "
                "tasks the same `num_outputs`."
            )
        objectives = [objective_named(task.objective) for task in setting.tasks]
        if any(objective != objectives[0] for objective in objectives):
            # One score over all tasks selects the best epoch.
            raise ArgumentError(
                "joint: the tasks have different objectives, "
                f"{[objective.name for objective in objectives]}. Give all tasks the same one."
            )
        heads = JointHeads(like, self.num_outputs, self.counts, cut=setting.head == "single")
        self.net: JointNet = JointNet(setting.model, self.graph.classifier, heads)
        if state is not None:
            self.finished = state["finished"]
            self.resumed = state["progress"]
            self.net.model.load_state_dict(state["net"])

    def _num_outputs(self) -> list[int]:
        """Return the number of outputs of every task, from its data if it is not given."""
        setting = self.setting
        device = next(setting.model.parameters()).device
        with isolated(device):
            return [t.num_outputs or setting.load(t, device).num_outputs for t in setting.tasks]

    def check(self, task: Task) -> None:
        """Raise an `ArgumentError` if the optimizer cannot be used."""
        check_optimizers([self.training], self.net.model)

    def num_candidates(self, task: str) -> int:
        """Return the number of candidates: one with the last task, none before."""
        return 1 if task == self.setting.tasks[-1].name else 0

    def epochs_before(self, number: int) -> int:
        """Return all epochs once all tasks are included, none before."""
        return self.training.epochs if number == len(self.setting.tasks) else 0

    def answers(self, task: str) -> bool:
        """Whether the last task, and so every task, has ended."""
        return self.finished

    def learn(self, task: Task) -> TaskRecord:
        """Learn all tasks if this is the last one, otherwise do nothing."""
        if task.name != self.setting.tasks[-1].name:
            return self.ended(task, None, best=None, num_epochs=0)
        with isolated(self.device):
            best, num_epochs = self._learn_all()
            self.finished = True
            data = self.setting.load(task, self.device)
            return self.ended(task, data, best=best, num_epochs=num_epochs)

    def _learn_all(self) -> tuple[float, int]:
        """Train on all tasks; return the score over all of them and the number of epochs."""
        setting = self.setting
        data = [self.setting.load(task, self.device) for task in setting.tasks]
        if self.resumed is None:
            seed_all(derive(setting.seed, "init", "joint"))
            for module in self.net.model.modules():
                initialise(module, initialisation(self.training.initialisation))
        mixed: Any = Mixed([each.train for each in data], self.counts)
        self.net.heads.counts = mixed.counts
        training = replace(self.training, batch_size=sum(mixed.counts))
        validation: Any = Validation(self.net, [each.validation for each in data])
        together = replace(data[-1], train=mixed, validation=validation)
        seed = derive(setting.seed, "candidate", "joint")
        return self.train(together, training, seed=seed, rule=StepRule())

    def predict(self, inputs: Tensor, task: str) -> Any:
        return self.run(inputs, [each.name for each in self.setting.tasks].index(task))

    def figures(self) -> NetworkRecord:
        total = num_bytes(self.net.model.state_dict())
        heads = 0 if self.net.heads.cut else num_bytes(list(self.net.heads.parameters()))
        return NetworkRecord(stored_bytes={"network": total - heads, "heads": heads})

    def state(self) -> State:
        """Return all state; `progress` is None unless training is interrupted."""
        return {
            "progress": self.progress(),
            "finished": self.finished,
            "num_outputs": self.num_outputs,
            "net": dict(self.net.model.state_dict()),
        }

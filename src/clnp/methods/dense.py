"""A network that trains all of its weights, with a head for each task or a shared one."""

from collections.abc import Iterator
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from clnp.core.layers.initialisation import Initialise, initialise
from clnp.core.layers.ledger import OpenTask
from clnp.core.record import OpenState
from clnp.core.structure.graph import Graph
from clnp.core.structure.kinds import known_kind, plain_layer
from clnp.core.structure.surgery import with_layers


class Heads(nn.Module):
    """A classifier with a layer for each task, of which the current one runs."""

    def __init__(self, like: Any, *, shared: bool, initialise: Initialise | None = None) -> None:
        super().__init__()
        self.shared, self.current = shared, 0
        self._initialise = initialise
        self.num_inputs = int(like.weight.shape[1])
        self.num_outputs: list[int] = []
        self.layers = nn.ModuleList()
        # In a tuple, it is not a submodule.
        self._like = (like,)

    def add(self, num_outputs: int) -> None:
        """Add the head of a new task; a shared head is not initialised again."""
        self.num_outputs.append(num_outputs)
        if self.shared and len(self.layers):
            return
        like: Any = self._like[0]
        size = int(like.weight.shape[0]) if self.shared else num_outputs
        made = plain_layer(like, num_outputs=size, num_inputs=self.num_inputs)
        initialise(made, self._initialise)
        self.layers.append(made.train(self.training))

    def reset(self, index: int) -> None:
        """Initialise the head of the task at that index."""
        initialise(self.layers[0 if self.shared else index], self._initialise)

    def own(self) -> list[nn.Parameter]:
        """Return the weights that are not shared by the tasks."""
        return [] if self.shared else list(self.parameters())

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layers[0 if self.shared else self.current](x)
        dim = known_kind(self._like[0]).neuron_dim
        return outputs.narrow(dim, 0, self.num_outputs[self.current])


class DenseState(TypedDict):
    """A `DenseNet` as plain data and tensors, for a checkpoint."""

    tasks: list[str]
    open_task: str | None
    num_outputs: list[int]
    tensors: dict[str, Tensor]
    extra: dict[str, Tensor]


class DenseNet(nn.Module):
    """A copy of `model` that learns one task after the other with all of its weights.

    The network itself does not prevent forgetting; a `Strategy` does. `heads.current` is the index
    of the task that it predicts for. `extra` has Parameters that the open task trains besides the
    weights. `graph` says which layers share neurons, if it is known. `initialise` is applied to
    layers after their class has initialised them.
    """

    def __init__(
        self,
        model: nn.Module,
        classifier: str,
        *,
        shared_head: bool,
        graph: Graph | None = None,
        initialise: Initialise | None = None,
    ) -> None:
        super().__init__()
        self.graph = graph
        self._initialise = initialise
        self.extra = nn.ParameterDict()
        self.heads = Heads(
            model.get_submodule(classifier), shared=shared_head, initialise=initialise
        )
        self.model = with_layers(model, {classifier: self.heads}).requires_grad_(True)
        self.tasks: list[str] = []
        self.open_task: str | None = None

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return next(self.model.parameters()).device

    def begin_task(self, name: str, num_outputs: int) -> None:
        """Open a task. Its training starts from the weights of the previous task.

        Args:
            name: The name of the task.
            num_outputs: The number of outputs of its head.
        """
        self.heads.add(num_outputs)
        self.heads.current = len(self.tasks)
        self.open_task = name

    def end_task(self) -> None:
        """End the open task."""
        assert self.open_task is not None
        self.tasks.append(self.open_task)
        self.open_task = None

    def reset(self) -> None:
        """Initialise all weights except those of heads."""
        heads = {self.heads, *self.heads.layers}
        for module in self.model.modules():
            if module not in heads:
                initialise(module, self._initialise)

    def trunk(self) -> dict[str, nn.Parameter]:
        """Return the weights that all tasks share, by name, including a shared head."""
        own = set(map(id, self.heads.own()))
        return {name: p for name, p in self.model.named_parameters() if id(p) not in own}

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Return what the open task trains: the trunk, its head, and parameters in `extra`."""
        yield from self.trunk().values()
        if not self.heads.shared:
            yield from self.heads.layers[self.heads.current].parameters()
        yield from self.extra.values()

    def forward(self, inputs: Tensor) -> Any:
        return self.model(inputs)

    def answer(self, inputs: Tensor, index: int) -> Any:
        """Return the outputs for the task at that index, in the present mode.

        Args:
            inputs: A batch for the model.
            index: The index of the task, from 0.
        """
        current, self.heads.current = self.heads.current, index
        try:
            return self(inputs)
        finally:
            self.heads.current = current

    def open_state(self) -> OpenState:
        """Return a copy of the whole network."""
        assert self.open_task is not None
        task = OpenTask(self.open_task, self.heads.num_outputs[self.heads.current])
        tensors = {name: t.detach().clone() for name, t in self.model.state_dict().items()}
        # No name of a module has a colon in it.
        extra = {f"extra:{name}": p.detach().clone() for name, p in self.extra.items()}
        return OpenState(task, {}, {}, {**tensors, **extra})

    def set_open_state(self, state: OpenState) -> None:
        """Restore a copy of the network."""
        tensors = dict(state.tensors)
        with torch.no_grad():
            for name, parameter in self.extra.items():
                parameter.copy_(tensors.pop(f"extra:{name}"))
        self.model.load_state_dict(tensors)

    def state(self) -> DenseState:
        """Return the network as plain data and tensors, for `restore`."""
        return {
            "tasks": self.tasks,
            "open_task": self.open_task,
            "num_outputs": self.heads.num_outputs,
            "tensors": dict(self.model.state_dict()),
            "extra": {name: parameter.detach() for name, parameter in self.extra.items()},
        }

    def restore(self, state: DenseState) -> None:
        """Restore a state in a new network."""
        for count in state["num_outputs"]:
            self.heads.add(count)
        self.tasks, self.open_task = list(state["tasks"]), state["open_task"]
        self.heads.current = len(state["num_outputs"]) - 1
        self.model.load_state_dict(state["tensors"])
        for name, tensor in state["extra"].items():
            self.extra[name] = nn.Parameter(tensor.to(self.device))

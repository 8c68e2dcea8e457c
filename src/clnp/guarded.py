"""What PyTorch may do to a network, and what it may not: the methods of every `nn.Module`."""

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from .body import Body
from .certificate import Certificate
from .checkpoint import Record, identity
from .errors import TaskError
from .graph import Graph
from .ledger import Ledger, OpenTask


class GuardedNet(nn.Module):
    """A module whose ended tasks outlive what is done to modules: converted, emptied, loaded."""

    graph: Graph
    head: str
    ledger: Ledger
    _body: Body
    _open: OpenTask | None
    _certificates: tuple[Certificate, ...]
    _described: Mapping[str, str]

    @property
    def tasks(self) -> tuple[str, ...]:
        """The ended tasks, in order."""
        return self.ledger.tasks

    @property
    def open_task(self) -> str | None:
        """The task that is being learnt."""
        return self._open.name if self._open else None

    def record(self) -> Record:
        """Everything about the network but its tensors and its model's code."""
        return Record(
            graph=self.graph,
            head=self.head,
            modules=self._described,
            ledger=self.ledger,
            certificates=self._certificates,
            num_outputs=self._body.head.outputs(len(self.ledger.rows)),
            open_task=self._open,
            open_free=dict(self._body.stage.free),
        )

    def get_extra_state(self) -> Tensor:
        """What a state dict must agree on to be loaded: ledger, open task, certificates."""
        return identity(self.record())

    def set_extra_state(self, state: Tensor) -> None:
        """Refuse the state dict of a network that has learnt something else."""
        if not torch.equal(state.cpu(), self.get_extra_state()):
            raise TaskError(
                "this state dict is of a network with another ledger: other tasks, widths or "
                "frozen weights. Use net.save(path) and ContinualNet.load(path, model)"
            )

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **options: Any) -> Any:
        """Load a state dict of this network; one that cannot prove to be of it is refused."""
        if self.ledger.rows and "_extra_state" not in state_dict:
            raise TaskError("this state dict does not say which tasks it is of; nothing was loaded")
        return super().load_state_dict(state_dict, *args, **options)

    def train(self, mode: bool = True) -> Self:
        """As for any module, but not in the middle of another thread's pass."""
        with self._body.lock:
            return super().train(mode)

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """Refused once a task has ended: it would leave nothing of it."""
        if self.ledger.rows:
            raise TaskError("to_empty would wipe the ended tasks; use net.to(device)")
        return super().to_empty(device=device, recurse=recurse)

    def extra_repr(self) -> str:
        """Head, tasks and free neurons in one line."""
        free = ", ".join(f"{g} {n}/{self.ledger.sizes[g]}" for g, n in self.ledger.free().items())
        return (
            f"head={self.head!r}, tasks={list(self.tasks)}, open={self.open_task!r}, free: {free}"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._body.stage.check_conversion(self._body.head.like, fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

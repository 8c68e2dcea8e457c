"""What PyTorch may do to a network, and what it may not: the methods of every `nn.Module`."""

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import torch
from torch import Tensor, nn

from .blocks import CHANGES
from .body import Body
from .certificate import Certificate, certify
from .checkpoint import Record, identity
from .description import Description
from .errors import TaskError
from .graph import Graph
from .ledger import Ledger, OpenTask

Net = TypeVar("Net", bound="GuardedNet")
Given = ParamSpec("Given")
Result = TypeVar("Result")


def in_turn(
    method: Callable[Concatenate[Net, Given], Result],
) -> Callable[Concatenate[Net, Given], Result]:
    """A method that waits for what other threads do to the network, and they for it."""

    @wraps(method)
    def run(net: Net, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        with net._body.lock:
            return method(net, *args, **kwargs)

    return run


class GuardedNet(nn.Module):
    """A module whose ended tasks outlive what is done to modules: converted, emptied, loaded."""

    graph: Graph
    head: str
    ledger: Ledger
    _body: Body
    _open: OpenTask | None
    _certificates: tuple[Certificate, ...]
    _description: Description

    @property
    def tasks(self) -> tuple[str, ...]:
        """The ended tasks, in order."""
        return self.ledger.tasks

    @property
    def open_task(self) -> str | None:
        """The task that is being learnt."""
        return self._open.name if self._open else None

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self._body.head.like.device

    @property
    def certificates(self) -> dict[str, Certificate]:
        """What each ended task read when it ended, hashed."""
        return {certificate.task: certificate for certificate in self._certificates}

    @in_turn
    def verify(self) -> None:
        """Recompute every certificate; a `ForgettingError` names task and tensor that changed."""
        for certificate in self._certificates:
            certificate.check(self._certify(certificate.task))

    def _certify(self, task: str) -> Certificate:
        reads = self._body.reads(self.ledger.index(task), *self.ledger.widths(task))
        return certify(self.ledger.row(task), reads)

    def record(self) -> Record:
        """Everything about the network but its tensors and its model's code."""
        return Record(
            graph=self.graph,
            head=self.head,
            description=self._description,
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

    @in_turn
    def state_dict(self, *args: Any, **options: Any) -> Any:
        """As for any module; it can be loaded into the same network in the same state only."""
        return super().state_dict(*args, **options)

    @in_turn
    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state dict of this network; one that cannot prove to be of it is refused."""
        if self.ledger.rows and "_extra_state" not in state_dict:
            raise TaskError("this state dict does not say which tasks it is of; nothing was loaded")
        if "_extra_state" in state_dict:
            self.set_extra_state(state_dict["_extra_state"])
        for name in self._body.changed_by(state_dict, "model."):
            raise TaskError(f"{CHANGES.format(name)}. Nothing was loaded")
        if assign:
            for name, tensor in self.state_dict().items():
                given = state_dict.get(name, tensor)
                self._body.stage.check_dtype(tensor.dtype, given.dtype)
        return super().load_state_dict(state_dict, strict, assign)

    def named_parameters(self, *args: Any, **options: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """What the open task trains, by name; nothing between tasks."""
        found = super().named_parameters(*args, **options)
        return (each for each in found if each[1] is not self._body.head.like)

    @in_turn
    def train(self, mode: bool = True) -> Self:
        """As for any module, but not in the middle of another thread's pass."""
        return super().train(mode)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, *args: Any
    ) -> None:
        *_, errors = args
        for name in self._body.changed_constants(state_dict, f"{prefix}model."):
            errors.append(CHANGES.format(name))
            state_dict[name] = self._body.constant(name.removeprefix(f"{prefix}model."))
        super()._load_from_state_dict(state_dict, prefix, metadata, *args)

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

"""The open task taken out of a network, to be put back later: its weights and what it is."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from .ledger import OpenTask


@dataclass(frozen=True)
class OpenState:
    """A copy of an open task: who it is, how many neurons of each group it has, its tensors.

    `frozen` are the neurons of earlier tasks, by group, which it reads.
    """

    task: OpenTask
    free: Mapping[str, int]
    frozen: Mapping[str, int]
    tensors: Mapping[str, Tensor] = field(repr=False)

    def to_state(self) -> dict[str, Any]:
        """Plain dictionaries and tensors that `from_state` reads back."""
        return {
            "task": asdict(self.task),
            "free": dict(self.free),
            "frozen": dict(self.frozen),
            "tensors": dict(self.tensors),
        }

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> "OpenState":
        """The copy that `to_state` described."""
        return OpenState(**{**state, "task": OpenTask(**state["task"])})

"""Statistics of BatchNorm, kept for each task: no method that protects weights protects them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ..surgery import NORMS


class TaskStatistics:
    """The running means and variances with which each learnt task is answered.

    The open task has those in the model, which begin anew with it. Without a model there are none.
    """

    def __init__(self, model: nn.Module | None) -> None:
        modules = {} if model is None else dict(model.named_modules())
        self._norms = {path: m for path, m in modules.items() if isinstance(m, NORMS)}
        self.learnt: list[dict[str, Tensor]] = []

    def begin(self) -> None:
        """Forget those of the task before, which are kept."""
        for norm in self._norms.values():
            norm.reset_running_stats()

    def end(self) -> None:
        """Keep those of the open task."""
        self.learnt.append({name: tensor.clone() for name, tensor in self._shown().items()})

    @contextmanager
    def running(self, index: int) -> Iterator[None]:
        """The model with those of the task of that number."""
        if index == len(self.learnt):
            yield
            return
        before = self._shown()
        self._show(self.learnt[index])
        try:
            yield
        finally:
            self._show(before)

    def _shown(self) -> dict[str, Tensor]:
        found = {
            f"{path}.{name}": getattr(norm, name)
            for path, norm in self._norms.items()
            for name in ("running_mean", "running_var")
        }
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def _show(self, statistics: Mapping[str, Tensor]) -> None:
        for name, tensor in statistics.items():
            path, _, buffer = name.rpartition(".")
            setattr(self._norms[path], buffer, tensor)

    def restore(self, learnt: Any, *, device: Any) -> None:
        """Remember what was `learnt` before."""
        self.learnt = [{name: t.to(device) for name, t in each.items()} for each in learnt]

    @property
    def num_bytes(self) -> int:
        """What is stored beside the network, which has those of one task."""
        return sum(tensor.nbytes for each in self.learnt[1:] for tensor in each.values())

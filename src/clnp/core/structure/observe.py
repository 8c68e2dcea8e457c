"""A forward pass, observed: an observer sees and runs every operation and every layer call."""

import os
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from clnp.errors import Problem

from .declared import ROOT
from .rules import METADATA, SIZES, operation_name

_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_CHECKPOINT = os.path.join(_TORCH, "utils", "checkpoint.py")


@dataclass(frozen=True)
class Moment:
    """One operation or layer call that is about to happen: its name, its module and its code."""

    name: str
    path: str
    source: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    is_layer: bool = False

    def run(self) -> Any:
        """What the operation or the layer returns."""
        return self.func(*self.args, **self.kwargs)

    def problem(self, found: str, remedy: str) -> Problem:
        """A problem that is found here."""
        named = [self.name] if f"'{self.name}'" not in found and not self.is_layer else []
        seen = ", ".join([*named, *([self.source] if self.source else [])])
        return Problem(self.path or ROOT, f"{found} ({seen})" if seen else found, remedy)


class Observer(Protocol):
    """Sees everything that happens in a forward pass, and runs it."""

    def on_operation(self, moment: Moment) -> Any:
        """The result of an operation."""

    def on_layer(self, moment: Moment, layer: nn.Module) -> Any:
        """The result of calling a layer that is observed from outside only."""


class _Observation(TorchFunctionMode):
    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self.observer = observer
        self.stack: list[str] = []
        self.inside = 0
        self.num_operations = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.inside:
            return func(*args, **kwargs)
        name = operation_name(func)
        weight = args[0] if args and isinstance(args[0], nn.Parameter) else None
        if name in METADATA and (weight is None or name not in SIZES):
            return func(*args, **kwargs)
        # Widths change how many random numbers are drawn; the path that a forward pass takes by
        # them must not change. So every operation starts from a seed of its own.
        self.num_operations += 1
        torch.default_generator.manual_seed(self.num_operations)
        path = self.stack[-1] if self.stack else ""
        return self.observer.on_operation(Moment(name, path, _source(), func, args, kwargs))

    def wrap(self, path: str, module: nn.Module, *, opaque: bool) -> Callable[..., Any]:
        forward = module.forward

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.stack.append(path)
            sealed = opaque or self.inside > 0
            self.inside += sealed
            try:
                if self.inside != 1:
                    return forward(*args, **kwargs)
                kind = type(module).__name__
                moment = Moment(kind, path, "", forward, args, kwargs, is_layer=True)
                return self.observer.on_layer(moment, module)
            finally:
                self.inside -= sealed
                self.stack.pop()

        return wrapped


def observe(
    model: nn.Module,
    inputs: tuple[tuple[Any, ...], Mapping[str, Any]],
    *,
    observer: Observer,
    opaque: Collection[str],
    with_grad: bool = False,
) -> Any:
    """What the model returns; layers at the paths `opaque` are observed from outside only.

    Instead of hooks, which a direct call of `forward` passes by, `forward` itself is wrapped.
    """
    observation = _Observation(observer)
    wrapped = []
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        own = module.__dict__.get("forward")
        wrapped.append((module, own))
        module.__dict__["forward"] = observation.wrap(path, module, opaque=path in opaque)
    args, kwargs = inputs
    try:
        with torch.set_grad_enabled(with_grad), observation:
            return model(*args, **kwargs)
    finally:
        for module, own in wrapped:
            if own is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = own


def in_checkpoint() -> bool:
    """Whether torch.utils.checkpoint called what now runs in the observed pass."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not observe.__code__:
        if frame.f_code.co_filename == _CHECKPOINT:
            return True
        frame = frame.f_back
    return False


def failure_of(error: Exception) -> str:
    """What went wrong, and in which line of the model's code."""
    first = (str(error).splitlines() or ["no message"])[0]
    frames = [
        f"{Path(frame.filename).name}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_TORCH, "<", str(Path(__file__).parents[2])))
    ]
    at = f" ({frames[-1]})" if frames else ""
    return f"{type(error).__name__}: {first}{at}"


def _source() -> str:
    """File and line of the model's code that is running; empty inside PyTorch's own modules."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if name == __file__:
            return ""
        if not name.startswith((_TORCH, "<")):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""

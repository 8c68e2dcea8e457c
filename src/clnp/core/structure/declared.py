"""Validate a model without running it: the layers that it has, and what rules them out."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from clnp.errors import Problem

from .inputs import tensors_in
from .kinds import Fault, Kind, kind_of, refusal_of

ROOT = "(model)"
"""The name of the model itself in messages; its dotted path is empty."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


@dataclass(frozen=True)
class Validation:
    """The layers of a model that can be followed, those that cannot, and the problems found.

    `layers` and `refused` are observed from outside only.
    """

    layers: tuple[str, ...]
    refused: tuple[str, ...]
    problems: tuple[Problem, ...]


def validate(model: nn.Module) -> Validation:
    """Check every module of a model by its class, tensors and attributes."""
    layers: list[str] = []
    refused: list[str] = []
    problems: list[Problem] = []
    owners: dict[int, str] = {}
    registered = {id(each) for each in (*model.parameters(), *model.modules())}
    for path, module in model.named_modules():
        if any(path.startswith(f"{outer}.") or outer == "" for outer in refused):
            continue
        faults = list(_faults(module))
        is_layer = kind_of(module) is not None
        if faults and (is_layer or _is_leaf(module)):
            refused.append(path)
        elif is_layer:
            layers.append(path)
        # A layer that is refused for its weights may keep what it makes of them.
        for name, tensors in held_tensors(module).items() if path not in refused else ():
            if not registered.issuperset(map(id, tensors)):
                faults.append(
                    _held_fault("tensors", name, "Register each with self.register_buffer")
                )
        for name, modules in _held_modules(module).items():
            if any(each.state_dict() for each in modules if id(each) not in registered):
                remedy = "Use nn.ModuleList or nn.ModuleDict"
                faults.append(_held_fault("modules with weights", name, remedy))
        for name, parameter in module.named_parameters(recurse=False):
            other = owners.setdefault(id(parameter), path)
            if other != path:
                found = f"shares its {name} with {other or ROOT!r}"
                faults.append((found, "Give each layer its own weights"))
        name_of_class = type(module).__name__
        problems += [Problem(path or ROOT, f"{name_of_class} {found}", do) for found, do in faults]
    return Validation(tuple(layers), tuple(refused), tuple(problems))


def held_tensors(module: nn.Module) -> dict[str, list[torch.Tensor]]:
    """Return the tensors in the module's plain attributes, or in containers there, by name."""
    own = {name: value for name, value in vars(module).items() if name not in _OF_EVERY_MODULE}
    kinds = (torch.Tensor, list, tuple, dict, set)
    held = {name: tensors_in(value) for name, value in own.items() if isinstance(value, kinds)}
    return {name: tensors for name, tensors in held.items() if tensors}


def _held_modules(module: nn.Module) -> dict[str, list[nn.Module]]:
    """Return the modules in containers among the module's plain attributes, by name."""
    held = {}
    for name, value in vars(module).items():
        if name not in _OF_EVERY_MODULE and isinstance(value, (list, tuple, dict, set)):
            items = value.values() if isinstance(value, dict) else value
            held[name] = [item for item in items if isinstance(item, nn.Module)]
    return held


def takes_task(model: nn.Module) -> bool:
    """Whether forward has an argument named `task`, which a network keeps for itself."""
    try:
        argument = inspect.signature(model.forward).parameters.get("task")
    except (TypeError, ValueError):
        return False
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return argument is not None and argument.kind in named


def _held_fault(what: str, name: str, remedy: str) -> Fault:
    where = f"the plain attribute {name!r}, where they would be neither moved, saved nor certified"
    return f"holds {what} in {where}", remedy


def _is_leaf(module: nn.Module) -> bool:
    """Whether the module is refused as a whole, together with the modules in it."""
    ours = type(module).__module__.startswith("torch.")
    plain_container = isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict))
    return (ours and not plain_container) or not any(module.children())


def _faults(module: nn.Module) -> Iterator[Fault]:
    """Yield the reasons to refuse the module for its class."""
    if isinstance(module, torch.jit.ScriptModule):
        yield "is TorchScript, which cannot be followed", "Use the Python module it was made from"
    elif type(module).__name__ == "OptimizedModule":
        yield "is a compiled model", "Give the model itself and compile afterwards"
    elif any(map(is_lazy, module.parameters(recurse=False))):
        yield "is lazy and not initialised", "Run the model once on an example before"
    elif parametrize.is_parametrized(module):
        names = ", ".join(module.parametrizations.keys())  # type: ignore[union-attr,operator]
        yield (
            f"has a parametrization on {names}",
            "Remove it with torch.nn.utils.parametrize.remove_parametrizations",
        )
    elif kind := kind_of(module):
        yield from _layer_faults(module, kind)
    elif fault := refusal_of(module):
        yield fault


def _layer_faults(layer: nn.Module, kind: Kind) -> Iterator[Fault]:
    slots = {slot.name for slot in kind.slots}
    extra = {name for name, _ in layer.named_parameters(recurse=False)} - slots
    if extra:
        yield (
            f"computes its weight from {', '.join(sorted(extra))} (weight_norm, spectral_norm or "
            "pruning)",
            "Remove that first, with torch.nn.utils.remove_weight_norm and the like",
        )
    elif any(getattr(layer, name, None) for name in _HOOKS):
        yield "has hooks, which a sliced layer would not run", "Remove the hooks first"
    known = kind.layer_class
    for name in ("forward", "_conv_forward", "__call__"):
        overrides = getattr(type(layer), name, None) is not getattr(known, name, None)
        if overrides or name in vars(layer):
            yield (
                f"is a {known.__name__} with its own {name}",
                f"Use {known.__name__} itself and compute the rest around it, or register a kind "
                f"of layer for {type(layer).__name__}",
            )
            return
    if fault := kind.fault(layer):
        yield fault

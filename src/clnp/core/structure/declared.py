"""What can be told about a model without running it: the layers it has and what rules them out."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from clnp.errors import Problem

from .inputs import tensors_in
from .kinds import kind_of, known_kind

ROOT = "(model)"
"""How messages call the model itself, whose dotted path is empty."""
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


@dataclass(frozen=True)
class Validation:
    """The layers of a model that can be followed, those that cannot, and the problems they are.

    `layers` and `refused` are observed from outside only: nobody looks into their forward.
    """

    layers: tuple[str, ...]
    refused: tuple[str, ...]
    problems: tuple[Problem, ...]
    runnable: bool = True


def validate(model: nn.Module) -> Validation:
    """What can be told about the model without running it."""
    layers: list[str] = []
    refused: list[str] = []
    problems: list[Problem] = []
    runnable = True
    owners: dict[int, str] = {}
    parameters = {id(parameter) for parameter in model.parameters()}
    registered = set(model.modules())
    for path, module in model.named_modules():
        if any(path.startswith(f"{outer}.") or outer == "" for outer in refused):
            continue
        where = path or ROOT
        if any(is_lazy(p) for p in module.parameters(recurse=False)):
            runnable = False
        found = [Problem(where, f"{_kind(module)} {what}", do) for what, do in _faults(module)]
        problems.extend(found)
        if found and (kind_of(module) is not None or _is_leaf(module)):
            refused.append(path)
        elif kind_of(module) is not None:
            layers.append(path)
        for name, tensors in held_tensors(module).items():
            # A layer that is refused for its weights may keep what it makes of them.
            if path not in refused and any(id(tensor) not in parameters for tensor in tensors):
                problems.append(_held_problem(module, where, name))
        for name, held in vars(module).items():
            items = list(held.values()) if type(held) is dict else held
            if name not in _OF_EVERY_MODULE and isinstance(items, (list, tuple, set)):
                strangers = {m for m in items if isinstance(m, nn.Module)} - registered
                if any(m.state_dict() for m in strangers):
                    problems.append(_stranger_problem(module, where, name))
        for name, parameter in module.named_parameters(recurse=False):
            other = owners.setdefault(id(parameter), where)
            if other != where:
                problems.append(
                    Problem(
                        where,
                        f"{_kind(module)} shares its {name} with {other!r}",
                        "Give each layer weights of its own",
                    )
                )
    return Validation(tuple(layers), tuple(refused), tuple(problems), runnable)


def held_tensors(module: nn.Module) -> dict[str, list[torch.Tensor]]:
    """The tensors that the module holds as plain attributes, or in containers there, by name."""
    held = {
        name: tensors_in(value)
        for name, value in vars(module).items()
        if name not in _OF_EVERY_MODULE
        and isinstance(value, (torch.Tensor, list, tuple, dict, set))
    }
    return {name: tensors for name, tensors in held.items() if tensors}


def takes_task(model: nn.Module) -> bool:
    """Whether forward has an argument of the name that a network keeps for itself, `task`."""
    try:
        argument = inspect.signature(model.forward).parameters.get("task")
    except (TypeError, ValueError):
        return False
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return argument is not None and argument.kind in named


def _held_problem(module: nn.Module, where: str, name: str) -> Problem:
    if isinstance(vars(module)[name], torch.Tensor):
        held = f"the tensor {name!r} as a plain attribute"
        remedy = f"Use self.register_buffer({name!r}, ...)"
    else:
        held = f"tensors in {name!r}, a plain {type(vars(module)[name]).__name__}"
        remedy = "Use self.register_buffer for each of them"
    found = f"{_kind(module)} holds {held}, which would be neither moved, saved nor certified"
    return Problem(where, found, remedy)


def _stranger_problem(module: nn.Module, where: str, name: str) -> Problem:
    container = type(vars(module)[name]).__name__
    return Problem(
        where,
        f"{_kind(module)} holds modules with weights in {name!r}, a plain {container}, where they "
        "would be neither moved, saved nor certified",
        "Use nn.ModuleList or nn.ModuleDict",
    )


def _kind(module: nn.Module) -> str:
    return type(module).__name__


def _is_leaf(module: nn.Module) -> bool:
    """Whether the module is refused as a whole, rather than for what it holds beside others."""
    ours = type(module).__module__.startswith("torch.")
    plain_container = isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict))
    return (ours and not plain_container) or not any(module.children())


def _faults(module: nn.Module) -> Iterator[tuple[str, str]]:
    """What rules the module out, and what to do about it."""
    if isinstance(module, torch.jit.ScriptModule):
        yield "is TorchScript, which cannot be followed", "Use the Python module it was made from"
    elif _kind(module) == "OptimizedModule":
        yield "is a compiled model", "Give the model itself and compile afterwards"
    elif parametrize.is_parametrized(module):
        names = ", ".join(module.parametrizations.keys())  # type: ignore[union-attr,operator]
        yield (
            f"has a parametrization on {names}",
            "Remove it with torch.nn.utils.parametrize.remove_parametrizations",
        )
    elif kind_of(module) is not None:
        yield from _layer_faults(module)
    elif any(True for _ in module.parameters(recurse=False)):
        yield _weights_fault(module)
    elif isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
        yield "keeps statistics that cannot be sliced by neuron", "Use BatchNorm instead"


def _layer_faults(layer: nn.Module) -> Iterator[tuple[str, str]]:
    kind = known_kind(layer)
    if any(is_lazy(p) for p in layer.parameters(recurse=False)):
        yield "is lazy and not initialised", "Run the model once on an example before"
        return
    extra = {name for name, _ in layer.named_parameters(recurse=False)} - {"weight", "bias"}
    if extra:
        yield (
            f"computes its weight from {', '.join(sorted(extra))} (weight_norm, spectral_norm or "
            "pruning)",
            "Remove that first, with torch.nn.utils.remove_weight_norm and the like",
        )
    elif any(getattr(layer, name, None) for name in _HOOKS):
        yield "has hooks, which a sliced layer would not run", "Remove the hooks first"
    own = [name for name in ("forward", "_conv_forward", "__call__") if _overrides(layer, name)]
    if own:
        yield (
            f"is a {kind.layer_class.__name__} with a {own[0]} of its own",
            f"Use torch.nn.{kind.layer_class.__name__}, and compute the rest around it",
        )
    elif fault := kind.fault(layer):
        yield fault


def _overrides(layer: nn.Module, name: str) -> bool:
    kind = known_kind(layer).layer_class
    if name in layer.__dict__:
        return True
    return getattr(type(layer), name, None) is not getattr(kind, name, None)


def _weights_fault(module: nn.Module) -> tuple[str, str]:
    names = ", ".join(name for name, _ in module.named_parameters(recurse=False))
    if isinstance(module, nn.SyncBatchNorm):
        return "is not supported", "Use nn.BatchNorm1d, nn.BatchNorm2d or nn.BatchNorm3d"
    if isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)):
        return (
            "normalises over several neurons at once, which mixes them without weights",
            "Use BatchNorm, or no normalisation",
        )
    if isinstance(module, nn.modules.batchnorm._NormBase):
        return "has a scale for each channel that cannot be sliced", "Use affine=False or BatchNorm"
    if isinstance(module, nn.MultiheadAttention):
        return "is attention, which mixes neurons by their values", "Use Linear or convolutions"
    if isinstance(module, _RECURRENT):
        return "is recurrent: its weights are used at every step", "Use convolutions over time"
    if type(module).__module__.startswith("torch.nn."):
        return (
            f"has weights ({names}) that cannot be sliced by neuron",
            "Use Linear, Conv1d/2d/3d, BatchNorm1d/2d/3d or PReLU",
        )
    return (
        f"owns weights ({names}) outside a layer",
        "Put them into a Linear, convolution, BatchNorm or PReLU; what is not trained into a "
        "buffer",
    )

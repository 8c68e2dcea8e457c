"""Optimizers and their learning rates, made from the settings of a training."""

from collections.abc import Iterable, Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from clnp.devices import on_the_host
from clnp.errors import ArgumentError

from .batches import Batches
from .config import Training, optimizer_class


def can_be_captured(training: Training, data: Batches) -> bool:
    """Whether steps can be captured: the data is resident, and the host reads no value."""
    name, options = training.optimizer, training.optimizer_options
    if not (
        training.cuda_graph
        and data.device.type == "cuda"
        and data.inputs is not None
        and training.precision != "float16"  # A scaler checks whether gradients are finite.
        and isinstance(name, str)
    ):
        return False
    # Fused SGD reads its learning rate on the device too.
    is_fused_sgd = name == "SGD" and "foreach" not in options and options.get("fused", True)
    return _has_option(name, "capturable") or is_fused_sgd


def _has_option(optimizer: str, option: str) -> bool:
    return option in signature(optimizer_class(optimizer)).parameters


def make_optimizer(
    training: Training, parameters: list[nn.Parameter], *, captured: bool = False
) -> torch.optim.Optimizer:
    """Return the optimizer of these parameters; for captured steps, its state is on the device."""
    if not isinstance(training.optimizer, str):
        return training.optimizer(parameters, training.lr)
    make: Any = optimizer_class(training.optimizer)
    options = {"lr": training.lr, **training.optimizer_options}
    if captured:
        options["lr"] = torch.tensor(training.lr, device=parameters[0].device)
        if _has_option(training.optimizer, "capturable"):
            options["capturable"] = True
        if _has_option(training.optimizer, "fused") and "foreach" not in options:
            options.setdefault("fused", True)
    try:
        with on_the_host():
            made: torch.optim.Optimizer = make(parameters, **options)
    except Exception as error:  # Optimizers raise errors of any type.
        message = f"training: {training.optimizer}: {error}"
        raise ArgumentError(message, argument="optimizer_options") from error
    return made


def rate_shares(optimizer: torch.optim.Optimizer, training: Training) -> list[float]:
    """Return the share of the learning rate that each parameter group of a new optimizer has.

    The function of a user may set other rates for some groups, which follow the schedule too.
    """
    groups = optimizer.param_groups
    if isinstance(training.optimizer, str):
        return [1.0] * len(groups)
    return [1.0 if g["lr"] is None else float(g["lr"]) / training.lr for g in groups]


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load the state of an optimizer of the same class, which may have been on other hardware.

    Options for running a step stay as they are: a CPU cannot be `capturable`.
    """
    groups = []
    for own, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        kept = {name: own[name] for name in ("capturable", "fused", "foreach") if name in own}
        lr: Any = saved["lr"] if saved["lr"] is None else float(saved["lr"])
        if isinstance(own["lr"], Tensor):
            lr = torch.full_like(own["lr"], lr)
        groups.append({**saved, **kept, "lr": lr})
    optimizer.load_state_dict({**state, "param_groups": groups})


def check_optimizers(trainings: Iterable[Training], model: nn.Module) -> None:
    """Raise an `ArgumentError` unless the optimizers accept such weights and take a step.

    Some accept matrices only. Weights of the model are neither read nor changed.
    """
    devices = {weight.ndim: weight.device for weight in model.parameters()}
    for training in trainings if devices else ():
        weights = [nn.Parameter(torch.zeros([2] * n, device=d)) for n, d in devices.items()]
        optimizer = make_optimizer(training, weights)
        torch.autograd.backward([weight.sum() for weight in weights])
        step: Any = optimizer.step
        try:
            with on_the_host():
                step()
        except Exception as error:  # Optimizers raise errors of any type.
            name = type(optimizer).__name__
            message = f"training: {name} cannot be used: {error}"
            raise ArgumentError(message, argument="optimizer") from error

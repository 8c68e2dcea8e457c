"""The baselines by name, their settings in a recipe, and what carries them out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from clnp.checks import check_kind
from clnp.errors import ArgumentError
from clnp.records import OURS
from clnp.training.config import Training

from .ewc import EWC
from .hat import HAT
from .joint import Joint, JointMethod
from .method import Method, Setting
from .packnet import PackNet
from .runner import DenseMethod
from .si import SI
from .single import Finetune, Single
from .superposition import Superposition


@dataclass(frozen=True)
class Methods:
    """The settings of every baseline, for a comparison on the same tasks and network."""

    single: Single = field(default_factory=Single)
    """Each task alone, in a network of its own."""
    finetune: Finetune = field(default_factory=Finetune)
    """Every task with all weights, nothing done about forgetting."""
    joint: Joint = field(default_factory=Joint)
    """All tasks at the same time."""
    ewc: EWC = field(default_factory=EWC)
    """Elastic weight consolidation."""
    packnet: PackNet = field(default_factory=PackNet)
    """PackNet: every weight belongs to one task, by pruning."""
    hat: HAT = field(default_factory=HAT)
    """Hard attention to the task: a gate for each neuron and task."""
    si: SI = field(default_factory=SI)
    """Synaptic intelligence."""
    superposition: Superposition = field(default_factory=Superposition)
    """Superposition of many models into one."""


BASELINES = (Single, Finetune, Joint, EWC, PackNet, HAT, SI, Superposition)
"""The classes of their settings."""
NAMES = (OURS, *(each.name for each in fields(Methods)))


def baseline_of(methods: Methods, name: str) -> Any:
    """The settings of the baseline of that name; None for neural pruning."""
    return None if name == OURS else getattr(methods, name)


def check_baseline(settings: Any) -> None:
    """Raise an `ArgumentError` unless these are settings of a baseline: one of ours or a user's."""
    kind = type(settings)
    if kind not in BASELINES:
        # A strategy gets settings of which `training` has been replaced.
        own = is_dataclass(kind) and callable(getattr(kind, "strategy", None))
        if not own or "training" not in {each.name for each in fields(settings)}:
            raise ArgumentError(
                f"baseline is {settings!r}; it must be settings of one, such as "
                "clnp.methods.EWC(), or a dataclass of your own with `training` and "
                "`strategy`",
                argument="baseline",
            )
        if name_of(settings) in NAMES:
            raise ArgumentError(
                f"a method called {name_of(settings)!r} is there already: give the class "
                f"{kind.__name__} another name",
                argument="baseline",
            )
    if settings.training is not None:
        check_kind("baseline.training", settings.training, Training, "a Training, or None")


def name_of(settings: Any) -> str:
    """The name of the baseline with these settings; None are those of neural pruning."""
    return OURS if settings is None else type(settings).__name__.lower()


def method_for(baseline: Any, setting: Setting, state: Mapping[str, Any] | None) -> Method:
    """What carries out the baseline with these settings, from the start or from a saved state."""
    if isinstance(baseline, Joint):
        return JointMethod(baseline, setting, state)
    return DenseMethod(baseline, setting, state)


def takes_more_tasks(baseline: Any) -> bool:
    """Whether tasks can be added to a run with these settings; None are those of neural pruning."""
    return not isinstance(baseline, Joint)

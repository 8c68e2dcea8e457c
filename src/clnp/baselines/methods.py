"""The baselines by name, their settings in a recipe, and what carries them out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..method import Method, Setting
from ..ours import OURS
from .dense_method import DenseMethod
from .ewc import EWC
from .finetune import Finetune
from .hat import HAT
from .joint import Joint, JointMethod
from .packnet import PackNet
from .si import SI
from .single import Single
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


def method_for(baseline: Any, setting: Setting, state: Mapping[str, Any] | None) -> Method:
    """What carries out the baseline with these settings, from the start or from a saved state."""
    if isinstance(baseline, Joint):
        return JointMethod(baseline, setting, state)
    return DenseMethod(baseline, setting, state)


def takes_more_tasks(baseline: Any) -> bool:
    """Whether tasks can be added to a run with these settings; None are those of neural pruning."""
    return not isinstance(baseline, Joint)

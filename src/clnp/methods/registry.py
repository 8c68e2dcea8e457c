"""The baselines by name, and the method for their settings."""

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, get_type_hints

from clnp.checks import COUNT, check_kind, optional, settle, several, whole_number
from clnp.errors import ArgumentError
from clnp.records import OURS, SettingsSource
from clnp.training.config import Training

from .ewc import EWC
from .hat import HAT
from .joint import Joint, JointMethod
from .method import Method, Setting, State
from .packnet import PackNet
from .runner import DenseMethod
from .si import SI
from .single import Finetune, Single
from .superposition import Superposition


@dataclass(frozen=True)
class Methods:
    """The settings of every baseline, for a comparison on the same tasks and network."""

    single: Single = field(default_factory=Single)
    """Each task alone, in a separate network."""
    finetune: Finetune = field(default_factory=Finetune)
    """All weights are trained on every task; nothing prevents forgetting."""
    joint: Joint = field(default_factory=Joint)
    """All tasks at the same time."""
    ewc: EWC = field(default_factory=EWC)
    """Elastic weight consolidation."""
    packnet: PackNet = field(default_factory=PackNet)
    """PackNet: pruning assigns every weight to one task."""
    hat: HAT = field(default_factory=HAT)
    """Hard attention to the task: a gate for each neuron and task."""
    si: SI = field(default_factory=SI)
    """Synaptic intelligence."""
    superposition: Superposition = field(default_factory=Superposition)
    """Superposition of many models into one."""


@dataclass(frozen=True)
class Chosen:
    """How the settings of a method were chosen."""

    on: Literal["validation", "test"]
    """The data whose scores were compared."""
    trials: int | None = None
    """How many settings were tried."""
    seeds: tuple[int, ...] = ()
    """The seeds of the runs that tried them."""
    changed: bool = False
    """Whether the experiment has been changed since; `--set` sees to it."""

    def __post_init__(self) -> None:
        settle(self, {"trials": optional(COUNT), "seeds": several(whole_number)})


BASELINES = tuple(get_type_hints(Methods).values())
"""The classes of their settings."""
NAMES = (OURS, *(each.name for each in fields(Methods)))


def baseline_of(methods: Methods, name: str) -> Any:
    """Return the settings of a baseline by name; None for neural pruning."""
    return None if name == OURS else getattr(methods, name)


def source_of(methods: Methods, name: str, chosen: Chosen | None) -> SettingsSource:
    """Return where the settings of a method come from, if they were `chosen` or not."""
    if chosen is not None:
        return SettingsSource(chosen.on, chosen.trials, chosen.seeds, chosen.changed)
    settings = baseline_of(methods, name)
    is_default = settings is not None and settings == type(settings)()
    return SettingsSource("defaults" if is_default else "unknown")


def check_baseline(settings: Any) -> None:
    """Raise an `ArgumentError` unless these are the settings of a baseline, built in or custom."""
    kind = type(settings)
    if kind not in BASELINES:
        # A strategy gets settings of which `training` has been replaced.
        own = is_dataclass(kind) and callable(getattr(kind, "strategy", None))
        if not own or "training" not in {each.name for each in fields(settings)}:
            raise ArgumentError(
                f"baseline is {settings!r}. Give the settings of a baseline, such as "
                "clnp.methods.EWC(), or a dataclass with `training` and `strategy`.",
                argument="baseline",
            )
        if name_of(settings) in NAMES:
            raise ArgumentError(
                f"a method called {name_of(settings)!r} already exists. Rename the class "
                f"{kind.__name__}.",
                argument="baseline",
            )
    if settings.training is not None:
        check_kind("baseline.training", settings.training, Training, "a Training, or None")


def name_of(settings: Any) -> str:
    """Return the name of the method with these settings; None means neural pruning."""
    return OURS if settings is None else type(settings).__name__.lower()


def method_for(baseline: Any, setting: Setting, state: State | None) -> Method:
    """Return the method of a baseline, new or restored from a saved state."""
    if isinstance(baseline, Joint):
        return JointMethod(baseline, setting, state)
    return DenseMethod(baseline, setting, state)


def takes_more_tasks(baseline: Any) -> bool:
    """Whether tasks can be added to a run with these settings; None means neural pruning."""
    return not isinstance(baseline, Joint)

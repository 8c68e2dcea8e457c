"""Neural pruning and the baselines, behind one interface.

A baseline is one file with its formula at the top, and one entry in `registry`.
"""

from clnp.training.fit import StepRule

from .dense import DenseNet
from .ewc import EWC
from .hat import HAT
from .joint import Joint
from .method import Retraining, Strategy
from .packnet import PackNet
from .si import SI
from .single import Finetune, Single
from .superposition import Superposition

__all__ = [
    "EWC",
    "HAT",
    "SI",
    "DenseNet",
    "Finetune",
    "Joint",
    "PackNet",
    "Retraining",
    "Single",
    "StepRule",
    "Strategy",
    "Superposition",
]

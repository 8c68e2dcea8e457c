"""A network in one file, written atomically: safetensors and JSON, no pickle.

Names are imported when they are first used: replacing a file needs no PyTorch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checkpoint import attached as attached, load as load, save as save

__all__ = ["attached", "load", "save"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import checkpoint

    return getattr(checkpoint, name)

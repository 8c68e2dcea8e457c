"""The network that cannot forget: `ContinualNet`, and what it is made of.

Nothing here reads or writes a file or a terminal, and nothing imports another room: the folder
works alone, with `errors.py`, `checks.py` and `plain.py` beside it. Names are imported when they
are first used: the records of a run need the ledger and the forecast, but not PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .certificate import Certificate as Certificate
    from .layers.ledger import Ledger as Ledger
    from .net import ContinualNet as ContinualNet
    from .record import OpenState as OpenState, Record as Record
    from .structure.discover import discover as discover
    from .structure.kinds import Kind as Kind, Slot as Slot, register as register

_FILES = {
    "Certificate": "certificate",
    "ContinualNet": "net",
    "Kind": "structure.kinds",
    "Ledger": "layers.ledger",
    "OpenState": "record",
    "Record": "record",
    "Slot": "structure.kinds",
    "discover": "structure.discover",
    "register": "structure.kinds",
}

__all__ = sorted(_FILES)


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_FILES[name]}", __name__), name)

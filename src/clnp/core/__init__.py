"""The network that cannot forget: `ContinualNet`, and what it is made of.

Nothing here reads or writes a file or a terminal, and nothing imports a room above it: the folder
works alone, with `errors.py` and `text.py` beside it.
"""

from .certificate import Certificate
from .layers.ledger import Ledger
from .net import ContinualNet
from .record import OpenState, Record
from .structure.discover import discover

__all__ = [
    "Certificate",
    "ContinualNet",
    "Ledger",
    "OpenState",
    "Record",
    "discover",
]

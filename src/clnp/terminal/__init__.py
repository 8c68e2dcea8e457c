"""Output on the terminal: progress, `clnp inspect` and `clnp watch`.

`progress` shows events of a run, `watch` its status while it works, and `overview` a run at any
time. `summary` has the text of its results, and `tables` the tables, bars and curves.
"""

from .progress import Lines

__all__ = ["Lines"]

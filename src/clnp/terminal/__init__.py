"""Output on the terminal: progress, `clnp inspect` and `clnp watch`."""

from .progress import Lines

__all__ = ["Lines"]

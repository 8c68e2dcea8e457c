"""What the terminal shows: progress, `clnp inspect` and `clnp watch`."""

from .progress import Lines

__all__ = ["Lines"]

"""Algorithm 1 of the paper for one task: the grid, the margin, and the sparsest candidate."""

from clnp.training.config import TaskSettings

__all__ = ["TaskSettings"]

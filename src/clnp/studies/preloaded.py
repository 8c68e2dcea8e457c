"""Imported by the process that jobs are forked from, for all of them, and by nobody else."""

import torch._dynamo  # The first optimizer would import it, in as long as torch takes.

from clnp.cli import commands

__all__ = ["commands", "torch"]

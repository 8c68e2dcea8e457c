"""Imported by the process that jobs are forked from, for all of them, and by nobody else."""

import os

# A terminal that is interrupted or closed ends the jobs, in their time, and this process with them.
os.setpgrp()

import torch._dynamo  # noqa: E402  The first optimizer would import it, in as long as torch takes.

from . import commands  # noqa: E402

__all__ = ["commands", "torch"]

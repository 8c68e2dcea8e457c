"""Imported by the process that jobs are forked from, for all of them, and by nobody else."""

import os

import torch._dynamo  # Imported by the first optimizer otherwise, which takes as long as torch.

from . import commands

__all__ = ["commands", "torch"]

# A terminal that is closed shall end the jobs, in their time, and this process after them.
os.setpgrp()

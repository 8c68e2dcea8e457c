"""The programs in examples/ run."""

import os
import subprocess
import sys

import pytest
import torch.distributed

from support.paths import ROOT

EXAMPLES = ROOT / "examples"


def printed_by(*arguments):
    """Run a program on the CPU, and return its output."""
    alone = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    program = [sys.executable, *map(str, arguments)]
    done = subprocess.run(program, env={**os.environ, **alone}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_digits():
    assert printed_by(EXAMPLES / "digits.py").count("learned digits") == 3


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_several_processes():
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    try:
        out = printed_by(*torchrun, EXAMPLES / "several_processes.py")
    except AssertionError as error:
        # Threads of PyTorch sometimes abort a process that exits.
        if "terminate called without an active exception" not in str(error):
            raise
        out = printed_by(*torchrun, EXAMPLES / "several_processes.py")
    assert out.count("learned digits") == 2
    assert "all processes have the same network, and nothing was forgotten" in out

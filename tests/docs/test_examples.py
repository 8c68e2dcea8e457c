"""The programs in examples/ run, and say what they should."""

import os
import subprocess
import sys

import pytest
import torch.distributed

from support.paths import ROOT

EXAMPLES = ROOT / "examples"


def said(*arguments):
    """What a program prints, run on the CPU alone."""
    alone = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    program = [sys.executable, *map(str, arguments)]
    done = subprocess.run(program, env={**os.environ, **alone}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_three_tasks_in_a_loop_of_ones_own():
    assert said(EXAMPLES / "digits.py").count("learnt digits") == 3


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_several_processes_learn_the_same_network():
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    try:
        out = said(*torchrun, EXAMPLES / "several_processes.py")
    except AssertionError as error:
        # PyTorch's own threads now and then end a process that is on its way out.
        if "terminate called without an active exception" not in str(error):
            raise
        out = said(*torchrun, EXAMPLES / "several_processes.py")
    assert out.count("learnt digits") == 2
    assert "all processes have the same network, and nothing was forgotten" in out

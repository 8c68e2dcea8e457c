"""The programs in examples/ run."""

import os
import subprocess
import sys

import pytest
import torch.distributed

from support.paths import ROOT, program

EXAMPLES = ROOT / "examples"


def test_digits(monkeypatch, capsys):
    digits = program(EXAMPLES / "digits.py")
    monkeypatch.setattr(digits, "EPOCHS", 15)
    digits.main()
    out = capsys.readouterr().out
    assert out.count("learned digits") == out.count("identical to the last bit") == 3
    assert "verified: the 3 tasks" in out


def several_processes():
    """Run the example on the CPU."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    return subprocess.run(
        [sys.executable, *torchrun, EXAMPLES / "several_processes.py"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_several_processes():
    done = several_processes()
    if done.returncode and "terminate called without an active exception" in done.stderr:
        # Threads of PyTorch sometimes abort a process that exits.
        done = several_processes()
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("learned digits") == 2
    assert "all processes have the same network, and nothing was forgotten" in done.stdout

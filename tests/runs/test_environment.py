import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy
import pytest
import safetensors
import torch

import clnp
from clnp.methods.single import Finetune
from clnp.plain import read, to_json
from clnp.records import Environment
from clnp.runs import environment
from clnp.runs.environment import ARITHMETIC, arithmetic, describe, peak_bytes, reset_peak
from support.forgetting import experiment

CPU = torch.device("cpu")


def git(folder, *arguments):
    """The output of git in the folder, whatever the settings of the user and of a hook are."""
    outside = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**outside, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull},
    )
    return done.stdout.strip()


@pytest.fixture
def source(tmp_path, monkeypatch):
    """The file of the module, as if it were in a folder without a checkout."""
    for key in [key for key in os.environ if key.startswith("GIT_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    file = tmp_path / "project" / "environment.py"
    file.parent.mkdir()
    file.write_text("source\n")
    monkeypatch.setattr(environment, "__file__", str(file))
    return file


def commit(folder):
    """Commit all files of the folder, and return the commit."""
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "all")
    return git(folder, "rev-parse", "HEAD")


def test_versions_and_hardware_are_recorded(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/clnp", "run", "permuted-digits"])
    found = describe(CPU)
    assert found.command == ("clnp", "run", "permuted-digits")
    assert (found.clnp, found.torch) == (clnp.__version__, torch.__version__)
    assert (found.numpy, found.safetensors) == (numpy.__version__, safetensors.__version__)
    assert found.python == platform.python_version()
    assert found.platform == f"{platform.system()} {platform.machine()}"
    assert (found.num_cores, found.num_threads) == (os.cpu_count(), torch.get_num_threads())
    assert (found.device, found.gpu, found.cuda) == ("cpu", None, None)
    began = datetime.fromisoformat(found.began)
    assert began.utcoffset() == timedelta(0)
    assert timedelta(0) <= datetime.now(UTC) - began < timedelta(hours=1)
    assert read(Environment, json.loads(to_json(found))) == found


def test_the_processor_has_the_name_that_the_system_gives_it():
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    named = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    assert describe(CPU).cpu == (named[0] if named else platform.processor() or platform.machine())


def test_the_commit_is_that_of_the_source(source):
    assert describe(CPU).commit is None
    known = commit(source.parent)
    assert len(known) == 40
    git(source.parent, "tag", "--annotate", "v1", "--message", "one")
    (source.parent / "notes.txt").write_text("a file that git does not know\n")
    assert describe(CPU).commit == known
    source.write_text("changed\n")
    assert describe(CPU).commit == f"{known}+"


def test_the_commit_of_another_project_around_the_source_does_not_count(source):
    commit(source.parent)
    git(source.parent, "rm", "--cached", "--quiet", source.name)
    assert describe(CPU).commit is None


def test_without_git_there_is_no_commit(source, monkeypatch, tmp_path):
    commit(source.parent)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe(CPU).commit is None


@pytest.mark.parametrize("name", ARITHMETIC)
def test_other_hardware_or_another_torch_may_round_differently(name):
    known = describe(CPU)
    assert arithmetic(replace(known, **{name: "other"})) != arithmetic(known)


def test_other_entries_do_not_change_rounding():
    others = {"began": "later", "command": ("clnp",), "commit": "a", "clnp": "9", "num_cores": 64}
    known = describe(CPU)
    assert arithmetic(replace(known, **others)) == arithmetic(known)


def test_variables_that_select_instructions_are_recorded(monkeypatch):
    for name in environment.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert describe(CPU).variables is None
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert describe(CPU).variables == "MKL_CBWR=COMPATIBLE"


def test_the_precision_of_matrix_products_is_recorded():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert describe(CPU).matmul == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


CLEAR = Path("/proc/self/clear_refs")
MUCH = 256 << 20


@pytest.mark.skipif(not os.access(CLEAR, os.W_OK), reason="the peak cannot be reset here")
def test_the_peak_of_a_run_does_not_include_what_was_before(tmp_path):
    experiment(Finetune(), epochs=1).run(tmp_path / "first")  # It imports what all runs need.
    torch.ones(MUCH, dtype=torch.uint8)
    before = peak_bytes(CPU)
    assert before > MUCH
    result = experiment(Finetune(), epochs=1).run(tmp_path / "run")
    assert 0 < result.timings.peak_bytes < before - MUCH / 2
    kept = torch.ones(MUCH, dtype=torch.uint8)
    assert peak_bytes(CPU) > before - MUCH / 2
    del kept


def test_the_peak_is_that_of_the_process_if_it_cannot_be_reset(monkeypatch):
    before = peak_bytes(CPU)
    monkeypatch.setattr(environment, "Path", lambda path: Path(path + " does not exist"))
    reset_peak(CPU)
    assert peak_bytes(CPU) >= before / 2


@pytest.mark.gpu
def test_the_gpu_is_recorded():
    found = describe(torch.device("cuda", 0))
    assert found.device == "cuda:0"
    assert found.gpu == torch.cuda.get_device_name(0)
    assert found.cuda == torch.version.cuda

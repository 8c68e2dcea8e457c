import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy
import pytest
import safetensors
import torch

import clnp
from clnp.methods.single import Finetune
from clnp.runs import environment
from clnp.runs.environment import arithmetic, describe, peak_bytes, reset_peak
from support.forgetting import experiment

CPU = torch.device("cpu")


def git(folder, *arguments):
    """What git says in the folder, whatever the settings of the user and of a hook around us."""
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
    """The file of the module, as if it were in an empty folder."""
    for key in [key for key in os.environ if key.startswith("GIT_")]:
        monkeypatch.delenv(key)
    # Whatever is around the folder is not looked at.
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    file = tmp_path / "project" / "environment.py"
    file.parent.mkdir()
    file.write_text("source\n")
    monkeypatch.setattr(environment, "__file__", str(file))
    return file


def committed(folder):
    """The commit of all that is in the folder."""
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "all")
    return git(folder, "rev-parse", "HEAD")


def test_versions_and_hardware_are_told(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/clnp", "run", "permuted-digits"])
    found = describe(CPU)
    assert found["command"] == ["clnp", "run", "permuted-digits"]
    assert found["clnp"] == clnp.__version__
    assert found["python"] == platform.python_version()
    assert found["torch"] == torch.__version__
    assert found["numpy"] == numpy.__version__
    assert found["safetensors"] == safetensors.__version__
    assert found["platform"] == f"{platform.system()} {platform.machine()}"
    assert found["cpu"]
    assert found["num_cores"] == os.cpu_count()
    assert found["num_threads"] == torch.get_num_threads()
    assert (found["device"], found["gpu"], found["cuda"]) == ("cpu", None, None)
    assert json.loads(json.dumps(found)) == found


def test_the_time_is_that_of_the_call_and_has_a_zone():
    began = datetime.fromisoformat(describe(CPU)["began"])
    assert began.utcoffset() == timedelta(0)
    assert timedelta(0) <= datetime.now(UTC) - began < timedelta(seconds=30)


def test_the_name_of_the_processor_is_that_of_the_system():
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    named = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    expected = named[0] if named else platform.processor() or platform.machine()
    assert describe(CPU)["cpu"] == expected


def test_the_commit_is_that_of_the_source(source):
    commit = committed(source.parent)
    assert len(commit) == 40
    assert describe(CPU)["commit"] == commit


def test_a_tag_does_not_hide_the_commit(source):
    commit = committed(source.parent)
    git(source.parent, "tag", "--annotate", "v1", "--message", "one")
    assert describe(CPU)["commit"] == commit


def test_a_changed_file_is_marked_and_one_that_is_new_is_not(source):
    commit = committed(source.parent)
    (source.parent / "notes.txt").write_text("mine\n")
    assert describe(CPU)["commit"] == commit
    source.write_text("changed\n")
    assert describe(CPU)["commit"] == f"{commit}+"


def test_a_source_without_a_checkout_has_no_commit(source):
    assert describe(CPU)["commit"] is None


def test_the_checkout_of_another_project_around_the_source_does_not_count(source):
    committed(source.parent)
    git(source.parent, "rm", "--cached", "--quiet", source.name)
    assert describe(CPU)["commit"] is None


def test_without_git_there_is_no_commit(source, monkeypatch, tmp_path):
    committed(source.parent)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe(CPU)["commit"] is None


ALIKE = {
    "torch": "2.11.0",
    "platform": "Linux x86_64",
    "cpu": "Fast",
    "num_threads": 2,
    "instructions": "AVX2",
    "variables": None,
    "matmul": "highest",
    "cudnn": 91900,
    "device": "cuda:0",
    "gpu": "Faster",
    "cuda": "13.0",
}


@pytest.mark.parametrize("key", ALIKE)
def test_other_hardware_or_another_torch_may_round_differently(key):
    assert arithmetic(ALIKE) == arithmetic(dict(reversed(ALIKE.items())))
    assert arithmetic(ALIKE) != arithmetic({**ALIKE, key: "other"})


def test_variables_that_choose_instructions_are_told(monkeypatch):
    for name in environment.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert describe(CPU)["variables"] is None
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    found = describe(CPU)
    assert found["variables"] == "MKL_CBWR=COMPATIBLE"
    monkeypatch.delenv("MKL_CBWR")
    assert arithmetic(found) != arithmetic(describe(CPU))


def test_the_precision_of_products_is_told():
    before, found = torch.get_float32_matmul_precision(), describe(CPU)
    torch.set_float32_matmul_precision("medium")
    try:
        assert arithmetic(found) != arithmetic(describe(CPU))
    finally:
        torch.set_float32_matmul_precision(before)


def test_what_rounds_nothing_may_differ():
    others = {"began": "later", "command": ["clnp"], "commit": "a", "clnp": "9", "num_cores": 64}
    assert arithmetic({**describe(CPU), **others}) == arithmetic(describe(CPU))


CLEAR = Path("/proc/self/clear_refs")
MUCH = 256 << 20


@pytest.mark.skipif(not os.access(CLEAR, os.W_OK), reason="a process cannot forget its peak here")
def test_a_run_has_the_peak_of_its_own_and_not_of_what_was_before(tmp_path):
    experiment(Finetune(), epochs=1).run(tmp_path / "first")  # It loads what all of them need.
    torch.ones(MUCH, dtype=torch.uint8)
    before = peak_bytes(CPU)
    assert before > MUCH
    result = experiment(Finetune(), epochs=1).run(tmp_path / "run")
    assert 0 < result["timings"]["peak_bytes"] < before - MUCH / 2
    kept = torch.ones(MUCH, dtype=torch.uint8)
    assert peak_bytes(CPU) > before - MUCH / 2
    del kept


def test_where_the_peak_cannot_be_forgotten_it_is_that_of_the_process(monkeypatch):
    before = peak_bytes(CPU)
    monkeypatch.setattr(environment, "Path", lambda path: Path(path + " is not here"))
    reset_peak(CPU)
    assert peak_bytes(CPU) >= before / 2


@pytest.mark.gpu
def test_the_gpu_is_named():
    found = describe(torch.device("cuda", 0))
    assert found["device"] == "cuda:0"
    assert found["gpu"] == torch.cuda.get_device_name(0)
    assert found["cuda"] == torch.version.cuda

"""The programs in tools/ choose what to install."""

import subprocess
import sys
import tomllib
from types import SimpleNamespace

import pytest

from support.paths import ROOT, program

CUDA = """\
Resolved 3 packages in 7.88s
Would download 2 packages
Would install 3 packages
 + clnp @ file:///clnp
 + nvidia-cublas==13.4.1.3
 + scikit-learn==1.9.1
 + torch==2.15.0
"""


@pytest.fixture
def install(monkeypatch):
    """The program, on Linux without a GPU, where nothing of PyTorch is installed."""
    found = program(ROOT / "tools" / "install.py")
    monkeypatch.setattr(found.platform, "system", lambda: "Linux")
    monkeypatch.setattr(found.shutil, "which", lambda name: None)
    monkeypatch.setattr(found, "agree", lambda names: True)
    monkeypatch.setattr(found, "build_for_cpu", lambda name: None)
    return found


def test_the_line_says_what_is_downloaded(install):
    assert install.sentence("demo", CUDA) == (
        "Installing PyTorch 2.15.0 with CUDA and what the extra demo needs: 3 packages, about "
        "3.1 GB to download if none is cached."
    )
    cpu = CUDA.replace("2.15.0", "2.13.0+cpu").replace(" + nvidia-cublas==13.4.1.3\n", "")
    assert "PyTorch 2.13.0+cpu for the CPU and what the extra dev needs: 2 packages, about 0.4" in (
        install.sentence("dev", cpu)
    )
    known = cpu.replace(" + torch==2.13.0+cpu\n", "")
    assert install.sentence("dev", known).startswith("Installing what the extra dev needs: 1 pack")


def test_without_a_gpu_a_build_for_the_cpu_comes_first(install, monkeypatch):
    cpu, any_build = install.ways("demo", "wheels")
    assert cpu == [*install.UV, "--torch-backend=cpu", "--editable", ".[demo]"]
    assert any_build == [*install.UV, "--editable", ".[demo]"]
    monkeypatch.setattr(install.shutil, "which", lambda name: name)
    assert list(install.ways("demo", "wheels")) == [any_build]


def test_a_build_that_pip_finds_is_taken_if_it_finds_all(install, monkeypatch, capsys):
    known = {"torch": "torch==2.13.0+cpu"}
    ran = []
    monkeypatch.setattr(install, "build_for_cpu", known.get)
    done = SimpleNamespace(returncode=0)
    monkeypatch.setattr(install.subprocess, "run", lambda command: ran.append(command) or done)
    first, *others = install.ways("demo", "wheels")
    assert ran[0][-3:] == ["--dest", "wheels", "torch==2.13.0+cpu"]
    assert first[len(install.UV) :][:3] == ["--find-links", "wheels", "torch==2.13.0+cpu"]
    assert capsys.readouterr().out == "Downloading torch==2.13.0+cpu, about 0.2 GB.\n"
    assert len(others) == 2
    # The development tools need torchvision, too.
    assert len(list(install.ways("dev", "wheels"))) == 2
    known["torchvision"] = "torchvision==0.28.0+cpu"
    assert len(list(install.ways("dev", "wheels"))) == 3


def test_packages_that_cannot_be_imported_together_are_replaced(install, monkeypatch):
    monkeypatch.setattr(install, "agree", lambda names: False)
    for command in install.ways("dev", "wheels"):
        assert command[-2:] == ["--reinstall-package=torch", "--reinstall-package=torchvision"]


def test_builds_of_pip_are_found(monkeypatch):
    install = program(ROOT / "tools" / "install.py")
    listed = "torch (2.15.0)\nAvailable versions: 2.15.0, 2.13.0+cpu, 2.13.0, 2.12.0+cpu\n"
    done = SimpleNamespace(stdout=listed)
    monkeypatch.setattr(install.subprocess, "run", lambda *args, **options: done)
    assert install.build_for_cpu("torch") == "torch==2.13.0+cpu"
    done.stdout = "torch (2.15.0)\nAvailable versions: 2.15.0\n"
    assert install.build_for_cpu("torch") is None


def test_whether_packages_can_be_imported_together():
    install = program(ROOT / "tools" / "install.py")
    assert install.agree(["json", "math"])
    assert install.agree(["no_such_package_a", "no_such_package_b"])
    assert not install.agree(["json", "no_such_package_a"])


def test_the_first_way_that_can_be_carried_out_is_taken(install, monkeypatch, capsys):
    ran = []

    def run(command, **options):
        ran.append(command)
        fails = "--torch-backend=cpu" in command
        return SimpleNamespace(returncode=int(fails), stderr="" if fails else CUDA)

    monkeypatch.setattr(install.subprocess, "run", run)
    assert install.main("demo") == 0
    assert [command[-1] for command in ran] == ["--dry-run", "--dry-run", "--quiet"]
    assert "--torch-backend=cpu" not in ran[2]
    assert capsys.readouterr().out.startswith("Installing PyTorch 2.15.0 with CUDA")


def test_versions_are_those_of_the_project():
    versions = program(ROOT / "tools" / "versions.py")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest = versions.wanted()[0]
    assert lowest[0] == project["requires-python"].removeprefix(">=")
    assert lowest[1].replace("==", ">=").removesuffix(".*") in project["dependencies"]
    assert [torch for _, torch in versions.wanted()[1:]] == ["torch", "torch"]


def test_an_interpreter_is_one_of_that_version():
    versions = program(ROOT / "tools" / "versions.py")
    assert versions.interpreter("3.1") == "3.1"
    own = "{}.{}".format(*sys.version_info[:2])
    found = versions.interpreter(own)
    code = "import sys; print(*sys.version_info[:2], sep='.')"
    assert found == own or subprocess.check_output([found, "-c", code], text=True).strip() == own


def test_a_version_that_cannot_be_had_is_skipped_and_none_at_all_is_a_failure(monkeypatch, capsys):
    versions = program(ROOT / "tools" / "versions.py")
    monkeypatch.setattr(sys, "prefix", None)  # The folder of temporary files.
    done = SimpleNamespace(returncode=1, stderr="no such\n  Python")
    monkeypatch.setattr(versions.subprocess, "run", lambda *args, **options: done)
    monkeypatch.setattr(versions, "interpreter", str)
    assert versions.main([]) == 1
    assert capsys.readouterr().out.endswith("Python 3.13, torch: skipped: no such Python\n")
    monkeypatch.setattr(
        versions, "outcome", lambda python, *_: "passed" if python == "3.12" else "skipped: x"
    )
    assert versions.main([]) == 0
    monkeypatch.setattr(versions, "outcome", lambda *_: "failed")
    assert versions.main([]) == 1

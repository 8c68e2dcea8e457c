"""A message that names an extra has the command that works where it is read."""

import json
import shutil
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from clnp import extras
from support.paths import ROOT


@pytest.fixture
def installed(monkeypatch):
    """Return a function that lets the package come from there, in an active environment."""
    scripts = Path(sys.executable).parent
    monkeypatch.setattr(shutil, "which", lambda name: str(scripts / name))

    def install(origin):
        text = None if origin is None else json.dumps(origin)
        found = SimpleNamespace(read_text={"direct_url.json": text}.__getitem__)
        monkeypatch.setattr(metadata, "distribution", lambda name: found)

    return install


@pytest.fixture
def checkout(tmp_path):
    path = tmp_path / "my work" / "clnp"
    path.mkdir(parents=True)
    (path / "pyproject.toml").touch()
    return path


def test_a_package_from_an_index(installed):
    installed(None)
    assert extras.command("report") == "pip install 'clnp[report]'"


def test_a_package_from_a_checkout(installed, checkout):
    url = checkout.as_uri()
    assert "%20" in url
    installed({"url": url, "dir_info": {"editable": True}})
    assert extras.command("onnx") == f"pip install -e '{checkout}[onnx]'"
    installed({"url": url, "dir_info": {}})
    assert extras.command("onnx") == f"pip install '{checkout}[onnx]'"
    (checkout / "pyproject.toml").unlink()
    assert extras.command("onnx") == "pip install 'clnp[onnx]'"


def test_a_package_from_an_address(installed):
    installed({"url": "https://example.org/clnp.whl", "archive_info": {}})
    assert extras.command("demo") == "pip install 'clnp[demo] @ https://example.org/clnp.whl'"
    vcs = {"vcs": "git", "commit_id": "abc"}
    installed({"url": "https://example.org/clnp", "vcs_info": vcs})
    address = "git+https://example.org/clnp@abc"
    assert extras.command("demo") == f"pip install 'clnp[demo] @ {address}'"


def test_a_package_that_is_not_installed(installed, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert extras.command("demo") == f"pip install -e '{ROOT}[demo]'"


def test_an_environment_that_is_not_active(installed, monkeypatch):
    installed(None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/elsewhere/{name}")
    monkeypatch.setattr(sys, "executable", "/my env/bin/python")
    monkeypatch.setattr(extras.PathFinder, "find_spec", lambda name: name)
    assert extras.command("demo") == "'/my env/bin/python' -m pip install 'clnp[demo]'"
    monkeypatch.setattr(extras.PathFinder, "find_spec", lambda name: None)
    command = "uv pip install --python '/my env/bin/python' 'clnp[demo]'"
    assert extras.command("demo") == command

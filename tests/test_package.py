"""The shape of the package: rooms, public names, and what importing it loads."""

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch

import pytest

from support.paths import SRC

PACKAGE = SRC / "clnp"
ROOMS = sorted(path.parent for path in PACKAGE.rglob("__init__.py"))


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_says_what_lives_there_and_is_small(room):
    assert ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8")))
    assert len(list(room.glob("*.py"))) <= 13


def test_public_names_are_those_that_a_type_checker_sees():
    import clnp

    source = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    imported = {
        alias.asname: node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }
    namespaces = {"errors": None, "methods": None, "trackers": None, "models": "data"}
    assert imported == {**clnp._FILES, **namespaces, "__version__": "version"}
    assert clnp.__all__ == sorted(imported)
    assert set(clnp.__all__) <= set(dir(clnp))


def test_a_name_that_is_not_there_is_an_attribute_error():
    import clnp

    with pytest.raises(AttributeError, match="module 'clnp' has no attribute 'Nothing'"):
        _ = clnp.Nothing


@pytest.mark.parametrize("name", ["inspect", "GraphError", "MLP", "TensorBoard", "Lines"])
def test_an_old_name_fails_with_the_new_one(name):
    import clnp

    new = clnp._RENAMED[name]
    with pytest.raises(AttributeError, match=f"clnp.{name} was renamed. Use {re.escape(new)}"):
        getattr(clnp, name)


def test_every_new_name_is_there():
    import clnp

    for new in clnp._RENAMED.values():
        if re.fullmatch(r"[\w.]+", new):
            room, _, name = new.rpartition(".")
            assert room == "clnp" or hasattr(
                importlib.import_module(room.replace("clnp.models", "clnp.data.models")), name
            ), new


def test_rooms_are_attributes_whatever_was_imported_before():
    program = """
import os
import torch
for name in {names!r}:
    child = os.fork()
    if child == 0:
        import clnp
        eval(name)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""
    names = ["clnp.records.EpochEnded", "clnp.core.Certificate", "clnp.storage.attached"]
    names += ["clnp.learner.TaskSettings", "clnp.runs.metrics.average", "clnp.terminal.Lines"]
    subprocess.run([sys.executable, "-c", program.format(names=names)], check=True)


def test_import_does_not_load_torch():
    assert "torch" not in modules_after("import clnp, clnp.cli.app")


def test_public_names_can_be_imported():
    import clnp

    assert [name for name in clnp.__all__ if not hasattr(clnp, name)] == []


def test_no_public_name_loads_an_optional_dependency():
    loaded = modules_after("from clnp import *")
    assert "torch" in loaded
    optional = {"matplotlib", "mlflow", "rich", "sklearn", "tensorboard", "torchvision", "wandb"}
    optional |= {"onnx", "onnxruntime", "onnxscript"}
    assert loaded & optional == set()


def modules_after(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after the code has run."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{code}; import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )
    return set(done.stdout.split())


def test_importing_clnp_does_not_import_the_compiler():
    assert "torch._dynamo" not in modules_after("import clnp")


def test_files_that_the_readme_links_to_are_in_the_source_distribution():
    root = SRC.parent
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    links = re.findall(r"\]\(([^):#]+)[#)]", (root / "README.md").read_text(encoding="utf-8"))
    assert "CITATION.cff" in links
    for link in links:
        top = "/" + link.split("/")[0]
        assert any(fnmatch(top, pattern) for pattern in patterns), link


def test_on_a_package_index_the_readme_has_no_relative_link():
    root = SRC.parent
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    hook = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    assert hook["fragments"][0] == {"path": "README.md"}
    text = (root / "README.md").read_text(encoding="utf-8")
    for each in hook["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    assert not re.search(r"\]\((?!https://)", text)
    assert "](https://arxiv.org/abs/1903.04476)" in text
    assert "SHA-256 certificates let you check it at any time" in " ".join(text.split())
    assert "more tasks fit" in text
    assert "New, reused and free neurons of each layer of the wide network" not in text
    assert project["project"]["urls"]["Paper"] in text

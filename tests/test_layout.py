"""The shape of the package: what imports what, what is public, and how long a file may be."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"
PACKAGE = SRC / "clnp"
FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def read_file_map(text: str) -> list[str]:
    """The files in the code block of README.md that begins with `src/clnp/`, in its order."""
    block = re.search(r"^```\w*\nsrc/clnp/\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    if block is None:
        raise ValueError("README.md has no code block that begins with the line src/clnp/")
    return re.findall(r"^ +([\w/]+\.py)\b", block[1], re.MULTILINE)


def imported_files(source: str, file: str, files: list[str]) -> set[str]:
    """The files of the package that `file` imports, anywhere in its source."""
    package = ("clnp", *Path(file).parts[:-1])
    found: set[str | None] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {file_of(tuple(alias.name.split(".")), files) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                module = (*package[: len(package) - node.level + 1], *module)
            for alias in node.names:
                # `from .a import b` reads the file a/b.py if there is one, otherwise a.py.
                found.add(file_of((*module, alias.name), files) or file_of(module, files))
    return {name for name in found if name is not None}


def file_of(module: tuple[str, ...], files: list[str]) -> str | None:
    """The file of the package that holds the module, if one does."""
    if module[:1] != ("clnp",):
        return None
    path = "/".join(module[1:])
    candidates = (f"{path}.py", f"{path}/__init__.py".lstrip("/"))
    return next((name for name in candidates if name in files), None)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os, torch", set()),
        ("from .axis import Axis", {"axis.py"}),
        ("from . import axis, net", {"axis.py", "net.py"}),
        ("from . import ContinualNet", {"__init__.py"}),
        ("import clnp", {"__init__.py"}),
        ("import clnp.net as n", {"net.py"}),
        ("from clnp import net", {"net.py"}),
        ("from clnp.net import ContinualNet", {"net.py"}),
        ("from .data import Task", {"data/__init__.py"}),
        ("from .data import streams", {"data/streams.py"}),
        ("from .data.streams import split", {"data/streams.py"}),
        ("def f():\n    from .net import ContinualNet", {"net.py"}),
        ("if TYPE_CHECKING:\n    from .net import ContinualNet", {"net.py"}),
    ],
)
def test_imports_are_found(source, expected):
    files = ["__init__.py", "axis.py", "net.py", "data/__init__.py", "data/streams.py"]
    assert imported_files(source, "heads.py", files) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [("from ..net import x", {"net.py"}), ("from .streams import x", {"data/streams.py"})],
)
def test_imports_are_found_in_a_subpackage(source, expected):
    files = ["net.py", "data/readers.py", "data/streams.py"]
    assert imported_files(source, "data/readers.py", files) == expected


def test_file_map_is_read_in_order():
    text = "```\nother/\n  no.py  x\n```\n```text\nsrc/clnp/\n  b.py  uses c.py\n  a/d.py  y\n```\n"
    assert read_file_map(text) == ["b.py", "a/d.py"]
    with pytest.raises(ValueError, match="no code block"):
        read_file_map("```\nsrc/other/\n  a.py\n```\n")


def test_file_map_lists_every_file_once():
    listed = read_file_map((ROOT / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == FILES


@pytest.mark.parametrize("file", FILES)
def test_file_imports_only_files_above_it(file):
    order = read_file_map((ROOT / "README.md").read_text(encoding="utf-8"))
    above = set(order[: order.index(file)])
    source = (PACKAGE / file).read_text(encoding="utf-8")
    assert imported_files(source, file, FILES) - above == set()


@pytest.mark.parametrize("file", FILES)
def test_file_has_at_most_400_lines(file):
    assert len((PACKAGE / file).read_text(encoding="utf-8").splitlines()) <= 400


def test_public_names_are_those_that_a_type_checker_sees():
    import clnp

    source = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    imported = {
        alias.asname: node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }
    assert imported == {**clnp._HOMES, "baselines": None}
    assert clnp.__all__ == sorted(imported)
    assert set(clnp.__all__) <= set(dir(clnp))


def test_no_public_name_is_hidden_by_a_file_of_that_name():
    import clnp

    assert not {Path(file).stem for file in FILES} & set(clnp.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error():
    import clnp

    with pytest.raises(AttributeError, match="module 'clnp' has no attribute 'Nothing'"):
        _ = clnp.Nothing


def test_import_does_not_load_torch():
    assert "torch" not in modules_after("import clnp, clnp.cli")


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
    """The packages that a fresh interpreter has loaded after the code has run."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{code}; import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )
    return {name.split(".")[0] for name in done.stdout.split()}

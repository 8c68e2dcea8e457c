"""Run the tests with the lowest PyTorch and the newest one, and with each Python.

    .venv/bin/python tools/versions.py [ARGUMENTS OF PYTEST]

Each environment takes up to 6 GB, and is removed after its tests. A Python or PyTorch that cannot
be had is skipped, and the reason is printed.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UV = [sys.executable, "-m", "uv"]


def main(arguments: Sequence[str]) -> int:
    """Run the tests in each environment, and return 1 if any fail or none could run."""
    outcomes = {}
    for python, torch in wanted():
        name = f"Python {python}, {torch}"
        print(f"==> {name}", flush=True)
        with tempfile.TemporaryDirectory(dir=sys.prefix) as folder:
            outcomes[name] = outcome(python, torch, folder, arguments)
        print(f"==> {name}: {outcomes[name]}", flush=True)
    print("", *(f"{name}: {said}" for name, said in outcomes.items()), sep="\n")
    ran = [said for said in outcomes.values() if not said.startswith("skipped")]
    return int(not ran or any(said != "passed" for said in ran))


def wanted() -> list[tuple[str, str]]:
    """Return each version of Python with the PyTorch to install: the lowest, then the newest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    kinds = [re.fullmatch(r".* :: (3\.\d+)", each) for each in project["classifiers"]]
    pythons = [kind[1] for kind in kinds if kind]
    lowest = next(each for each in project["dependencies"] if each.startswith("torch>="))
    return [
        (python, "torch" if n else f"{lowest.replace('>=', '==')}.*")
        for n, python in enumerate(pythons)
    ]


def outcome(python: str, torch: str, folder: str, arguments: Sequence[str]) -> str:
    """Return "passed", "failed", or that the environment was skipped and why."""
    own = Path(folder) / ("Scripts" if os.name == "nt" else "bin") / "python"
    steps = [
        ["venv", "--quiet", "--clear", "--python", interpreter(python), folder],
        ["pip", "install", "--quiet", "--python", str(own), "--editable", ".[dev]", torch],
    ]
    for step in steps:
        done = subprocess.run([*UV, *step], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            return f"skipped: {' '.join(done.stderr.split())}"
    several = ["-n", "auto", "--maxprocesses", "8", "--dist", "worksteal"]
    done = subprocess.run([own, "-m", "pytest", *several, *arguments], cwd=ROOT)
    return "failed" if done.returncode else "passed"


def interpreter(python: str) -> str:
    """Return an interpreter of this version; its number if there is none, which uv may download."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{python}"), *versions.glob(f"{python}.*/bin/python")]
    code = "import sys; print(*sys.version_info[:2], sep='.')"
    for path in filter(None, found):  # A shim of pyenv may have no Python behind it.
        done = subprocess.run([path, "-c", code], capture_output=True, text=True)
        if done.stdout.strip() == python:
            return str(path)
    return python


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

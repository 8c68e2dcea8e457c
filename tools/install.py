"""Install this project with an extra into the environment of this Python.

    .venv/bin/python tools/install.py demo

Before anything is downloaded, one line says what. Without an NVIDIA GPU, PyTorch is a build for the CPU
if there is one: among the packages that pip is configured to find, or where uv looks for it.
"""

import importlib.util
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
UV = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable]
TORCH = {"demo": ["torch"], "dev": ["torch", "torchvision"]}
"""What each extra needs of PyTorch. The two cannot be imported together if their builds differ."""
GB_OF_TORCH = {"with CUDA": 3.0, "for the CPU": 0.2}
GB_BESIDES = {"demo": 0.1, "dev": 0.2}
"""Gigabytes to download, roughly."""


def main(extra: str) -> int:
    """Install the extra, and return the exit code of the installer."""
    command: Sequence[str] = ()
    for command in ways(extra):
        tried = subprocess.run([*command, "--dry-run"], capture_output=True, text=True)
        if tried.returncode == 0:
            print(sentence(extra, tried.stdout + tried.stderr), flush=True)
            return subprocess.run([*command, "--quiet"]).returncode
    print(tried.stderr, file=sys.stderr)
    return tried.returncode


def ways(extra: str) -> Iterator[list[str]]:
    """Yield commands that install the extra. The first that can be carried out is the best."""
    wanted = ["--editable", f".[{extra}]"]
    if not agrees(TORCH[extra]):  # Packages of another build are replaced, whatever their version.
        wanted += [f"--reinstall-package={name}" for name in TORCH[extra]]
    if platform.system() == "Linux" and shutil.which("nvidia-smi") is None:
        builds = [build_for_cpu(name) for name in TORCH[extra]]
        if all(builds):
            yield [*PIP, "install", *map(str, builds), "--editable", f".[{extra}]"]
        yield [*UV, "--torch-backend=cpu", *wanted]
    yield [*UV, *wanted]


def agrees(names: Sequence[str]) -> bool:
    """Whether these packages are not installed, or can be imported together."""
    if not any(map(importlib.util.find_spec, names)):
        return True
    code = f"import {', '.join(names)}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def build_for_cpu(name: str) -> str | None:
    """Return the newest build for the CPU that pip finds, such as torch==2.13.0+cpu."""
    found = subprocess.run([*PIP, "index", "versions", name], capture_output=True, text=True)
    versions = re.findall(r"[\d.]+\+cpu", found.stdout)
    return f"{name}=={versions[0]}" if versions else None


def sentence(extra: str, plan: str) -> str:
    """Return what will be downloaded, from the output of a dry run."""
    found = dict(re.findall(r"^ \+ (\S+)==(\S+)$", plan, re.MULTILINE))  # As uv lists them.
    if not found and (words := re.search(r"^Would install (.*)$", plan, re.MULTILINE)):
        found = {
            name: version for name, _, version in (w.rpartition("-") for w in words[1].split())
        }
    size, torch = GB_BESIDES[extra], ""
    if "torch" in found:
        build = "with CUDA" if any(name.startswith("nvidia") for name in found) else "for the CPU"
        size += GB_OF_TORCH[build]
        torch = f"PyTorch {found['torch']} {build}, and "
    return (
        f"Downloading {torch}what the extra {extra} needs: {len(found)} packages, about "
        f"{size:.1f} GB if none is cached"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

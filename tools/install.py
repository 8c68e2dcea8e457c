"""Install this project with an extra into the environment of this Python.

    .venv/bin/python tools/install.py demo

Before anything is downloaded, one line says what. Without an NVIDIA GPU, PyTorch is a build for the
CPU if there is one: among the packages that pip is configured to find, or where uv looks for it.
"""

import importlib.util
import platform
import re
import shutil
import subprocess
import sys
import tempfile
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
    with tempfile.TemporaryDirectory() as wheels:
        for command in ways(extra, wheels):
            tried = subprocess.run([*command, "--dry-run"], capture_output=True, text=True)
            if tried.returncode == 0:
                print(sentence(extra, tried.stderr), flush=True)
                return subprocess.run([*command, "--quiet"]).returncode
    print(tried.stderr, file=sys.stderr)
    return tried.returncode


def ways(extra: str, wheels: str) -> Iterator[list[str]]:
    """Yield commands that install the extra. The first that can be carried out is the best."""
    names, wanted = TORCH[extra], ["--editable", f".[{extra}]"]
    if not agree(names):  # Packages of another build are replaced, whatever their version.
        wanted += [f"--reinstall-package={name}" for name in names]
    if platform.system() == "Linux" and shutil.which("nvidia-smi") is None:
        builds = [build for name in names if (build := build_for_cpu(name)) is not None]
        if len(builds) == len(names):
            print(f"Downloading {' and '.join(builds)}, about 0.2 GB.", flush=True)
            download = [*PIP, "download", "--quiet", "--no-deps", "--dest", wheels, *builds]
            if subprocess.run(download).returncode == 0:
                yield [*UV, "--find-links", wheels, *builds, *wanted]
        yield [*UV, "--torch-backend=cpu", *wanted]
    yield [*UV, *wanted]


def agree(names: Sequence[str]) -> bool:
    """Whether these packages can be imported together, or none is installed."""
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
    """Return what will be downloaded, by what a dry run of uv prints."""
    found = dict(re.findall(r"^ \+ (\S+)==(\S+)$", plan, re.MULTILINE))
    size, torch = GB_BESIDES[extra], ""
    if "torch" in found:
        build = "with CUDA" if any(name.startswith("nvidia") for name in found) else "for the CPU"
        size += GB_OF_TORCH[build]
        torch = f"PyTorch {found['torch']} {build} and "
    return (
        f"Installing {torch}what the extra {extra} needs: {len(found)} packages, about "
        f"{size:.1f} GB to download if none is cached."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""The command that installs an extra of this package, in the way that the package was installed."""

import json
import os
import shlex
import shutil
import sys
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname


def command(extra: str) -> str:
    """Return the command of the shell that adds an extra to the environment of this process."""
    return shlex.join([*_installer(), *_requirement(extra)])


def _installer() -> list[str]:
    """Return the command that installs into this environment, whichever is active."""
    found = shutil.which("pip")
    if found is not None and os.path.dirname(found) == os.path.dirname(sys.executable):
        return ["pip", "install"]
    # A hook of setuptools, which `importlib.util` would ask, unloads distutils.
    if PathFinder.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install"]
    return ["uv", "pip", "install", "--python", sys.executable]


def _requirement(extra: str) -> list[str]:
    """Return what to install: from the directory or address that this package came from."""
    from_index = [f"clnp[{extra}]"]
    try:
        origin = metadata.distribution("clnp").read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # Its source is on the path.
        checkout = Path(__file__).parents[2]
        origin = json.dumps({"url": checkout.as_uri(), "dir_info": {"editable": True}})
    if origin is None:
        return from_index
    known = json.loads(origin)
    if "dir_info" in known:
        directory = url2pathname(urlsplit(known["url"]).path)
        if not os.path.isfile(os.path.join(directory, "pyproject.toml")):
            return from_index  # Which leaves the installed package as it is.
        editable = known["dir_info"].get("editable", False)
        return [*(["-e"] if editable else []), f"{directory}[{extra}]"]
    vcs = known.get("vcs_info", {})
    address = f"{vcs['vcs']}+{known['url']}@{vcs['commit_id']}" if vcs else known["url"]
    return [f"clnp[{extra}] @ {address}"]

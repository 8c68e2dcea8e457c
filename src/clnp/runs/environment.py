"""The environment of a run: versions, hardware, commit; and its peak memory."""

import os
import platform
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from clnp.records import Environment
from clnp.version import __version__

ARITHMETIC = (
    *("torch", "platform", "cpu", "num_threads", "device", "gpu", "cuda"),
    *("instructions", "variables", "matmul", "cudnn"),
)
"""The entries of an `Environment` that rounding depends on."""
VARIABLES = (
    *("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"),
    *("NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG"),
)
"""Environment variables that select the instructions of libraries."""


def describe(device: torch.device) -> Environment:
    """Return everything that the numbers of a run may depend on, besides its config."""
    on_gpu = device.type == "cuda"
    return Environment(
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        command=(Path(sys.argv[0]).name.replace("__main__.py", "clnp"), *sys.argv[1:]),
        clnp=__version__,
        commit=_commit(),
        python=platform.python_version(),
        torch=str(torch.__version__),  # Includes the build, such as +cu132.
        numpy=metadata.version("numpy"),
        safetensors=metadata.version("safetensors"),
        platform=f"{platform.system()} {platform.machine()}",
        cpu=_cpu(),
        instructions=torch.backends.cpu.get_cpu_capability(),
        variables=_variables(),
        matmul=torch.get_float32_matmul_precision(),
        num_cores=os.cpu_count(),
        num_threads=torch.get_num_threads(),
        device=str(device),
        gpu=torch.cuda.get_device_name(device) if on_gpu else None,
        cuda=torch.version.cuda if on_gpu else None,
        cudnn=torch.backends.cudnn.version() if on_gpu else None,  # type: ignore[no-untyped-call]
    )


def arithmetic(environment: Environment) -> str:
    """Return what rounding depends on. Equal bits can be expected only where this is equal."""
    return ", ".join(f"{name} {getattr(environment, name)}" for name in ARITHMETIC)


def _variables() -> str | None:
    found = [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ]
    return " ".join(found) or None


def _commit() -> str | None:
    """Return the commit of this source if it is a checkout, with a plus if files have changed."""
    git = ["git", "-C", str(Path(__file__).parent)]
    describe = ["describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+"]
    tracked = ["ls-files", "--error-unmatch", Path(__file__).name]
    options: dict[str, Any] = {"capture_output": True, "text": True, "check": True, "timeout": 10}
    try:
        # The package may be installed inside the checkout of another project.
        subprocess.run([*git, *tracked], **options)
        return str(subprocess.run([*git, *describe], **options).stdout).strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def reset_peak(device: torch.device) -> None:
    """Start measuring the peak memory again; on a CPU, only Linux can do that."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: torch.device) -> int:
    """Return the peak memory of this process since `reset_peak`, on the GPU or in total."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024

"""Timing for the benchmarks: seconds of a call, the machine, and values of several rounds."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from clnp.runs.environment import describe


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of `run`, including its work on the device."""
    wait_for(device)
    start = time.perf_counter()
    run()
    wait_for(device)
    return time.perf_counter() - start


def ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return value / other for each round."""
    return [a / b for a, b in zip(values, others, strict=True)]


def spread(values: Sequence[float], unit: str = "", *, digits: int = 2) -> str:
    """Return the median with its unit, lowest and highest value: "1.01x  (0.95 .. 1.07)"."""
    middle, low, high = (
        f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values))
    )
    return f"{middle}{unit}  ({low} .. {high})"


def machine(device: torch.device) -> str:
    """Return versions of clnp and PyTorch, commit, hardware and number of threads in a line."""
    found = describe(device)
    commit = found.commit or ""
    source = f" ({commit[:10]}{'+' * commit.endswith('+')})" if commit else ""
    hardware = f"{found.gpu or found.cpu}, {found.num_threads} threads"
    return f"clnp {found.clnp}{source}, torch {found.torch}, {hardware}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text as a table; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        for row in rows
    )
    return "\n".join("  ".join(line).rstrip() for line in lines)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text as a Markdown table; the first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])

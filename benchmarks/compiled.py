"""Compare a training step captured as a CUDA graph with a step of `torch.compile`.

    python benchmarks/compiled.py [--fraction 0.5] [--rounds 3] [--device cuda]

The steps are those of `step.py`. Every task has other shapes, so compiling or capturing is repeated
for each. The last column is the number of steps of a task after which compiling pays off. On a CPU,
the other step is not captured.
"""

import argparse
import logging
import math
import statistics
from collections.abc import Callable

import torch
import torch._inductor.config
from frozen import MLP, NARROW_CNN, Subject, with_fraction_frozen
from step import ALPHA, BATCH, clnp_step, measured
from timing import aligned, machine, ratios, seconds, spread
from torch import Tensor
from torch.nn import functional as F

import clnp

MODES = ("default", "reduce-overhead", "max-autotune")
WARM_UP = 5
"""Calls that count as preparation: the first ones compile and capture."""


def compiled_step(
    net: clnp.ContinualNet, x: Tensor, labels: Tensor, mode: str
) -> Callable[[], None]:
    """Return a step with compiled forward, loss and backward, on a GPU with a fused optimizer."""
    net.train()
    fused = x.device.type == "cuda"
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=fused)
    loss_of: Callable[[], Tensor] = torch.compile(
        lambda: F.cross_entropy(net(x), labels), mode=mode
    )

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        loss_of().backward()
        net.add_l1_gradient(ALPHA)
        optimizer.step()

    return step


def first_calls(step: Callable[[], None], device: torch.device) -> float:
    """Return the seconds of the preparation."""
    return seconds(lambda: [step() for _ in range(WARM_UP)], device)


def report(subject: Subject, x: Tensor, *, fraction: float, rounds: int, modes: list[str]) -> None:
    labels = torch.randint(0, 10, (len(x),), device=x.device)

    def opened() -> clnp.ContinualNet:
        return with_fraction_frozen(subject.make, x, head=subject.head, fraction=fraction)

    steps: dict[str, Callable[[], None]] = {}
    once: dict[str, float] = {}
    failed: dict[str, str] = {}
    for mode in modes:
        step = compiled_step(opened(), x, labels, mode)
        try:
            once[mode] = first_calls(step, x.device)
        except Exception as error:  # Compilers raise errors of any type.
            failed[mode] = f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
        else:
            steps[mode] = step
    # Ours is last: a capture by the compiler frees cuBLAS' memory, also that of older graphs.
    ours = "captured" if x.device.type == "cuda" else "as it is"
    usual_step = clnp_step(opened(), x, labels)
    once[ours] = first_calls(usual_step, x.device)
    steps = {ours: usual_step, **steps}
    times = measured(steps, rounds=rounds, seconds=0.3, device=x.device)
    usual = statistics.median(times[ours])
    rows = [["step", "first calls, s", "a step, ms", f"/ {ours}", "pays after"]]
    for name, taken in times.items():
        gain = usual - statistics.median(taken)
        after = f"{math.ceil((once[name] - once[ours]) / gain)} steps" if gain > 0 else "never"
        rows.append(
            [
                name,
                f"{once[name]:.1f}",
                f"{1e3 * statistics.median(taken):.2f}",
                spread(ratios(taken, times[ours]), "x"),
                "-" if name == ours else after,
            ]
        )
    print(f"\n{subject.title}, {fraction:.0%} frozen\n{aligned(rows)}")
    for name, reason in failed.items():
        print(f"{name} failed: {reason}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fraction", type=float, default=0.5, help="frozen fraction of each layer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    logging.getLogger("torch").setLevel(logging.ERROR)
    torch._inductor.config.force_disable_caches = True  # A new task has shapes that are in none.
    torch.manual_seed(0)
    device = torch.device(options.device)
    print(f"{machine(device)}, batch {BATCH}, {options.rounds} rounds")
    shared = {"fraction": options.fraction, "rounds": options.rounds, "modes": options.modes}
    for subject in (MLP, NARROW_CNN):
        x = torch.rand(BATCH, *subject.shape, device=device)
        report(subject, x, **shared)


if __name__ == "__main__":
    main()

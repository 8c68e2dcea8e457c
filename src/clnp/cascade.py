"""All ended tasks on one input: each runs only the neurons that it added (see portions.py)."""

from collections.abc import Mapping
from typing import Any

import torch

from .blocks import Pass
from .body import Body
from .ledger import Ledger
from .portions import other_path

SHOWN = "portions"


def run_all(
    body: Body, ledger: Ledger, *, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The outputs of every ended task, by name, in evaluation mode."""
    stage, outputs = body.stage, {}
    with body.lock, body.evaluating():
        if stage.showing != SHOWN:
            with torch.inference_mode(False):  # What is shown outlives the caller's mode.
                _show(body, ledger)
        stage.running = Pass.PORTION
        try:
            for number, task in enumerate(ledger.tasks):
                stage.turn = number
                outputs[task] = body.model(*args, **kwargs)
                for path, (num_passes, _) in stage.kept.items():
                    if num_passes != number + 1:
                        raise other_path(path)
        finally:
            stage.running, stage.kept = Pass.IDLE, {}
    return outputs


def _show(body: Body, ledger: Ledger) -> None:
    """Lay out what every ended task added to every layer."""
    widths = [dict.fromkeys(ledger.sizes, 0), *(row.widths for row in ledger.rows)]
    until = [widths[: number + 2] for number in range(len(ledger.rows))]
    body.show_nothing()
    for part in body.parts.values():
        part.show_portions([part.portion_of(widths) for widths in until])
    body.stage.showing = SHOWN

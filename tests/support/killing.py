"""Runs that are really killed: `python killing.py FOLDER SEED NUM_KILLS` prints what happened.

The run is carried out in forks of this process, which has paid for importing PyTorch. Each fork
goes a random part further, by what it has told, so that it is the same on a busy machine, and gets
SIGKILL at a random moment then, or as soon as a file is being written. What remains is gone on with
until one of them lives to the end.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

RECIPE = """
[stream]
kind = "permuted"
dataset = "digits"
num_tasks = 3
[network]
widths = [40, 40]
head = "single"
[learner]
margin = 3.0
alphas = [1e-3, 2e-3]
search_on = "first"
[learner.training]
epochs = 12
lr = 0.01
patience = 4
[learner.fine_tuning]
epochs = 2
lr = 1e-3
rounds = 2
"""


def fork(*arguments: str) -> int:
    """The process that carries the command out."""
    from clnp.cli.app import main

    process = os.fork()
    if process == 0:
        os._exit(main([*arguments, "--quiet", "--json", "--checkpoint-every", "0"]))
    return process


def is_alive(process: int) -> bool:
    """Whether the process has not ended; if it has, its exit code must be 0."""
    found, code = os.waitpid(process, os.WNOHANG)
    if found and code:
        sys.exit(f"a run ended with {code}")
    return not found


def size_of(events: Path) -> int:
    """How much a run has told so far, in bytes."""
    return events.stat().st_size if events.exists() else 0


def main(folder: str, seed: str, num_kills: str) -> None:
    # Everything that a fork would have to import is imported once, here.
    import torch

    torch.optim.SGD([torch.zeros(1)])  # Imports a lot, once.
    torch.set_num_threads(1)
    random.seed(int(seed))
    recipe = Path(folder, "recipe.toml")
    recipe.write_text(RECIPE)
    whole, broken = Path(folder, "whole"), Path(folder, "broken")
    sys.stdout.flush()
    devnull = os.open(os.devnull, os.O_WRONLY)
    stdout = os.dup(1)
    os.dup2(devnull, 1)
    start = time.monotonic()
    process = fork("run", str(recipe), "--out", str(whole))
    while is_alive(process):
        time.sleep(0.01)
    told, seconds = size_of(whole / "events.jsonl"), time.monotonic() - start

    kills = {"at random": 0, "while writing": 0, "before the first checkpoint": 0}
    while True:
        begun = (broken / "config.json").exists()
        if not begun and broken.exists():
            for file in broken.iterdir():
                file.unlink()
        command = ("resume", str(broken)) if begun else ("run", str(recipe), "--out", str(broken))
        process = fork(*command)
        if sum(kills.values()) >= int(num_kills):
            while is_alive(process):
                time.sleep(0.01)
            break
        writing = random.random() < 0.5
        until = size_of(broken / "events.jsonl") + random.uniform(0, 2 * told / int(num_kills))
        while alive := is_alive(process):
            if size_of(broken / "events.jsonl") > until:
                if not writing:
                    time.sleep(random.uniform(0, 0.01 * seconds))
                    break
                if list(broken.glob(".clnp-*")):
                    break
        if not alive:
            break
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        if not (broken / "checkpoint.safetensors").exists():
            kills["before the first checkpoint"] += 1
        elif broken.exists() and list(broken.glob(".clnp-*")):
            kills["while writing"] += 1
        else:
            kills["at random"] += 1
    os.dup2(stdout, 1)
    print(json.dumps({"kills": kills, "seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])

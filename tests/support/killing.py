"""Kill a run many times: `python killing.py FOLDER SEED NUM_KILLS` prints the number of kills.

The run works in forks of this process, which has imported PyTorch once. Each fork gets SIGKILL at a
random moment, or as soon as a file is being written, after its log has grown by a random number of
bytes: bytes instead of seconds, so that a busy machine does not change the test. The next fork
resumes the run, until one of them finishes it.
"""

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
num_tasks = 2
[network]
widths = [40, 40]
head = "single"
[learner]
margin = 3.0
alphas = [1e-3, 2e-3]
search_on = "first"
[learner.training]
epochs = 8
lr = 0.01
patience = 4
[learner.fine_tuning]
epochs = 2
lr = 1e-3
rounds = 2
"""


def fork(*arguments: str) -> int:
    """Return the process that runs the command."""
    from clnp.cli.app import main

    process = os.fork()
    if process == 0:
        os._exit(main([*arguments, "--quiet", "--json", "--checkpoint-every", "0"]))
    return process


def is_alive(process: int) -> bool:
    """Whether the process still works, after a short pause. If not, its exit code must be 0."""
    time.sleep(0.001)
    found, code = os.waitpid(process, os.WNOHANG)
    if found and code:
        sys.exit(f"a run ended with {code}")
    return not found


def size_of(events: Path) -> int:
    """Return the length of a log in bytes."""
    return events.stat().st_size if events.exists() else 0


def main(folder: str, seed: str, num_kills: str) -> None:
    # Everything that a fork would have to import is imported once, here.
    import torch

    torch.optim.SGD([torch.zeros(1)])
    torch.set_num_threads(1)
    random.seed(int(seed))
    recipe = Path(folder, "recipe.toml")
    recipe.write_text(RECIPE)
    whole, broken = Path(folder, "whole"), Path(folder, "broken")
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    start = time.monotonic()
    process = fork("run", str(recipe), "--out", str(whole))
    while is_alive(process):
        pass
    num_bytes, seconds = size_of(whole / "events.jsonl"), time.monotonic() - start

    num_killed = 0
    while True:
        has_config = (broken / "config.json").exists()
        if not has_config and broken.exists():
            for file in broken.iterdir():
                file.unlink()
        command = ("resume", str(broken))
        if not has_config:
            command = ("run", str(recipe), "--out", str(broken))
        process = fork(*command)
        if num_killed >= int(num_kills):
            while is_alive(process):
                pass
            break
        writing = random.random() < 0.5
        more = random.uniform(0, 2 * num_bytes / int(num_kills))
        until = size_of(broken / "events.jsonl") + more
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
        num_killed += 1
    os.dup2(stdout, 1)
    print(num_killed)


if __name__ == "__main__":
    main(*sys.argv[1:])

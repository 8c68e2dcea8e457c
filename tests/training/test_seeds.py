import itertools
import os
import subprocess
import sys

import torch

from clnp.training.rng import derive
from support.paths import SRC


def test_values_stay_what_they_are():
    assert derive(0, "split", "flowers") == 1880624096771054623
    assert derive(7) == 3193050612831425908


def test_purposes_and_seeds_are_told_apart():
    purposes = [(), ("a",), ("b",), ("a", "b"), ("b", "a"), ("ab",), ("a", 1), ("a", "1"), ("a,b",)]
    cases = list(itertools.product((0, 1, 2**40), purposes))
    assert len({derive(seed, *purpose) for seed, purpose in cases}) == len(cases)
    assert derive(1, 2) != derive(12)


def test_seeds_fit_every_generator():
    seeds = [derive(0, number) for number in range(300)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62
    torch.Generator().manual_seed(max(seeds))


def test_the_order_of_keys_does_not_matter():
    assert derive(0, {"fc1": 0.1, "fc2": 0.2}) == derive(0, {"fc2": 0.2, "fc1": 0.1})
    assert derive(0, {"fc1": 0.1, "fc2": 0.2}) != derive(0, {"fc1": 0.2, "fc2": 0.1})


def test_another_process_derives_the_same():
    code = "from clnp.training.rng import derive\n"
    code += "print(derive(3, 'order', 2, 0.1, {'b': 1, 'a': None}))"
    environment = os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": str(SRC)}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) == derive(3, "order", 2, 0.1, {"b": 1, "a": None})

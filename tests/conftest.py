import os
import random
import signal

# The tests are small: on a busy machine, threads that wait for one another take most of the time.
# Processes that tests start inherit this from the environment.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch
from hypothesis import settings

# `quick` tries the same examples every time. `CLNP_HYPOTHESIS=thorough` looks for new ones.
settings.register_profile("quick", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("CLNP_HYPOTHESIS", "quick"))

torch.set_num_threads(1)

# No test is about a power cut, so none waits for the disk.
os.fsync = lambda descriptor: None

# In the background of a shell, or under nohup, signals are ignored, and processes that tests start
# inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


# What a test draws must not depend on the tests that ran before it in the same process. Another
# seed (`CLNP_SEED=7 make test`) shows tests that pass by chance.
SEED = int(os.environ.get("CLNP_SEED", "0"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


@pytest.fixture
def style():
    """What figures of a report are drawn in."""
    from clnp.report.draw import drawing

    with drawing():
        yield

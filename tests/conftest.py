import os

import torch
from hypothesis import settings

# `quick` tries the same examples every time. `CLNP_HYPOTHESIS=thorough` looks for new ones.
settings.register_profile("quick", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("CLNP_HYPOTHESIS", "quick"))

# The workers of pytest-xdist have one core each.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

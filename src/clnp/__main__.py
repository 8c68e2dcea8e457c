"""`python -m clnp` is `clnp`."""

import sys

from .cli import main

sys.exit(main())

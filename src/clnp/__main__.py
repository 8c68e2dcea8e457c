"""`python -m clnp` is `clnp`."""

from .cli import run

run()

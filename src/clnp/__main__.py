"""`python -m clnp` is `clnp`."""

from clnp.cli.app import run

run()

"""The command `clnp`."""

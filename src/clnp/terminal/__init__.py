"""What the terminal shows: progress, `clnp inspect` and `clnp watch`."""

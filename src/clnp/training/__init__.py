"""Tasks, batches, and one fit of a network to a task."""

"""Tasks and their data in batches, settings of a training, and one fit of a network to a task."""

"""Several runs together: seeds, methods, and processes side by side."""

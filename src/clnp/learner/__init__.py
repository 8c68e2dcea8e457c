"""Algorithm 1 of the paper for one task: the grid, the margin, the sparsest candidate."""

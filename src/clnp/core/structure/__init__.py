"""Which layers of a model share neurons.

`discover` runs the model once on meta tensors, records its operations, and works out the groups of
neurons, the rows and columns of every weight, and everything that cannot be sliced.
"""

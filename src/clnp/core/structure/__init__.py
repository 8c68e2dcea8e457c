"""Discovery: which layers of a model share neurons.

`discover` runs a copy of the model on an example, follows its neurons through every operation
(`trace`, `rules`), and tests the result on narrower copies (`replay`, `purity`). `kinds` is the
table of layers that can be sliced by neuron.
"""

"""Weights in blocks, sorted by owner, and the passes of a network on them.

`body` runs the passes; `layer` and `head` are what the layers of a model become.
"""

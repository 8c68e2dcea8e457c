"""Data sets, streams of tasks made from them, and the networks of the paper.

A new data set is one entry in `datasets.DATASETS`.
"""

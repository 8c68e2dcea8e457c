"""Data sets, streams of tasks made of them, and the models of the paper.

A data set is one entry in `catalog`.
"""

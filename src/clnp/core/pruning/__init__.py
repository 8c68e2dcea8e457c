"""Which neurons a task keeps: their activity, the threshold within the margin, and the pruned
networks that are scored on the way.
"""

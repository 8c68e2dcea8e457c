"""Runs, series and comparisons as one HTML page and figures for a paper."""

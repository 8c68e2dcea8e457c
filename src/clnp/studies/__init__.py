"""Runs started from recipes: one run, several seeds, several methods, and their verification."""

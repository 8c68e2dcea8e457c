"""Runs started from recipes: one run, several seeds, several methods, and their verification.

`launch` starts and resumes one run, `series` several seeds, and `comparison` several methods;
runs at the same time are `jobs`. `study` reads and writes their files, `summaries` makes their
tables, and `verify` verifies them. `console` shows their progress.
"""

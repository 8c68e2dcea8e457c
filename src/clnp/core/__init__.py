"""The network that cannot forget: `ContinualNet`, and what it is made of.

Nothing here reads or writes a file or a terminal, and nothing imports a room above it: the folder
works alone, with `errors.py`, `text.py` and `checks.py` beside it.
"""

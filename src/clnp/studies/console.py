"""What shows the progress of runs."""

import sys
from pathlib import Path

from clnp.records import Event
from clnp.text import printable


class Console:
    """Shows warnings only. Derive from it to show progress."""

    def begin(self, path: Path) -> None:
        """Show the run at `path` from now on."""

    def show(self, event: Event) -> None:
        """Show an event of a run."""

    def download(self, file: str, num_bytes: int, total: int | None) -> None:
        """Show the progress of a download."""

    def say(self, text: str) -> None:
        """Show a line."""

    def warn(self, text: str) -> None:
        """Show a line that the user must see even without progress."""
        print(f"clnp: {printable(text)}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""

"""The lines of a file that somebody appends to, cuts off, and appends to again."""

import os
from pathlib import Path

NUM_SEEN = 512
"""Bytes before the place that was read up to, by which it is known again."""


class Tail:
    """Reads what has been added to a file, line by line, as often as it is asked to.

    It only ever reads. A line counts once it is whole. Where the file has been cut off since, or
    replaced, it is read from its beginning; a resumed run may have grown past the old place by
    then, so that its size alone does not tell. Network file systems may show zeros in place of
    what has not arrived yet: at the end of the file they are read again the next time. A line
    with zeros that others follow is damaged, and left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place = 0
        self._seen = b""

    def read(self) -> tuple[list[bytes], bool]:
        """The lines that are new, and whether they are all that there are.

        Nothing is new where the file is not there, or cannot be read for the moment.
        """
        try:
            with self.path.open("rb") as file:
                anew = not self._continues(file.fileno())
                if anew:
                    self._place, self._seen = 0, b""
                file.seek(self._place)
                data = file.read()
        except OSError:
            return [], False
        lines = data.split(b"\n")[:-1]
        while lines and b"\0" in lines[-1]:
            lines.pop()
        whole = data[: sum(len(line) + 1 for line in lines)]
        self._place += len(whole)
        self._seen = (self._seen + whole)[-NUM_SEEN:]
        return [line for line in lines if b"\0" not in line], anew

    def _continues(self, descriptor: int) -> bool:
        """Whether what was read before is still there."""
        if os.fstat(descriptor).st_size < self._place:
            return False
        os.lseek(descriptor, self._place - len(self._seen), os.SEEK_SET)
        return os.read(descriptor, len(self._seen)) == self._seen

"""Replace files atomically: a path has the old file or the new one, never a part."""

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

TEMPORARY = ".clnp-"
"""The prefix of names of files that are not complete."""


def replace_file(
    path: Path,
    data: bytes,
    *,
    check: Callable[[Path], None] = lambda written: None,
    durable: bool = True,
) -> None:
    """Write `data` to `path` through a temporary file beside it that is renamed when complete.

    `check` is called with that file first. If it raises, nothing is replaced. Waiting for the disk
    makes it safe against a power cut; a file that is not `durable` may then be empty.
    """
    if not path.parent.is_dir():
        missing = errno.ENOTDIR if path.parent.exists() else errno.ENOENT
        raise OSError(missing, os.strerror(missing), str(path.parent))
    if path.is_dir():
        raise OSError(errno.EISDIR, "this is a directory. Give the name of a file", str(path))
    # Not by tempfile, whose files other users cannot read: the umask cannot be read safely.
    name = path.parent / f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(name, flags, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        check(name)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def left_over(folder: Path) -> Iterator[Path]:
    """Yield incomplete files of processes that no longer run."""
    for path in folder.glob(f"{TEMPORARY}*"):
        owner = path.name.removeprefix(TEMPORARY).partition("-")[0]
        if not (owner.isdecimal() and is_running(int(owner))):
            yield path


def is_running(process: int) -> bool:
    """Whether a process of this machine has not ended; False where that cannot be found out."""
    if os.name != "posix":  # Elsewhere, asking would be a signal.
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True

"""Files that are replaced as a whole: at every moment the old one or the new one, never a part."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

TEMPORARY = ".clnp-"
"""What the names of files begin with that are not complete yet."""


def replace_file(
    path: Path, data: bytes, *, check: Callable[[Path], None] = lambda written: None
) -> None:
    """Write `data` to `path` through a temporary file beside it that is renamed when complete.

    `check` is called with that file first: if it raises, all is as it was before.
    """
    if not path.parent.is_dir():
        missing = errno.ENOTDIR if path.parent.exists() else errno.ENOENT
        raise OSError(missing, os.strerror(missing), str(path.parent))
    if path.is_dir():
        raise OSError(errno.EISDIR, "this is a directory; give the name of a file", str(path))
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=TEMPORARY)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        check(Path(name))
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise

"""The bytes of a data file, whole, gunzipped and held against what was published."""

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

from .errors import DataError

GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Published:
    """What is known about a file: its name, and its size and MD5 when it is not compressed."""

    name: str
    size: int
    md5: str


def stored(path: Path, published: Published | None = None) -> bytes:
    """The bytes of the file, gunzipped if they are gzipped, whatever its name.

    A file may be another one than was published, a smaller one for instance. But one that is as
    long as the published file and has another checksum is damaged.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    if content.startswith(GZIP):
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise DataError(f"{path} is a damaged gzip file, get it again: {error}") from error
    if published is not None and len(content) == published.size:
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != published.md5:
            raise DataError(
                f"{path} is damaged or of another data set, get it again: its MD5 is {found}, and "
                f"that of the published {published.name} is {published.md5}"
            )
    return content

"""Files from the network, whole and with the published checksum, or not at all."""

import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from pathlib import Path, PurePosixPath

from .errors import DataError

OnProgress = Callable[[str, int, int | None], None]
"""Is told the name of a file, how many bytes are here, and of how many, if that is known."""

CHUNK = 1 << 18


def fetch(
    url: str,
    path: Path,
    *,
    checksum: str,
    on_progress: OnProgress | None = None,
    timeout: float = 30.0,
) -> None:
    """Write what is at `url` to `path` if its checksum, `"md5:..."` for example, is that one.

    Whatever goes wrong, `path` is as it was. `timeout` is how many seconds of silence are borne.
    """
    algorithm, _, expected = checksum.partition(":")
    hashed = hashlib.new(algorithm, usedforsecurity=False)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file, closing(_chunks(url, timeout)) as chunks:
            for chunk, done, total in chunks:
                hashed.update(chunk)
                file.write(chunk)
                if on_progress is not None:
                    on_progress(path.name, done, total)
        if hashed.hexdigest() != expected:
            raise DataError(
                f"{url} is not the published file, and was not kept: its {algorithm} is "
                f"{hashed.hexdigest()}, and {expected} was expected"
            )
        os.replace(part, path)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _chunks(url: str, timeout: float) -> Generator[tuple[bytes, int, int | None]]:
    """The bytes at `url` in pieces, each with the bytes so far and their total; empty at first."""
    done = 0
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "clnp"})
        with urllib.request.urlopen(request, timeout=timeout) as response:
            length = response.headers.get("Content-Length")
            total = int(length) if length is not None and length.isdecimal() else None
            yield b"", 0, total
            while chunk := response.read(CHUNK):
                done += len(chunk)
                yield chunk, done, total
    except urllib.error.HTTPError as error:
        error.close()
        raise DataError(
            f"{url} cannot be downloaded: the server says {error.code} {error.reason}"
        ) from error
    except urllib.error.URLError as error:
        raise DataError(f"{url} cannot be reached: {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"{url} broke off after {done} bytes: {error}") from error
    if total is not None and done != total:
        raise DataError(f"{url} broke off after {done} of {total} bytes")


def extract(archive: Path, members: Mapping[str, Path]) -> None:
    """Write members of a gzipped tar archive to the paths that are given for them.

    Nothing but these is read, and no path comes from the archive.
    """
    wanted = dict(members)
    try:
        with tarfile.open(archive, "r:gz") as file:
            for member in file:
                path = wanted.get(str(PurePosixPath(member.name)))
                source = file.extractfile(member) if path is not None and member.isreg() else None
                if path is None or source is None:
                    continue
                with source, path.open("wb") as target:
                    shutil.copyfileobj(source, target, CHUNK)
                del wanted[str(PurePosixPath(member.name))]
                if not wanted:
                    break
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}") from error
    if wanted:
        raise DataError(f"{archive} does not hold {', '.join(wanted)}")

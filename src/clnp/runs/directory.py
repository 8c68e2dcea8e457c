"""A run in a directory: created, locked, logged to, and read back.

    config.json             the experiment: model, tasks, settings, seed
    recipe.toml             the recipe with every default, if the run was started from one
    environment.json        versions, hardware and commit, one entry for each start
    events.jsonl            the log: every epoch, candidate, pruning curve and task
    checkpoint.safetensors  the network, the open task and its progress
    status.json             how far the run is, for `clnp watch`
    result.json             scores after every task, capacity, certificates, timings

The checkpoint is replaced atomically, so it is whole however the process ends. Events that were
logged after it are removed when the run resumes, and logged again.
"""

import contextlib
import errno
import json
import os
import shlex
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from clnp.checks import check_path
from clnp.errors import ClnpError, RunError
from clnp.plain import UnreadableError, json_reason, read, to_json
from clnp.records import (
    FORMAT,
    Environment,
    EpochEnded,
    Event,
    RunConfig,
    RunResult,
    event_to_plain,
    read_event,
)
from clnp.storage.atomic import TEMPORARY, left_over, replace_file
from clnp.text import one_line, shortened

from .metrics import metrics_of

CHECKPOINT = "checkpoint.safetensors"
EVENTS = "events.jsonl"
RESULT = "result.json"
STATUS = "status.json"
CONFIG = "config.json"
RECIPE = "recipe.toml"
ENVIRONMENT = "environment.json"
LOCK = ".lock"
DESCRIPTION = (RECIPE, ENVIRONMENT, CONFIG)
"""The files that a run at work can write again."""
NAME_ONE = "Give the directory of a run, a series or a comparison."
LONGEST_SHOWN = 60
"""Characters of a path that no file can have."""

T = TypeVar("T")


class Run:
    """A run directory that this process has locked until it closes it."""

    def __init__(self, path: Path, lock: FileLock) -> None:
        self.path = path
        self._lock, self._lock_id = lock, _lock_id(path)
        self._files = {
            name: (path / name).read_bytes() for name in DESCRIPTION if (path / name).is_file()
        }
        self._log: FileIO | None = None
        self._before = 0.0
        self._since = time.monotonic()

    @staticmethod
    def create(path: str | os.PathLike[str], files: Mapping[str, str]) -> "Run":
        """Create a run with these files in a directory that does not exist or is empty."""
        directory = expanded(path)
        with writing(directory):
            if directory.exists() and not directory.is_dir():
                raise RunError(f"{directory} is a file. Choose a directory that does not exist.")
            directory.mkdir(parents=True, exist_ok=True)
            run = Run(directory, locked(directory))
            problem = _problem(directory)
            if problem is not None:
                run.close()
                raise RunError(problem)
            if (directory / EVENTS).exists():
                # The empty log stays: it shows that files of trackers are those of a run.
                (directory / EVENTS).write_bytes(b"")
                (directory / STATUS).unlink(missing_ok=True)
            # The config comes last: a directory with a config has all that resuming needs.
            for name, text in sorted(files.items(), key=lambda item: item[0] == CONFIG):
                run._replace(name, text.encode())
        return run

    @staticmethod
    def open(path: str | os.PathLike[str]) -> "Run":
        """Open an existing run to resume it."""
        directory = expanded(path)
        read_config(directory)
        with writing(directory):
            run = Run(directory, locked(directory))
            for file in left_over(directory):
                file.unlink(missing_ok=True)
        return run

    def close(self) -> None:
        """Release the directory."""
        if self._log is not None:
            self._log.close()
            self._log = None
        self._lock.release()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def seconds(self) -> float:
        """The working time of the run in seconds, over all of its starts."""
        return self._before + time.monotonic() - self._since

    def resume_log(self, num_bytes: int = 0, seconds: float = 0.0) -> None:
        """Continue the log after its first bytes, and the clock from these seconds."""
        self._before, self._since = seconds, time.monotonic()
        with writing(self.path):
            # Unbuffered: bytes that cannot be written must not be written again on closing.
            self._log = (self.path / EVENTS).open("a+b", buffering=0)
            if self._log.tell() > num_bytes:
                self._log.truncate(num_bytes)

    def flush_log(self) -> int:
        """Write the log to the disk, and return its length in bytes.

        Files of the run that were removed while it was working are written again.
        """
        assert self._log is not None
        with writing(self.path):
            self._restore()
            os.fsync(self._log.fileno())
            return os.fstat(self._log.fileno()).st_size

    def _restore(self) -> None:
        """Write the log and the description again if they were removed."""
        assert self._log is not None
        if _lock_id(self.path) != self._lock_id:
            # The lock is gone as well, so the directory may belong to another run by now.
            raise RunError(removed(self.path))
        lost = [name for name in self._files if not (self.path / name).exists()]
        for name in lost:
            self._replace(name, self._files[name])
        file = self.path / EVENTS
        if not (file.exists() and os.path.samestat(os.fstat(self._log.fileno()), file.stat())):
            lost.append(EVENTS)
            self._log.seek(0)
            replace_file(file, self._log.readall())
            self._log.close()
            self._log = file.open("a+b", buffering=0)
        if lost:
            warn(restored(self.path, lost))

    def _replace(self, name: str, data: bytes) -> None:
        replace_file(self.path / name, data)
        if name in DESCRIPTION:
            self._files[name] = data

    def log(self, event: Event) -> Event:
        """Append an event to the log, and return it with the time of the run."""
        assert self._log is not None
        timed = replace(event, at=round(self.seconds, 3))
        line = to_json(event_to_plain(timed)).encode() + b"\n"
        with writing(self.path):
            while line:
                line = line[self._log.write(line) :]
        return timed

    def write(self, name: str, value: Any) -> None:
        """Replace a JSON file of the run atomically."""
        with writing(self.path):
            self._replace(name, (to_json(value, indent=1) + "\n").encode())

    def reopen(self, files: Mapping[str, str]) -> None:
        """Replace the description of a run, finished or not, by these files, in their order.

        If the process is killed in between, the run is unfinished and can be resumed.
        """
        result = read_result(self.path)
        if result is not None and result.finished:
            self.write(RESULT, replace(result, finished=False))
        with writing(self.path):
            for name, text in files.items():
                self._replace(name, text.encode())

    def withdraw(self) -> None:
        """Remove a run that has no progress, so that it can be started again."""
        with writing(self.path):
            for name in (CONFIG, ENVIRONMENT, RESULT, CHECKPOINT):
                (self.path / name).unlink(missing_ok=True)

    def add_environment(self, environment: Environment) -> None:
        """Record the environment of this start."""
        self.write(ENVIRONMENT, [*read_environments(self.path), environment])


def _problem(directory: Path) -> str | None:
    """Return why no run can be created in a directory, if there is a reason."""
    if (directory / CONFIG).exists():
        return already_a_run(directory)
    if has_progress(directory):
        return (
            f"{directory} contains a run without its {CONFIG}. Restore a copy of the file, or move "
            "the directory away to start again."
        )
    # A process that was killed before it wrote the config may have left these files. A withdrawn
    # run leaves its log, and the files of trackers.
    if not _only_begun(directory) and not (directory / EVENTS).exists():
        return f"{directory} is not empty. Choose another directory."
    return None


def _only_begun(directory: Path) -> bool:
    """Whether a directory has only files that are written before the config."""
    names = [file.name for file in directory.iterdir()]
    return all(name in (LOCK, RECIPE, EVENTS) or TEMPORARY in name for name in names)


def may_become_a_run(path: Path) -> bool:
    """Whether a path has nothing yet, or what a run writes first."""
    if not os.path.lexists(path):
        return True
    with contextlib.suppress(OSError):
        return _only_begun(path)
    return False


def locked(directory: Path) -> FileLock:
    """Lock a directory; raise a `RunError` if another process has locked it."""
    # The kernel releases the lock when the process ends, however it ends.
    lock = FileLock(directory / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunError(
            f"{directory} is in use by another process. Wait for it, or stop it."
        ) from None
    return lock


def _lock_id(path: Path) -> tuple[int, int] | None:
    """Return what identifies the lock of a directory; None if it has none any more."""
    try:
        found = (path / LOCK).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def removed(path: Path) -> str:
    """Return the message for a directory that was removed under a run."""
    return (
        f"{path} was removed or replaced while the run was working, and with it what was saved. "
        "Start again, in a directory that stays."
    )


def restored(path: Path, names: Iterable[str]) -> str:
    """Return the warning that files disappeared, and have been written again."""
    return (
        f"{', '.join(names)} of {path} disappeared while it was in use. They have been written "
        "again; stop the run with Ctrl-C before you remove it."
    )


def warn(text: str) -> None:
    """Warn the user of something that does not end the run."""
    warnings.warn(one_line(text), RuntimeWarning, stacklevel=2)


def has_progress(path: Path) -> bool:
    """Whether the run has an epoch or more, which starting it again would lose."""
    events = read_events(path)
    if not events or any(isinstance(event, EpochEnded) for event in events):
        return bool(events) or (path / CHECKPOINT).exists() or (path / RESULT).exists()
    # Joint training records each task before its first epoch.
    result = read_result(path)
    return result is not None and any(task.score is not None for task in result.tasks)


def already_a_run(path: Path) -> str:
    """Return the message for a directory that already contains a run."""
    return (
        f"{path} already contains a run. Resume it with {resume_command(path)}, or choose another "
        "directory."
    )


def missing_run(path: Path) -> str:
    """Return the message for a path without a run."""
    return f"{path} does not exist. {NAME_ONE}"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into a `RunError` that names the run."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "Free some disk space" if full else "Make the directory writable"
        if os.path.exists(path / CONFIG):
            remedy += f", and resume with {resume_command(path)}."
        else:
            remedy += " and start again." if full else ", or choose another one."
        raise RunError(f"cannot write to {path}: {reason}. {remedy}") from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an error caused by the contents of files into a `RunError` that names the run."""
    try:
        yield
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, RecursionError) as error:
        if isinstance(error, ClnpError):
            raise
        raise RunError(
            f"the files of {path} are damaged, or from another version of clnp: {error!r}. Use the "
            "version that wrote them, or start a new run."
        ) from error


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return the path with `~` expanded; raise a `RunError` if no file can have it."""
    check_path("the path", path)
    found = Path(os.path.expanduser(path))
    try:
        os.lstat(found)
    except ValueError:  # A NUL character, or one that the file system cannot encode.
        raise RunError(
            f"{os.fspath(path)!r} is not a path. Leave out the odd characters."
        ) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise RunError(
                f"{shortened(os.fspath(path), LONGEST_SHOWN)} is too long for a path, with "
                f"{len(os.fspath(path))} characters. Choose a shorter one."
            ) from None
    return found


def name_of(path: Path) -> str:
    """Return the name of a directory, also of `.`."""
    return Path(os.path.abspath(path)).name


def command(verb: str, path: str | os.PathLike[str]) -> str:
    """Return a command line about a run, quoted for a shell."""
    text = os.fspath(path)
    return f"clnp {verb} {shlex.quote('./' + text if text.startswith('-') else text)}"


def resume_command(path: str | os.PathLike[str]) -> str:
    """Return how to resume a run, a series or a comparison: a command, or its Python program."""
    directory = expanded(path)
    if os.path.isfile(directory / CONFIG) and not os.path.isfile(directory / RECIPE):
        return "the Python program that started it"
    return f"`{command('resume', path)}`"


def read_config(path: str | os.PathLike[str]) -> RunConfig:
    """Return the config of a run; raise a `RunError` if there is none."""
    directory = expanded(path)
    if not os.path.exists(directory):
        raise RunError(missing_run(directory))
    if not os.path.isdir(directory):
        raise RunError(f"{directory} is not a directory. {NAME_ONE}")
    if not os.path.isfile(directory / CONFIG):
        if os.path.isfile(directory / EVENTS) and not has_progress(directory):
            raise RunError(
                f"{directory} has no run: it failed before its first epoch. Start it again."
            )
        raise RunError(f"{directory} is not a run: it has no {CONFIG}. {NAME_ONE}")
    config = read_record(directory / CONFIG, RunConfig)
    if config is None or config.format is None:
        raise RunError(_damaged(directory / CONFIG, "it has no format"))
    if config.format != FORMAT:
        raise RunError(
            f"{directory} has format {config.format}, but this version of clnp reads format "
            f"{FORMAT}. Use the version that wrote it."
        )
    return config


def read_result(path: Path) -> RunResult | None:
    """Return the result of a run so far; None if there is none yet.

    Its metrics follow from the scores, also if an older version wrote it without them.
    """
    found = read_record(path / RESULT, RunResult)
    return None if found is None else replace(found, metrics=metrics_of(found.scores))


def checkpoint_problem(path: Path) -> str | None:
    """Return what is wrong with the checkpoint of a run with an ended task, as a sentence.

    Only its length and its header are read, without PyTorch. `clnp verify` reads all of it.
    """
    file = path / CHECKPOINT
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(min(size, os.fstat(opened.fileno()).st_size)))
            ends = [entry["data_offsets"][1] for n, entry in header.items() if n != "__metadata__"]
            found, expected = os.fstat(opened.fileno()).st_size, 8 + size + max(ends, default=0)
        if found == expected:
            return None
        reason = f"is damaged: it has {found} bytes instead of {expected}"
    except FileNotFoundError:
        reason = "is missing"
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        reason = "is damaged: its header cannot be read"
    return f"{CHECKPOINT} {reason}, and with it the network. Restore a copy of it."


def read_environments(path: Path) -> tuple[Environment, ...]:
    """Return the environment of every start of a run."""
    found = []
    for entry in read_json(path / ENVIRONMENT, list) or ():
        with contextlib.suppress(UnreadableError):
            found.append(read(Environment, entry))
    return tuple(found)


def last_environment(path: Path) -> Environment:
    """Return the environment of the last start of a run."""
    environments = read_environments(path)
    return environments[-1] if environments else Environment()


def read_record(file: Path, kind: type[T]) -> T | None:
    """Return the record in a JSON file; None if the file does not exist."""
    data = read_json(file, dict)
    return None if data is None else read(kind, data)


def read_json(file: Path, kind: type[T]) -> T | None:
    """Return the contents of a JSON file, a list or a dict; None if it does not exist."""
    try:
        data = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror}. Make it readable.") from error
    except (ValueError, RecursionError) as error:
        raise RunError(_damaged(file, json_reason(error))) from error
    if not isinstance(data, kind):
        raise RunError(_damaged(file, f"it contains a {type(data).__name__}"))
    return data


def _damaged(file: Path, reason: str) -> str:
    remedy = "Restore a copy of it, or start a new run."
    if file.name == RESULT:
        remedy = "Remove it and resume the run, which writes it again."
    return f"{file} is damaged: {reason}. {remedy}"


def read_events(path: str | os.PathLike[str], num_bytes: int | None = None) -> list[Event]:
    """Return the events of a run, or those in the first bytes of its log.

    Damaged lines are left out: the last one may be half written.
    """
    try:
        lines = (expanded(path) / EVENTS).read_bytes()[:num_bytes].splitlines()
    except OSError:
        return []
    events = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            events.append(read_event(json.loads(line)))
    return events

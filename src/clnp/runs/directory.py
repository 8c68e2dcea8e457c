"""A run: a directory that holds all that is needed to read it, to go on with it and to verify it.

    config.json             what is learnt and how, with every default spelt out
    recipe.toml             the same as a recipe, where the run was made from one
    environment.json        versions, hardware and commit, once for each start
    events.jsonl            every epoch, candidate, pruning curve and task, one in a line
    checkpoint.safetensors  the network, the task that is being learnt and how far it has come
    result.json             scores of every task after every task, capacity, certificates, timings

Whatever happens to the process, the checkpoint is whole: either the one before or the one after.
Events that are younger than the checkpoint are cut off when the run goes on, and come again.
"""

import contextlib
import errno
import json
import math
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from clnp.errors import ClnpError, RunError
from clnp.storage.atomic import TEMPORARY, left_over, replace_file
from clnp.training.events import Event

CHECKPOINT = "checkpoint.safetensors"
EVENTS = "events.jsonl"
RESULT = "result.json"
CONFIG = "config.json"
RECIPE = "recipe.toml"
ENVIRONMENT = "environment.json"
LOCK = ".lock"
FORMAT = 1
"""Version of the files in a run directory."""
NUMBERS = ("score", "best_score", "test_score", "scores", "thresholds")
"""What is made of numbers in a result, also where the file has text for them."""
NAME_ONE = "name the directory of a run, a series or a comparison"


class Run:
    """A run directory, held by this process alone until it is closed.

    `seconds` is how long the run has been at work, all starts taken together.
    """

    def __init__(self, path: Path, lock: FileLock) -> None:
        self.path = path
        self._lock = lock
        self._events: FileIO | None = None
        self._before = 0.0
        self._since = time.monotonic()

    @staticmethod
    def create(path: str | os.PathLike[str], files: Mapping[str, str]) -> "Run":
        """A new run with these files in it; the directory must not be there, or be empty."""
        place = expanded(path)
        with writing(place):
            if place.exists() and not place.is_dir():
                raise RunError(f"{place} is a file; give the run a directory that is not there yet")
            place.mkdir(parents=True, exist_ok=True)
            run = Run._locked(place)
            if (place / CONFIG).exists():
                run.close()
                raise RunError(taken(place))
            # A process that was killed before the config was there may have left these.
            ours = (LOCK, RECIPE)
            found = [f.name for f in place.iterdir()]
            others = [n for n in found if n not in ours and TEMPORARY not in n]
            # One that was withdrawn has its events, and what trackers keep, still there.
            if others and (EVENTS not in found or has_learnt(place)):
                run.close()
                remedy = "is not empty; give the run a directory of its own"
                if has_learnt(place):
                    remedy = (
                        f"holds a run whose {CONFIG} is missing; put a copy of it back, or move "
                        "the directory away, and it is run again"
                    )
                raise RunError(f"{place} {remedy}")
            if EVENTS in found:
                (place / EVENTS).write_bytes(b"")
            # The config comes last: where it is, all that a run needs to be gone on with is.
            for name, text in sorted(files.items(), key=lambda item: item[0] == CONFIG):
                replace_file(place / name, text.encode())
        return run

    @staticmethod
    def open(path: str | os.PathLike[str]) -> "Run":
        """An existing run, to go on with it."""
        place = expanded(path)
        read_config(place)
        with writing(place):
            run = Run._locked(place)
            for path in left_over(place):
                path.unlink(missing_ok=True)
        return run

    @staticmethod
    def _locked(place: Path) -> "Run":
        return Run(place, locked(place))

    def close(self) -> None:
        """Let go of the directory."""
        if self._events is not None:
            self._events.close()
            self._events = None
        self._lock.release()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def seconds(self) -> float:
        """How long the run has been at work, all starts taken together."""
        return self._before + time.monotonic() - self._since

    def go_on_from(self, state: Mapping[str, Any] | None) -> None:
        """Cut off the events that came after the checkpoint with this state; None: all of them."""
        size = 0 if state is None else state["num_event_bytes"]
        self._before = 0.0 if state is None else state["seconds"]
        self._since = time.monotonic()
        with writing(self.path):
            # Unbuffered: what cannot be written now must not be tried again when it is closed.
            self._events = (self.path / EVENTS).open("ab", buffering=0)
            if self._events.tell() > size:
                self._events.truncate(size)

    def state(self) -> dict[str, Any]:
        """What `go_on_from` needs, once all events so far are safe on the disk."""
        assert self._events is not None
        with writing(self.path):
            os.fsync(self._events.fileno())
            return {
                "num_event_bytes": os.fstat(self._events.fileno()).st_size,
                "seconds": self.seconds,
            }

    def log(self, event: Event) -> dict[str, Any]:
        """Append an event, and give it back with `at`: for how many seconds the run has worked."""
        assert self._events is not None
        written = {**event, "at": round(self.seconds, 3)}
        line = to_json(written).encode() + b"\n"
        with writing(self.path):
            while line:
                line = line[self._events.write(line) :]
        return written

    def write(self, name: str, value: Any) -> None:
        """Write a JSON file of the run, atomically."""
        with writing(self.path):
            replace_file(self.path / name, (to_json(value, indent=1) + "\n").encode())

    def reopen(self, files: Mapping[str, str]) -> None:
        """Let a run that may be finished be described by these files, written in their order.

        Killed in between, it is one that is not finished and can be gone on with as before.
        """
        result = read_result(self.path)
        if result.get("finished"):
            self.write(RESULT, {**result, "finished": False})
        with writing(self.path):
            for name, text in files.items():
                replace_file(self.path / name, text.encode())

    def withdraw(self) -> None:
        """Let a run that has learnt nothing be no run any more, so that it can be begun anew."""
        with writing(self.path):
            for name in (CONFIG, ENVIRONMENT, RESULT, CHECKPOINT):
                (self.path / name).unlink(missing_ok=True)

    def add_environment(self, environment: Mapping[str, Any]) -> None:
        """Note on what the run has been started or gone on with."""
        self.write(ENVIRONMENT, [*read_json(self.path, ENVIRONMENT, []), environment])


def locked(place: Path) -> FileLock:
    """The directory's lock, held until it is released; a `RunError` if another process has it."""
    # The kernel lets go of the lock when its process ends, however it ends.
    lock = FileLock(place / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunError(f"another process is at work on {place}; wait for it, or stop it") from None
    return lock


def has_learnt(place: Path) -> bool:
    """Whether something would be lost if the run were begun anew: at least an epoch."""
    told = [event["event"] for event in read_events(place)]
    if not told or "epoch" in told:
        return bool(told) or (place / CHECKPOINT).exists() or (place / RESULT).exists()
    # Joint training saves, before its first epoch, the tasks that it has let go by.
    return any(task.get("score") is not None for task in read_result(place).get("tasks", ()))


def taken(path: Path) -> str:
    """What to say to a run in a directory that holds one."""
    return f"{path} holds a run; {again(path)} goes on with it; or give another directory"


def no_run(path: Path) -> str:
    """What to say where a run is looked for and nothing is."""
    return f"there is no run at {path}; {NAME_ONE}"


def to_json(value: Any, *, indent: int | None = None) -> str:
    """The value as JSON that every reader accepts: what is not a finite number becomes text."""

    def plain(part: Any) -> Any:
        if isinstance(part, float) and not math.isfinite(part):
            return str(part)
        if isinstance(part, Mapping):
            return {str(key): plain(item) for key, item in part.items()}
        return [plain(item) for item in part] if isinstance(part, list | tuple) else part

    return json.dumps(plain(value), indent=indent, allow_nan=False)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the operating system says against writing into a sentence that names the run."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "free some space, and begin again" if full else "give the run another directory"
        if os.path.exists(path / CONFIG):
            mended = "free some space" if full else "when that is mended"
            remedy = f"{mended}; {again(path)} goes on"
        raise RunError(f"cannot write to {path}: {reason}; {remedy}") from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong with files that do not hold what they should into a sentence."""
    try:
        yield
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, RecursionError) as error:
        if isinstance(error, ClnpError):
            raise
        raise RunError(
            f"the files of {path} are damaged, or of another version of clnp: {error!r}; use the "
            "clnp that wrote them, or begin a new run"
        ) from error


def expanded(path: str | os.PathLike[str]) -> Path:
    """The path with `~` replaced, where there is a home for it."""
    return Path(os.path.expanduser(path))


def command(verb: str, path: str | os.PathLike[str]) -> str:
    """The command line that does something with a run, safe to be pasted into a shell."""
    text = os.fspath(path)
    return f"clnp {verb} {shlex.quote('./' + text if text.startswith('-') else text)}"


def again(path: str | os.PathLike[str]) -> str:
    """What goes on with a run, a series or a comparison: a command, or the program it is from."""
    place = expanded(path)
    if os.path.isfile(place / CONFIG) and not os.path.isfile(place / RECIPE):
        return "the Python program that began it"
    return command("resume", path)


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The config of the run at `path`; a `RunError` unless there is one."""
    place = expanded(path)
    if not os.path.exists(place):
        raise RunError(no_run(place))
    if not os.path.isfile(place / CONFIG):
        if os.path.isfile(place / EVENTS) and not has_learnt(place):
            raise RunError(
                f"{place} is no run any more: it failed before it had learnt anything; begin it "
                "again"
            )
        raise RunError(f"{place} is not a run: it has no {CONFIG}; {NAME_ONE}")
    config: dict[str, Any] = read_json(place, CONFIG, {})
    if config.get("format") != FORMAT:
        raise RunError(
            f"{place} has format {config.get('format')!r}, this clnp reads {FORMAT}; use the clnp "
            "that wrote it"
        )
    return config


def read_json(path: Path, name: str, otherwise: Any) -> Any:
    """A JSON file of the run, of the type of `otherwise`, which stands in where it is not there."""
    try:
        found = json.loads((path / name).read_bytes())
    except FileNotFoundError:
        return otherwise
    except OSError as error:
        raise RunError(f"{path / name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RunError(_damaged(path / name, str(error))) from error
    if not isinstance(found, type(otherwise)):
        raise RunError(_damaged(path / name, f"it holds a {type(found).__name__}"))
    return found


def read_result(path: Path) -> dict[str, Any]:
    """What the run has come to so far, as it was before it was written; empty if it is nothing.

    Scores that are not finite are text in the file, and numbers here.
    """
    found: dict[str, Any] = read_json(path, RESULT, {})
    with reading(path):
        return {name: _numbers(value, name in NUMBERS) for name, value in found.items()}


def _numbers(value: Any, are_numbers: bool) -> Any:
    """The value with numbers in place of the text that `to_json` makes of some."""
    if isinstance(value, dict):
        return {
            name: _numbers(item, are_numbers or name in NUMBERS) for name, item in value.items()
        }
    if isinstance(value, list):
        return [_numbers(item, are_numbers) for item in value]
    return float(value) if are_numbers and value in ("nan", "inf", "-inf") else value


def _damaged(file: Path, reason: str) -> str:
    remedy = "put a copy of it back, or begin a new run"
    if file.name == RESULT:
        remedy = "remove it and go on with the run, which writes it anew"
    return f"{file} is damaged: {reason}; {remedy}"


def last_environment(place: Path) -> dict[str, Any]:
    """On what the run was started last."""
    sessions = read_json(place, ENVIRONMENT, [])
    return dict(sessions[-1]) if sessions else {}


def read_events(path: str | os.PathLike[str], num_bytes: int | None = None) -> list[dict[str, Any]]:
    """All events of a run, or those in the first bytes of the file.

    Lines that are damaged are left out: the last one may be half written.
    """
    try:
        lines = (expanded(path) / EVENTS).read_bytes()[:num_bytes].splitlines()
    except OSError:
        return []
    events = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict) and isinstance(event.get("event"), str):
                events.append(event)
    return events


def silence(path: Path) -> float:
    """For how many seconds nothing has been heard of a run.

    By the clock of the files' machine against this one's: they may differ.
    """
    for name in (EVENTS, CONFIG):
        with contextlib.suppress(OSError):
            return max(0.0, time.time() - (path / name).stat().st_mtime)
    return 0.0

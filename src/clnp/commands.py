"""What the commands of `clnp` do. Each gives back what `--json` prints, and text for the others."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from . import recipe
from .assembly import experiment_of
from .checkpoint import attached
from .console import Silence
from .environment import describe, same_arithmetic
from .errors import ArgumentError, ForgettingError, RunError, StoppedError
from .experiment import Course, Experiment, figures, judge
from .likeness import check_alike
from .net import ContinualNet
from .recipe import LoadedRecipe
from .runs import (
    CHECKPOINT,
    CONFIG,
    ENVIRONMENT,
    RECIPE,
    RESULT,
    Run,
    command,
    expanded,
    read_config,
    read_json,
    reading,
    to_json,
)
from .schema import to_toml
from .summary import summary

Answer = tuple[Any, str]
LOOSE = 0.5
"""Points by which rounding on other hardware may move an accuracy."""


def start(
    name: str,
    *,
    assignments: list[str],
    seed: int | None,
    device: str | None,
    out: str | None,
    data: str | None,
    checkpoint_seconds: float,
    console: Silence,
) -> Answer:
    """Begin a run of a recipe and carry it out."""
    if seed is not None:
        assignments = [*assignments, f"seed={seed}"]
    loaded = recipe.load(name, assignments)
    made, short = loaded.recipe, loaded.name
    experiment = experiment_of(loaded, find_device(device), data, on_download=console.download)
    path = expanded(out) if out is not None else _unused(Path("runs"), short, made.seed)
    header = "A recipe with every default spelt out: clnp run FILE runs it again."
    config = {
        **experiment.to_json(),
        "recipe": short,
        "data": _absolute(data or os.environ.get("CLNP_DATA")),
    }
    files = {CONFIG: to_json(config, indent=1), RECIPE: to_toml(made, header=header)}
    with Run.create(path, files) as run:
        return carry_out(experiment, run, checkpoint_seconds, console)


def resume(
    path: str, *, device: str | None, data: str | None, checkpoint_seconds: float, console: Silence
) -> Answer:
    """Go on with a run that was stopped, killed or lost its machine."""
    place = expanded(path)
    config = read_config(place)
    result = read_json(place, RESULT, {})
    with reading(place):
        if result.get("finished"):
            return result, f"{place} is finished; nothing is left to do.\n\n{summary(result)}"
        before = _last_environment(place)
        chosen = find_device(device or before.get("device"))
        _use_threads(chosen, before)
        found = data or config.get("data")
        experiment = experiment_of(_recipe_of(place), chosen, found, on_download=console.download)
    with Run.open(place) as run:
        return carry_out(experiment, run, checkpoint_seconds, console)


def carry_out(
    experiment: Experiment, run: Run, checkpoint_seconds: float, console: Silence
) -> Answer:
    """Follow the course of an experiment; a signal makes it save and stop."""
    course = Course(experiment, run, checkpoint_seconds, console.show)
    try:
        with stopping(course, console):
            result = course.follow()
    except KeyboardInterrupt:
        again = command("resume", run.path)
        raise StoppedError(
            f"stopped at once; what was saved last is whole, go on with: {again}"
        ) from None
    console.close()
    verify = command("verify", run.path)
    closing = f"The run is in {run.path}. Check it again at any time: {verify}"
    return result, f"{summary(result)}\n\n{closing}"


@contextmanager
def stopping(course: Course, console: Silence) -> Iterator[None]:
    """Let the first signal to stop end the run after the current epoch, the second at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.default_int_handler)
        course.stop()
        console.say("stopping after this epoch; once more to stop at once")

    names = ("SIGINT", "SIGTERM", "SIGHUP")
    signals = [getattr(signal, name) for name in names if hasattr(signal, name)]
    # What is ignored stays so: nohup ignores SIGHUP.
    before = {
        each: signal.getsignal(each)
        for each in signals
        if signal.getsignal(each) is not signal.SIG_IGN
    }
    for each in before:
        signal.signal(each, handle)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def verify(path: str, *, device: str | None, data: str | None) -> Answer:
    """Check every certificate and figure of a run; a `ForgettingError` names what differs."""
    place = expanded(path)
    config = read_config(place)
    checkpoint = place / CHECKPOINT
    result = read_json(place, RESULT, {})
    if not result:
        raise RunError(f"{place} has no ended task yet; there is nothing to verify")
    if not checkpoint.exists():
        raise RunError(f"{place} has lost its {CHECKPOINT}; its tasks cannot be verified")
    with reading(place):
        before = _last_environment(place)
        chosen = find_device(device or before.get("device"))
        _use_threads(chosen, before)
        experiment = experiment_of(_recipe_of(place), chosen, data or config.get("data"))
        check_alike(experiment.to_json(), config, place)
        net = ContinualNet.load(checkpoint, experiment.model, check=False)
        net.verify()
        # What no ended task reads may be damaged too.
        check_alike(experiment.to_json(), attached(checkpoint)["experiment"], checkpoint)
        _check_figures(net, experiment, result)
        exact = same_arithmetic(before, describe(chosen))
        judged = {}
        for task, record in zip(experiment.tasks, result["tasks"], strict=False):
            found = judge(net, task, experiment.config)
            if found is not None:
                judged[task.name] = found[0]
                _check_score(record, *found, exact=exact)
    answer = {"verified": True, "tasks": list(net.tasks), "exact": exact, "scores": judged}
    how = "to the last bit" if exact else f"to {LOOSE} points (another machine or device)"
    tasks = "1 task" if len(net.tasks) == 1 else f"{len(net.tasks)} tasks"
    return answer, (
        f"verified: all that {tasks} read is as it was frozen (SHA-256), and the test accuracies "
        f"of {len(judged)} are as recorded, {how}."
    )


def _check_figures(net: ContinualNet, experiment: Experiment, result: dict[str, Any]) -> None:
    """Raise a `ForgettingError` unless the result says what follows from the network."""
    names = [record["task"] for record in result["tasks"]]
    now = figures(net)
    for task, digest in result["certificates"].items():
        if now["certificates"].get(task) != digest:
            raise ForgettingError(
                f"task {task!r} has changed: its certificate in {CHECKPOINT} is not the one that "
                f"{RESULT} recorded when it ended"
            )
    if names != list(net.tasks)[: len(names)] or len(names) < len(net.tasks) - 1:
        raise ForgettingError(f"{RESULT} has tasks {names}, the network {list(net.tasks)}")
    if len(names) < len(net.tasks):
        return  # It was killed after the checkpoint of a task and before the result.
    expected: dict[str, Any] = {**now, "head": experiment.head, "seed": experiment.seed}
    for key, value in expected.items():
        if result[key] != value:
            raise ForgettingError(f"{RESULT} is not what the network says: its {key} differs")
    usages = {(usage["task"], usage["group"]): usage for usage in now["capacity"]["usages"]}
    for number, record in enumerate(result["tasks"]):
        for key in ("new", "reused"):
            for group, value in record[key].items():
                if usages[record["task"], group][key] != value:
                    raise ForgettingError(
                        f"task {record['task']!r}: {RESULT} is not what the network says: its "
                        f"{key} neurons of {group} differ"
                    )
        later = {row[number] for row in result["scores"][number:]}
        if later != {record["test_score"]} or record["unchanged"] is False:
            raise ForgettingError(
                f"task {record['task']!r}: by {RESULT}, its scores after later tasks are {later}, "
                f"and {record['test_score']} when it ended"
            )


def _check_score(record: dict[str, Any], score: float, digest: str, *, exact: bool) -> None:
    before = record["test_score"]
    if exact and (score, digest) != (before, record["outputs"]):
        raise ForgettingError(
            f"task {record['task']!r}: its test accuracy is {score}, and was {before} when it ended"
            + ("" if score != before else "; its outputs differ in some bits")
        )
    if not exact and abs(score - before) > LOOSE:
        raise ForgettingError(
            f"task {record['task']!r}: its test accuracy is {score:.2f}, and was {before:.2f} when "
            "it ended, which rounding on another machine does not explain"
        )


def find_device(name: str | None) -> torch.device:
    """The device of that name; a GPU, if there is one, unless one is named."""
    if name is None or name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except Exception as error:  # Each kind of device has errors of its own.
        reason = str(error).splitlines()[0][:100]
        raise ArgumentError(
            f"device {name!r} cannot be used here ({reason}); try --device cpu"
        ) from error
    return torch.device("cuda", 0) if name == "cuda" else device


def _recipe_of(place: Path) -> LoadedRecipe:
    if not (place / RECIPE).is_file():
        raise RunError(
            f"{place} was not made from a recipe: use the Python program that began it, or "
            f'clnp.ContinualNet.load("{place / CHECKPOINT}", model)'
        )
    return recipe.load(str(place / RECIPE))


def _unused(folder: Path, name: str, seed: int) -> Path:
    """A directory for the run that is not there yet."""
    stem = f"{name}-seed{seed}"
    candidates = (folder / (stem if number == 1 else f"{stem}-{number}") for number in count(1))
    return next(path for path in candidates if not path.exists())


def _absolute(data: str | None) -> str | None:
    return None if data is None else str(expanded(data).absolute())


def _last_environment(place: Path) -> dict[str, Any]:
    """On what the run was started last."""
    sessions = read_json(place, ENVIRONMENT, [])
    return dict(sessions[-1]) if sessions else {}


def _use_threads(device: torch.device, before: dict[str, Any]) -> None:
    """Use as many threads as the run did: another number adds up in another order."""
    num_threads = before.get("num_threads")
    if device.type == "cpu" and isinstance(num_threads, int) and 1 <= num_threads <= 1024:
        torch.set_num_threads(num_threads)

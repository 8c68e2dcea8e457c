"""Options that several commands have, and how their values are read."""

import argparse
import math

TRACKERS = {
    "tensorboard": "write curves for TensorBoard into the directory of the run",
    "mlflow": "send curves to MLflow, to the server of MLFLOW_TRACKING_URI if that is set",
    "wandb": "send curves to Weights & Biases, or with WANDB_MODE=offline into the directory",
}


def add_recipe_options(command: argparse.ArgumentParser) -> None:
    """What a recipe is changed by, where it goes, and how it is carried out."""
    command.add_argument(
        "--set",
        dest="assignments",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="change the recipe, --set learner.margin=2 for example; may be repeated",
    )
    command.add_argument("--seed", type=int, help="what all random numbers are derived from")
    command.add_argument(
        "--seeds",
        type=count,
        metavar="N",
        help="N seeds, with mean and deviation; those that --out has already are kept",
    )
    command.add_argument(
        "--search-once",
        action="store_true",
        help="search the grid with the first seed; the others take what it chose for each task",
    )
    command.add_argument(
        "--out",
        metavar="DIR",
        help="directory of the run (default: runs/RECIPE-seedN; of a series runs/RECIPE-Nseeds, "
        "of a comparison runs/RECIPE-compared)",
    )
    add_run_options(command)


def add_run_options(command: argparse.ArgumentParser, *, begun: bool = False) -> None:
    """How a run is carried out; one that has been begun knows where it was."""
    add_place_options(command, begun=begun)
    command.add_argument(
        "--checkpoint-every",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="how often to save inside a task, at the end of an epoch (default: 60)",
    )
    command.add_argument(
        "--jobs",
        type=count,
        default=1,
        metavar="N",
        help="carry out N runs of a series or comparison at a time, each in a process of its own",
    )
    command.add_argument("--quiet", action="store_true", help="show no progress")
    for name, where in TRACKERS.items():
        command.add_argument(
            f"--{name}", dest="trackers", action="append_const", const=name, help=where
        )


def add_place_options(command: argparse.ArgumentParser, *, begun: bool) -> None:
    """On which device, and where data sets are."""
    device = "the one that the run was last on" if begun else "a GPU if there is one"
    command.add_argument("--device", help=f"cpu, cuda, cuda:1, ... (default: {device})")
    add_data_option(command, begun=begun)


def add_data_option(command: argparse.ArgumentParser, *, begun: bool) -> None:
    """Where data sets are."""
    data = "where the run had them" if begun else "$CLNP_DATA, or ~/.cache/clnp"
    command.add_argument("--data", metavar="DIR", help=f"where data sets are (default: {data})")


def seconds(text: str) -> float:
    """A number of seconds."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}; it must be a number of seconds, 0 or more")
    return found


def names(text: str) -> tuple[str, ...]:
    """Names with commas between them, each once."""
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not found:
        raise argparse.ArgumentTypeError("expected names with commas between them")
    return found


def count(text: str) -> int:
    """A whole number from 1 on."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r}; it must be a whole number, 1 or more")
    return int(text)

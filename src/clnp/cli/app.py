"""The command line. PyTorch is imported only by commands that need it."""

import argparse
import json
import math
import os
import signal
import sys
import traceback
from typing import NoReturn

from clnp.errors import (
    FAILURE,
    OUT_OF_MEMORY,
    STOPPED,
    USER_ERROR,
    ClnpError,
    is_out_of_memory,
)
from clnp.plain import to_json
from clnp.studies.jobs import end_at_once, interrupt_at_once
from clnp.text import Styled, one_line, printable
from clnp.version import __version__

from . import commands

MOST_DIGITS = 20
"""Digits of 2**64."""
TRACKERS = {
    "tensorboard": "write curves for TensorBoard to the directory of the run",
    "mlflow": "send curves to MLflow, to the server in MLFLOW_TRACKING_URI if it is set",
    "wandb": "send curves to Weights & Biases; WANDB_MODE=offline writes them to the directory",
}


def add_recipe_options(command: argparse.ArgumentParser) -> None:
    """Add the options for changing a recipe, and for the directory of its run."""
    command.add_argument(
        "--set",
        dest="assignments",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="change a key of the recipe, for example --set learner.margin=2; may be repeated",
    )
    command.add_argument(
        "--seed", type=seed, help="seed of all random numbers (default: that of the recipe)"
    )
    command.add_argument(
        "--threads",
        type=count,
        metavar="N",
        help="number of threads on a CPU (default: that of the recipe, or one for small networks)",
    )
    command.add_argument(
        "--seeds",
        type=count,
        metavar="N",
        help="run N seeds, with mean and standard deviation; finished seeds in --out are kept",
    )
    command.add_argument(
        "--search-once",
        action="store_true",
        help="search the grid with the first seed only; the others use its choices for each task",
    )
    command.add_argument(
        "--out",
        metavar="DIR",
        help="directory of the run (default: runs/RECIPE-seedN, or runs/RECIPE-Nseeds for several "
        "seeds, or runs/RECIPE-compared for a comparison)",
    )
    add_run_options(command)


def add_run_options(command: argparse.ArgumentParser, *, resume: bool = False) -> None:
    """Add the options of a run that are not part of its experiment."""
    add_place_options(command, resume=resume)
    command.add_argument(
        "--checkpoint-every",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="how often to save within a task, at the end of an epoch (default: 60)",
    )
    command.add_argument(
        "--jobs",
        type=count,
        default=1,
        metavar="N",
        help="run N seeds or methods at a time, each in its own process (default: 1)",
    )
    command.add_argument("--quiet", action="store_true", help="show no progress")
    for name, where in TRACKERS.items():
        command.add_argument(
            f"--{name}", dest="trackers", action="append_const", const=name, help=where
        )


def add_place_options(command: argparse.ArgumentParser, *, resume: bool) -> None:
    """Add the options for the device and the data sets."""
    device = "that of the run" if resume else "a GPU if there is one"
    command.add_argument("--device", help=f"cpu, cuda, cuda:1, ... (default: {device})")
    add_data_option(command, resume=resume)


def add_data_option(command: argparse.ArgumentParser, *, resume: bool) -> None:
    """Add the option for the directory of the data sets."""
    data = "that of the run" if resume else "$CLNP_DATA, or ~/.cache/clnp"
    command.add_argument("--data", metavar="DIR", help=f"directory of data sets (default: {data})")


def seconds(text: str) -> float:
    """Return a number of seconds."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return found


def names(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas, each once."""
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not found:
        raise argparse.ArgumentTypeError("expected names separated by commas")
    return found


def count(text: str) -> int:
    """Return a whole number from 1 on."""
    found = _whole(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or more")
    return found


def seed(text: str) -> int:
    """Return a whole number of 64 bits."""
    found = _whole(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 2**64 - 1")
    return found


def _whole(text: str) -> int | None:
    is_whole = text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
    return int(text) if is_whole and int(text) < 2**64 else None


DESCRIPTION = "Continual learning by neural pruning: one network, task after task, no forgetting."
EPILOG = """\
examples:
  clnp demo                                      ten small tasks, in under a minute
  clnp recipes                                   list the recipes
  clnp run permuted-digits --set learner.margin=2 --seed 1
  clnp run permuted-digits --seeds 5             five seeds: mean and standard deviation
  clnp compare permuted-digits                   a table of several methods on the same tasks
  clnp resume runs/permuted-digits-seed1         resume after Ctrl-C, a crash or a power cut
  clnp watch runs/permuted-digits-seed1          follow a run from another terminal or machine
  clnp inspect runs/permuted-digits-seed1        progress and results on one screen
  clnp verify runs/permuted-digits-seed1         recompute certificates and accuracies
  clnp export runs/permuted-digits-seed1 --task 'digits permuted 1'
                                                 one task as a small network for deployment
  clnp report runs/permuted-digits-seed1         one HTML page with all figures

exit codes: 0 success, 1 failure, 2 usage error, 130 stopped by a signal
"""
METHODS = "clnp, single, finetune, joint, ewc, packnet, hat, si, superposition"
"""Repeated here, because the registry of methods imports PyTorch."""


def run() -> None:
    """Run the command of this process, and exit."""
    interrupt_at_once()  # Until a command has something to save first.
    try:
        code = main()
    except KeyboardInterrupt:
        code = STOPPED
    finally:
        end_at_once()
    if code == STOPPED:
        # One Ctrl-C too many must not show a traceback of the exit of Python.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def main(arguments: list[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: The arguments of the command line. Default: those of the process.

    Returns:
        The exit code: 0 success, 1 failure, 2 usage error, 130 stopped by a signal.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # It was closed before the start.
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    options = parser().parse_args(arguments)
    try:
        answer, text = options.command(options)
        shown = text if isinstance(text, Styled) else _safe(text, options)
        _print(to_json(answer, indent=1) if options.json else shown)
        return int(options.code)
    except RecursionError:
        return _failed(
            options, "The arguments are nested too deeply. Use fewer levels.", USER_ERROR
        )
    except KeyboardInterrupt:
        return _failed(options, "Stopped. What was saved is complete.", STOPPED)
    except ClnpError as error:
        return _failed(options, str(error), error.code)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return _failed(options, OUT_OF_MEMORY, FAILURE)


def _print(text: str) -> None:
    try:
        try:
            print(text, flush=True)
        except UnicodeEncodeError:
            encoding = sys.stdout.encoding
            print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:  # The reader, such as `head`, has ended.
        commands.drop_stdout()
    except OSError as error:
        commands.drop_stdout()
        failed = ClnpError(
            f"The answer cannot be printed: {error.strerror}. Redirect it to another file."
        )
        failed.code = FAILURE
        raise failed from error


def _failed(options: argparse.Namespace, message: str, code: int) -> int:
    if options.debug:
        traceback.print_exc()
    if options.json:
        print(json.dumps({"error": message}))
    label = "" if options.job is None else f"{options.job}: "
    print(_safe(f"clnp: {label}{message}", options), file=sys.stderr)
    return code


def _safe(text: str, options: argparse.Namespace) -> str:
    """Return the text without what would control a terminal, and arguments in it on one line."""
    for given in vars(options).values():
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, str) and len(value.splitlines()) > 1:
                text = text.replace(value, one_line(value))
    return printable(text)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(one_line(message))


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    raw = argparse.RawDescriptionHelpFormatter
    top = _Parser("clnp", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw)
    top.add_argument("--version", action="version", version=f"clnp {__version__}")
    parsers = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, text: str, *, run: str = "") -> argparse.ArgumentParser:
        made = parsers.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        made.set_defaults(command=getattr(commands, name), code=0, job=None)
        made.add_argument("--json", action="store_true", help="print the result as JSON")
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        if run:
            made.add_argument("run", metavar="RUN", help=run)
        return made

    demo = command("demo", "learn ten permuted digit tasks, in under a minute")
    run = command("run", "run a recipe")
    compare = command("compare", "run a recipe with several methods and print a table")
    for learn in (run, compare):
        learn.add_argument(
            "recipe", metavar="RECIPE", help="name from `clnp recipes`, or a TOML file"
        )
    for learn in (demo, run, compare):
        add_recipe_options(learn)
    compare.add_argument(
        "--methods",
        type=names,
        default=("clnp", "single", "finetune"),
        metavar="A,B,...",
        help=f"methods to compare, of {METHODS} (default: clnp,single,finetune)",
    )
    compare.add_argument(
        "--tune",
        dest="tuned",
        type=names,
        default=(),
        metavar="A,B,...",
        help="first search settings of these methods on validation data, with seeds 1000 and 1001; "
        "they are added to --methods. The settings of clnp are not searched: its margin is your "
        "choice, and its grid is in the recipe",
    )
    compare.add_argument(
        "--budget",
        type=count,
        metavar="N",
        help="settings to try for each method of --tune (default: 20)",
    )
    where = "directory of a run, a series or a comparison"
    resume = command("resume", "resume a run that was stopped or killed", run=where)
    add_run_options(resume, resume=True)
    # The title of a run in a process of --jobs, for its messages.
    resume.add_argument("--job", metavar="TITLE", help=argparse.SUPPRESS)
    inspect = command("inspect", "show progress and results of a run on one screen", run=where)
    inspect.add_argument(
        "--all", action="store_true", help="show every task, candidate and certificate"
    )
    watch = command(
        "watch",
        "follow a run while it is running, here or on another machine",
        run=f"{where}; it need not exist yet",
    )
    watch.add_argument("--once", action="store_true", help="show the current status and exit")
    watch.add_argument(
        "--interval",
        type=seconds,
        metavar="SECONDS",
        help="time between updates (default: 1 on a terminal, 10 in a log)",
    )
    verify = command("verify", "recompute the certificates and test accuracies of a run", run=where)
    add_place_options(verify, resume=True)
    export = command(
        "export",
        "write ended tasks of a run as small networks that do not need clnp",
        run="directory of a run",
    )
    which = export.add_mutually_exclusive_group()
    which.add_argument(
        "--task",
        dest="tasks",
        metavar="NAME",
        action="append",
        default=[],
        help="name of an ended task; may be repeated",
    )
    which.add_argument("--all", action="store_true", help="all ended tasks")
    export.add_argument(
        "--out", metavar="FILE", help="file, or directory (default: RUN/NAME.pt2 or RUN/NAME.onnx)"
    )
    export.add_argument(
        "--format",
        choices=("pt2", "onnx"),
        help="torch.export program or ONNX (default: by the ending of FILE, else pt2)",
    )
    export.add_argument(
        "--bare",
        action="store_true",
        help="leave out the preprocessing, and print it (default file: RUN/NAME-bare.*)",
    )
    export.add_argument(
        "--device", help="device on which a pt2 file will run: cpu, cuda, ... (default: cpu)"
    )
    add_data_option(export, resume=True)
    report = command("report", "write one HTML page with every figure")
    report.add_argument(
        "runs", nargs="+", metavar="RUN", help="directories of runs, series or comparisons"
    )
    report.add_argument(
        "--out", metavar="DIR", help="directory of the report (default for one RUN: RUN/report)"
    )
    recipes = command("recipes", "list the recipes, or print one")
    recipes.add_argument("recipe", nargs="?", metavar="RECIPE", help="print this recipe")
    recipes.add_argument("--keys", action="store_true", help="explain every key of a recipe")
    return top

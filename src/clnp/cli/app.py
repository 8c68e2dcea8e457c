"""The command line. PyTorch is imported only by commands that need it."""

import argparse
import contextlib
import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from clnp.errors import (
    FAILURE,
    OUT_OF_MEMORY,
    STOPPED,
    USER_ERROR,
    ArgumentError,
    ClnpError,
    is_out_of_memory,
)
from clnp.recipes import bundled
from clnp.studies.jobs import stop_with_parent
from clnp.terminal.progress import Bars, Lines, Silence
from clnp.version import __version__

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
        "--seed", type=int, help="seed of all random numbers (default: that of the recipe)"
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
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or more")
    return int(text)


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
    code = main()
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
        return _show(options, _as_json(answer) if options.json else text) or int(options.code)
    except RecursionError:
        return _failed(
            options, "The arguments are nested too deeply. Use fewer levels.", USER_ERROR
        )
    except KeyboardInterrupt:
        return _failed(options, "Stopped. The last checkpoint is complete.", STOPPED)
    except ClnpError as error:
        return _failed(options, str(error), error.code)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return _failed(options, OUT_OF_MEMORY, FAILURE)


def _as_json(answer: Any) -> str:
    from clnp.plain import to_json

    return to_json(answer, indent=1)


def _show(options: argparse.Namespace, text: str) -> int:
    """Print the answer, and return the exit code."""
    try:
        try:
            print(text, flush=True)
        except UnicodeEncodeError:
            encoding = sys.stdout.encoding
            print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
        return 0
    except OSError as error:
        # Python would try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 0  # The reader, such as `head`, has ended.
        reason = f"The answer cannot be printed: {error.strerror}. Redirect it to another file."
        return _failed(options, reason, FAILURE)


def _failed(options: argparse.Namespace, message: str, code: int) -> int:
    if options.debug:
        traceback.print_exc()
    if options.json:
        print(json.dumps({"error": message}))
    label = "" if options.job is None else f"{options.job}: "
    print(f"clnp: {label}{message}", file=sys.stderr)
    return code


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        "clnp", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw
    )
    top.add_argument("--version", action="version", version=f"clnp {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, action: Action, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        made.set_defaults(command=action, code=0, job=None)
        made.add_argument("--json", action="store_true", help="print the result as JSON")
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        return made

    demo = command("demo", _demo, "learn ten permuted digit tasks, in under a minute")
    add_recipe_options(demo)
    run = command("run", _run, "run a recipe")
    run.add_argument("recipe", metavar="RECIPE", help="name from `clnp recipes`, or a TOML file")
    add_recipe_options(run)
    compare = command("compare", _compare, "run a recipe with several methods and print a table")
    compare.add_argument(
        "recipe", metavar="RECIPE", help="name from `clnp recipes`, or a TOML file"
    )
    compare.add_argument(
        "--methods",
        type=names,
        default=("clnp", "single", "finetune"),
        metavar="A,B,...",
        help=f"methods to compare, of {METHODS} (default: clnp,single,finetune)",
    )
    add_recipe_options(compare)
    where = "directory of a run, a series or a comparison"
    resume = command("resume", _resume, "resume a run that was stopped or killed")
    resume.add_argument("run", metavar="RUN", help=where)
    add_run_options(resume, resume=True)
    # The title of a run in a process of --jobs, for its messages.
    resume.add_argument("--job", metavar="TITLE", help=argparse.SUPPRESS)
    inspect = command("inspect", _inspect, "show progress and results of a run on one screen")
    inspect.add_argument("run", metavar="RUN", help=where)
    inspect.add_argument(
        "--all", action="store_true", help="show every task, candidate and certificate"
    )
    watch = command("watch", _watch, "follow a run while it is running, here or on another machine")
    watch.add_argument("run", metavar="RUN", help=f"{where}; it need not exist yet")
    watch.add_argument("--once", action="store_true", help="show the current status and exit")
    watch.add_argument(
        "--interval",
        type=seconds,
        metavar="SECONDS",
        help="time between updates (default: 1 on a terminal, 10 in a log)",
    )
    verify = command("verify", _verify, "recompute the certificates and test accuracies of a run")
    verify.add_argument("run", metavar="RUN", help=where)
    add_place_options(verify, resume=True)
    export = command(
        "export", _export, "write ended tasks of a run as small networks that do not need clnp"
    )
    export.add_argument("run", metavar="RUN", help="directory of a run")
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
    report = command("report", _report, "write one HTML page with every figure")
    report.add_argument(
        "runs", nargs="+", metavar="RUN", help="directories of runs, series or comparisons"
    )
    report.add_argument(
        "--out", metavar="DIR", help="directory of the report (default for one RUN: RUN/report)"
    )
    recipes = command("recipes", _recipes, "list the recipes, or print one")
    recipes.add_argument("recipe", nargs="?", metavar="RECIPE", help="print this recipe")
    recipes.add_argument("--keys", action="store_true", help="explain every key of a recipe")
    return top


Answer = tuple[Any, str]
Action = Callable[[argparse.Namespace], Answer]


def _demo(options: argparse.Namespace) -> Answer:
    return _start(options, "permuted-digits")


def _run(options: argparse.Namespace) -> Answer:
    return _start(options, options.recipe)


def _compare(options: argparse.Namespace) -> Answer:
    from clnp.studies import comparison, launch

    with contextlib.closing(_console(options)) as console:
        return comparison.compare(
            launch.Source(options.recipe, _assignments(options, method="--methods")),
            _run_options(options),
            console,
            methods=options.methods,
            seed=options.seed,
            num_seeds=options.seeds,
            search_once=options.search_once,
            out=options.out,
        )


def _start(options: argparse.Namespace, recipe: str) -> Answer:
    from clnp.studies import launch

    from . import commands

    with contextlib.closing(_console(options)) as console:
        return commands.start(
            launch.Source(recipe, _assignments(options)),
            _run_options(options),
            console,
            seed=options.seed,
            num_seeds=options.seeds,
            search_once=options.search_once,
            out=options.out,
        )


def _assignments(options: argparse.Namespace, **instead: str) -> tuple[str, ...]:
    """Return the --set assignments; refuse keys that another option sets."""
    first = instead if options.seed is None else {**instead, "seed": "--seed"}
    for text in options.assignments:
        if (key := text.partition("=")[0].strip()) in first:
            raise ArgumentError(f"--set {text} would have no effect. Use {first[key]} instead.")
    return tuple(options.assignments)


def _resume(options: argparse.Namespace) -> Answer:
    if options.job is not None:
        stop_with_parent()
    from . import commands

    with contextlib.closing(_console(options)) as console:
        return commands.resume(options.run, _run_options(options), console, job=options.job)


def _run_options(options: argparse.Namespace) -> Any:
    from clnp.studies.launch import RunOptions

    trackers = tuple(dict.fromkeys(options.trackers or ()))
    every = options.checkpoint_every
    return RunOptions(options.device, options.data, every, trackers, options.quiet, options.jobs)


def _console(options: argparse.Namespace) -> Silence:
    """Return bars on a terminal and lines in a log, on stderr: stdout has the answer only."""
    if options.quiet:
        return Silence()
    if options.job is not None:
        return Lines(sys.stderr, label=f"{options.job}: ")
    return Bars(sys.stderr) if sys.stderr.isatty() else Lines(sys.stderr)


def _inspect(options: argparse.Namespace) -> Answer:
    from clnp.terminal.overview import inspect

    return inspect(options.run, in_full=options.all)


def _watch(options: argparse.Namespace) -> Answer:
    from clnp.terminal.watch import watch

    try:
        scene, text = watch(
            options.run, once=options.once, interval=options.interval, quiet=options.json
        )
    except KeyboardInterrupt:
        raise SystemExit(STOPPED) from None  # The run continues.
    except BrokenPipeError:
        # The reader, such as `head`, has ended. Python would try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    options.code = {"failed": FAILURE, "stopped": STOPPED}.get(scene.state, 0)
    return scene.to_plain(), text


def _verify(options: argparse.Namespace) -> Answer:
    from clnp.studies.verify import verify_at

    return verify_at(options.run, device=options.device, data=options.data)


def _export(options: argparse.Namespace) -> Answer:
    from clnp.exports.from_run import export

    return export(
        options.run,
        tasks=None if options.all else options.tasks,
        out=options.out,
        kind=options.format,
        bare=options.bare,
        device=options.device,
        data=options.data,
    )


def _report(options: argparse.Namespace) -> Answer:
    from clnp.report.write import FIGURES, write_report

    page, *figures = write_report(options.runs, out=options.out)
    kinds = sorted({file.suffix[1:] for file in figures})
    shown = f"\nThe figures are in {page.parent / FIGURES}: {', '.join(kinds)}." if figures else ""
    files = [str(file) for file in (page, *figures)]
    return {"page": str(page), "files": files}, f"The report is in {page}.{shown}"


def _recipes(options: argparse.Namespace) -> Answer:
    if options.keys and options.recipe is not None:
        raise ArgumentError(f"--keys explains the keys of all recipes. Leave out {options.recipe}.")
    if options.keys:
        from clnp.recipes.reference import reference, rows

        return rows(), reference()
    if options.recipe is not None:
        text = bundled.text(options.recipe)
        return {"name": options.recipe, "text": text}, text.rstrip()
    found = {name: bundled.description(name) for name in bundled.names()}
    width = max(map(len, found))
    return found, "\n".join(f"{name:{width}}  {line}" for name, line in found.items())

"""The command line. Nothing here imports PyTorch before a command has to."""

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


DESCRIPTION = "Continual learning by neural pruning: task after task, nothing forgotten."
EPILOG = """\
examples:
  clnp demo                                      the whole method at work, in under a minute
  clnp recipes                                   what can be run
  clnp run permuted-digits --set learner.margin=2 --seed 1
  clnp run permuted-digits --seeds 5             five seeds: mean and standard deviation
  clnp compare permuted-digits                   other methods on the same tasks: a table
  clnp resume runs/permuted-digits-seed1         after Ctrl-C, a crash or a power cut
  clnp watch runs/permuted-digits-seed1          how it goes, from another terminal or machine
  clnp inspect runs/permuted-digits-seed1        what it has come to, in a screenful
  clnp verify runs/permuted-digits-seed1         certificates and accuracies, recomputed
  clnp export runs/permuted-digits-seed1 --task 'digits permuted 1'
                                                 one task as a small network, to deploy it
  clnp report runs/permuted-digits-seed1         one page with all figures, for a browser or a paper
"""
METHODS = "clnp, single, finetune, joint, ewc, packnet, hat, si, superposition"
"""Spelt out here, because those who know them import PyTorch."""


def run() -> None:
    """Run the command that this process was started with, and end it."""
    code = main()
    if code == STOPPED:
        # Who has pressed Ctrl-C once too often shall not see Python being interrupted at its end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit code: 0 good, 1 failed or not verified, 2 asked for wrongly."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # It was closed before the start.
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    options = parser().parse_args(arguments)
    try:
        answer, text = options.command(options)
        return _show(options, _as_json(answer) if options.json else text) or int(options.code)
    except RecursionError:
        return _failed(options, "what was given is nested too deeply", USER_ERROR)
    except KeyboardInterrupt:
        return _failed(options, "stopped at once; what was saved last is whole", STOPPED)
    except ClnpError as error:
        return _failed(options, str(error), error.code)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return _failed(options, OUT_OF_MEMORY, FAILURE)


def _as_json(answer: Any) -> str:
    from clnp.runs.directory import to_json

    return to_json(answer, indent=1)


def _show(options: argparse.Namespace, text: str) -> int:
    """Print the answer; the exit code."""
    try:
        try:
            print(text, flush=True)
        except UnicodeEncodeError:
            encoding = sys.stdout.encoding
            print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
        return 0
    except OSError as error:
        # Python would try once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 0  # The reader, `head` perhaps, has seen enough.
        return _failed(options, f"cannot print the answer: {error.strerror}", FAILURE)


def _failed(options: argparse.Namespace, message: str, code: int) -> int:
    if options.debug:
        traceback.print_exc()
    if options.json:
        print(json.dumps({"error": message}))
    label = "" if options.job is None else f"{options.job}: "
    print(f"clnp: {label}{message}", file=sys.stderr)
    return code


def parser() -> argparse.ArgumentParser:
    """The options of every command."""
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        "clnp", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw
    )
    top.add_argument("--version", action="version", version=f"clnp {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, action: Action, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        made.set_defaults(command=action, code=0, job=None)
        made.add_argument("--json", action="store_true", help="print the answer as JSON")
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        return made

    demo = command("demo", _demo, "learn ten permuted digit tasks, in under a minute")
    add_recipe_options(demo)
    run = command("run", _run, "carry out a recipe")
    run.add_argument("recipe", metavar="RECIPE", help="a name from `clnp recipes`, or a TOML file")
    add_recipe_options(run)
    compare = command("compare", _compare, "carry out a recipe with several methods")
    compare.add_argument("recipe", metavar="RECIPE", help="a name from `clnp recipes`, or a file")
    compare.add_argument(
        "--methods",
        type=names,
        default=("clnp", "single", "finetune"),
        metavar="A,B,...",
        help=f"those to compare, of {METHODS} (default: clnp,single,finetune)",
    )
    add_recipe_options(compare)
    where = "the directory of the run, or of a series of them"
    resume = command("resume", _resume, "go on with a run that was stopped or killed")
    resume.add_argument("run", metavar="RUN", help=where)
    add_run_options(resume, begun=True)
    # A process of --jobs: the title of its run, for its messages.
    resume.add_argument("--job", metavar="TITLE", help=argparse.SUPPRESS)
    inspect = command("inspect", _inspect, "say what a run is and how far it has come")
    inspect.add_argument("run", metavar="RUN", help=where)
    inspect.add_argument(
        "--all", action="store_true", help="every task, candidate and certificate, not a screenful"
    )
    watch = command("watch", _watch, "follow a run that goes on, here or on another machine")
    watch.add_argument("run", metavar="RUN", help=f"{where}; it may not be there yet")
    watch.add_argument("--once", action="store_true", help="show how it stands, and end")
    watch.add_argument(
        "--interval",
        type=seconds,
        metavar="SECONDS",
        help="how often to look (default: 1 on a terminal, 10 in a log)",
    )
    verify = command("verify", _verify, "recompute the certificates and accuracies of a run")
    verify.add_argument("run", metavar="RUN", help=where)
    add_place_options(verify, begun=True)
    export = command("export", _export, "write tasks of a run as programs without clnp")
    export.add_argument("run", metavar="RUN", help="the directory of the run")
    which = export.add_mutually_exclusive_group()
    which.add_argument(
        "--task",
        dest="tasks",
        metavar="NAME",
        action="append",
        default=[],
        help="a task that has ended; may be repeated",
    )
    which.add_argument("--all", action="store_true", help="all tasks that have ended")
    export.add_argument(
        "--out", metavar="FILE", help="a file, or a directory (default: RUN/NAME.pt2, or .onnx)"
    )
    export.add_argument(
        "--format",
        choices=("pt2", "onnx"),
        help="a program of torch.export, or ONNX (default: as FILE ends, or else pt2)",
    )
    export.add_argument(
        "--bare",
        action="store_true",
        help="leave out what makes inputs of samples, which the answer tells; it is RUN/NAME-bare",
    )
    export.add_argument("--device", help="cpu, cuda, ...: where a pt2 will run (default: cpu)")
    add_data_option(export, begun=True)
    report = command("report", _report, "write a page and figures about runs")
    report.add_argument(
        "runs", nargs="+", metavar="RUN", help="directories of runs, series or comparisons"
    )
    report.add_argument(
        "--out", metavar="DIR", help="directory of the report (default, for one RUN: RUN/report)"
    )
    recipes = command("recipes", _recipes, "list the recipes, or print one")
    recipes.add_argument("recipe", nargs="?", metavar="RECIPE", help="print this one")
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
            methods=options.methods,
            seed=options.seed,
            num_seeds=options.seeds,
            search_once=options.search_once,
            num_jobs=options.jobs,
            out=options.out,
            console=console,
        )


def _start(options: argparse.Namespace, recipe: str) -> Answer:
    from clnp.studies import launch

    from . import commands

    with contextlib.closing(_console(options)) as console:
        return commands.start(
            launch.Source(recipe, _assignments(options)),
            _run_options(options),
            seed=options.seed,
            num_seeds=options.seeds,
            search_once=options.search_once,
            num_jobs=options.jobs,
            out=options.out,
            console=console,
        )


def _assignments(options: argparse.Namespace, **instead: str) -> tuple[str, ...]:
    """What is given with --set; a key that an option is there for `instead` is refused."""
    first = instead if options.seed is None else {**instead, "seed": "--seed"}
    for text in options.assignments:
        if (key := text.partition("=")[0].strip()) in first:
            raise ArgumentError(f"--set {text} would change nothing: {first[key]} comes first")
    return tuple(options.assignments)


def _resume(options: argparse.Namespace) -> Answer:
    if options.job is not None:
        stop_with_parent()
    from . import commands

    with contextlib.closing(_console(options)) as console:
        return commands.resume(
            options.run,
            _run_options(options),
            num_jobs=options.jobs,
            console=console,
            job=options.job,
        )


def _run_options(options: argparse.Namespace) -> Any:
    from clnp.studies.launch import RunOptions

    trackers = tuple(dict.fromkeys(options.trackers or ()))
    every = options.checkpoint_every
    return RunOptions(options.device, options.data, every, trackers, options.quiet)


def _console(options: argparse.Namespace) -> Silence:
    """Bars on a terminal, lines in a log: on stderr, so that the answer stands alone on stdout."""
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
        raise SystemExit(STOPPED) from None  # Nothing was stopped but the watching.
    except BrokenPipeError:
        # The reader, `head` perhaps, has seen enough; Python would try once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    options.code = {"failed": FAILURE, "stopped": STOPPED}.get(scene.status, 0)
    return scene.to_json(), text


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
        raise ArgumentError(f"--keys are those of every recipe: leave out {options.recipe}")
    if options.keys:
        from clnp.recipes.reference import reference, rows

        return rows(), reference()
    if options.recipe is not None:
        text = bundled.text(options.recipe)
        return {"name": options.recipe, "text": text}, text.rstrip()
    found = {name: bundled.description(name) for name in bundled.names()}
    width = max(map(len, found))
    return found, "\n".join(f"{name:{width}}  {line}" for name, line in found.items())

"""The command line. Nothing here imports PyTorch before a command has to."""

import argparse
import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from . import cookbook
from .console import Bars, Lines, Silence
from .errors import (
    FAILURE,
    OUT_OF_MEMORY,
    STOPPED,
    USER_ERROR,
    ArgumentError,
    ClnpError,
    is_out_of_memory,
)
from .jobs import get_ready
from .options import (
    add_data_option,
    add_place_options,
    add_recipe_options,
    add_run_options,
    names,
    seconds,
)
from .version import __version__

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
    from .runs import to_json

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
    print(f"clnp: {message}", file=sys.stderr)
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
        made.set_defaults(command=action, code=0)
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
    get_ready()
    from . import carrying, comparing

    with contextlib.closing(_console(options)) as console:
        return comparing.compare(
            carrying.Source(options.recipe, _assignments(options, method="--methods")),
            _circumstances(options),
            methods=options.methods,
            seed=options.seed,
            num_seeds=options.seeds,
            search_once=options.search_once,
            num_jobs=options.jobs,
            out=options.out,
            console=console,
        )


def _start(options: argparse.Namespace, recipe: str) -> Answer:
    if options.jobs > 1:
        get_ready()
    from . import carrying, commands

    with contextlib.closing(_console(options)) as console:
        return commands.start(
            carrying.Source(recipe, _assignments(options)),
            _circumstances(options),
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
    if options.jobs > 1:
        get_ready()
    from . import commands

    with contextlib.closing(_console(options)) as console:
        return commands.resume(
            options.run, _circumstances(options), num_jobs=options.jobs, console=console
        )


def _circumstances(options: argparse.Namespace) -> Any:
    from .carrying import Circumstances

    trackers = tuple(dict.fromkeys(options.trackers or ()))
    return Circumstances(options.device, options.data, options.checkpoint_every, trackers)


def _console(options: argparse.Namespace) -> Silence:
    """Bars on a terminal, lines in a log: on stderr, so that the answer stands alone on stdout."""
    if options.quiet:
        return Silence()
    return Bars(sys.stderr) if sys.stderr.isatty() else Lines(sys.stderr)


def _inspect(options: argparse.Namespace) -> Answer:
    from .overview import inspect

    return inspect(options.run, in_full=options.all)


def _watch(options: argparse.Namespace) -> Answer:
    from .live import watch

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
    from .verification import verify_at

    return verify_at(options.run, device=options.device, data=options.data)


def _export(options: argparse.Namespace) -> Answer:
    from .exporting import export

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
    from .report.write import FIGURES, write_report

    page, *figures = write_report(options.runs, out=options.out)
    kinds = sorted({file.suffix[1:] for file in figures})
    shown = f"\nThe figures are in {page.parent / FIGURES}: {', '.join(kinds)}." if figures else ""
    files = [str(file) for file in (page, *figures)]
    return {"page": str(page), "files": files}, f"The report is in {page}.{shown}"


def _recipes(options: argparse.Namespace) -> Answer:
    if options.keys and options.recipe is not None:
        raise ArgumentError(f"--keys are those of every recipe: leave out {options.recipe}")
    if options.keys:
        from .reference import reference, rows

        return rows(), reference()
    if options.recipe is not None:
        text = cookbook.text(options.recipe)
        return {"name": options.recipe, "text": text}, text.rstrip()
    found = {name: cookbook.description(name) for name in cookbook.names()}
    width = max(map(len, found))
    return found, "\n".join(f"{name:{width}}  {line}" for name, line in found.items())

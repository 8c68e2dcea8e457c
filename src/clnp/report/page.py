"""The page of a report: everything that `report.html.j2` shows."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from statistics import fmean

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from clnp.core.forecast import RECENT
from clnp.palette import style
from clnp.plain import to_plain
from clnp.records import OURS
from clnp.runs.metrics import forgetting
from clnp.studies.summaries import megabytes
from clnp.studies.tables import Cell, Table
from clnp.text import clean, duration, shortened
from clnp.version import __version__

from .collection import Collection, Member, config_of, settings_of
from .draw import Picture, averaged, count, for_a_phone, in_words, named
from .figures.accuracy import draw_accuracy
from .figures.capacity import draw_capacity
from .figures.pruning import draw_pruning
from .figures.training import draw_training
from .measures import free_share, free_shares, members_table, spread_of
from .render import inline, settle

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Forbids the page to load anything."""
MOST_ROWS = 1000
"""Rows of a table in the page."""
MOST_GUESSES = 5

NO_SCORES = "No task has a test score yet."
NO_NEURONS = "No task has claimed neurons yet; tasks of baselines claim none."
NO_PRUNING = (
    "There are no pruning curves: no task has been pruned yet, the log is missing, or the method "
    "does not prune neurons."
)
NO_EPOCHS = "There are no epochs: training has not started, or the log is missing."
DEFINITIONS = {
    "forgetting": "Forgetting: mean loss of a task since its best score.",
    "backward transfer": "Backward transfer: mean change since a task was learned.",
    "forward transfer": "Forward transfer: mean gain compared with learning each task alone.",
}


@dataclass(frozen=True)
class Section:
    """A part of the page: a figure with a sentence before it, or why there is none.

    `phone` is the same figure for a narrow screen.
    """

    name: str
    title: str
    picture: Picture | None
    phone: Picture | None
    sentence: str


@dataclass(frozen=True)
class Fact:
    """A number in large type; `kind` is its class in the style sheet."""

    name: str
    value: str
    more: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Settings:
    """All settings of a member, which has a name if there are several, and its recipe."""

    member: str
    table: Table
    recipe: tuple[str, ...]


@dataclass(frozen=True)
class Page:
    """The page; its figures by name with their layout, None where there is nothing; and tables."""

    text: str
    pictures: dict[str, Picture | None]
    tables: dict[str, Table]


def make_page(collection: Collection) -> Page:
    """Return the page with its figures and tables."""
    sections = _sections(collection)
    for section in sections:
        for picture in (section.picture, section.phone):
            if picture is not None:
                settle(picture.figure)
    several = len(collection.members) > 1
    members = members_table(collection) if several else None
    page = _template().render(
        collection=collection,
        policy=POLICY,
        style=Markup(style() + _file("report.css")),
        version=__version__,
        inline=inline,
        most_rows=MOST_ROWS,
        sections=sections,
        lead=lead(collection),
        guesses=guesses(collection),
        alike=alike,
        members=members,
        definitions=[d for title, d in DEFINITIONS.items() if members and title in members.header],
        facts=[] if several else facts(collection),
        runs=None if collection.single else runs_table(collection),
        differences=differences(collection),
        settings=[_settings(member, collection.members) for member in collection.members],
        environments=environments(collection),
        certificates=certificates(collection),
    )
    pictures = {section.name: section.picture for section in sections}
    tables = {
        name: replace(picture.data or picture.table, name=name, caption=picture.caption)
        for name, picture in pictures.items()
        if picture is not None
    }
    return Page(page, pictures, {**tables, **({members.name: members} if members else {})})


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def alike(table: Table) -> tuple[Table, str]:
    """Return the table without columns that have one value in all rows, and a sentence on these."""
    if len(table.rows) < 2:
        return table, ""
    by_column = list(zip(*table.texts(), strict=True))
    same = [i for i, cells in enumerate(by_column) if i and len(set(cells)) == 1]
    kept = [index for index in range(len(by_column)) if index not in same]
    told = [(table.header[index], by_column[index][0]) for index in same]
    words = "; ".join(f"{title} {value}".strip() for title, value in told if value not in ("", "-"))
    shown = replace(
        table,
        header=tuple(table.header[index] for index in kept),
        rows=tuple(tuple(row[index] for index in kept) for row in table.rows),
    )
    return shown, f"The same in all rows: {words}." if words else ""


@cache
def _template() -> Template:
    text = _file("report.html.j2")
    environment = Environment(autoescape=True, finalize=_shown, undefined=StrictUndefined)
    return environment.from_string(text)


def _shown(value: object) -> object:
    """Return a value as text on one line, without control characters; None is a dash."""
    if value is None:
        return "\u2013"  # An en dash.
    return value if isinstance(value, Markup) or value == "" else clean(value)


def _sections(collection: Collection) -> list[Section]:
    """Return the sections with their figures, or a sentence why there is none."""
    owners = [member.label for member in collection.with_neurons]
    some = 0 < len(owners) < len(collection.members)
    only = f"Only {in_words(owners, 12)} claim and prune neurons." if some else ""
    scores = ("accuracy", "Scores", draw_accuracy, "", NO_SCORES)
    capacity = ("capacity", "Capacity", draw_capacity, only, NO_NEURONS)
    found = (
        *([capacity, scores] if owners else [scores, capacity]),
        ("pruning", "Pruning", draw_pruning, only, NO_PRUNING),
        ("training", "Training", draw_training, "", NO_EPOCHS),
    )
    sections = []
    for name, title, draw, before, nothing in found:
        picture = draw(collection)
        with for_a_phone():
            phone = draw(collection)
        phone = replace(phone, name=f"{name}-phone") if phone is not None else None
        words = nothing if picture is None else before
        sections.append(Section(name, title, picture, phone, words))
    return sections


def lead(collection: Collection) -> str:
    """Return the tasks, the methods, the network, the hardware and the seeds in a few sentences."""
    names, num = collection.names, collection.num_tasks
    methods = list(dict.fromkeys(run.method for run in collection.runs))
    how = "neural pruning" if methods == [OURS] else in_words(methods, 12)
    heads = {run.head for run in collection.runs} & {"single", "multi"}
    network = f" in a {heads.pop()}-head network" if len(heads) == 1 else ""
    ends = [shortened(clean(name), 60) for name in names[:num]][:: max(num - 1, 1)]
    which = f", {' to '.join(ends)}," if ends else ""
    words = f"{count(num, 'task')}{which} learned by {how}{network}."
    devices = {str(s.gpu or s.cpu) for run in collection.runs for s in run.sessions[-1:]}
    seconds = collection.runs[0].seconds
    took = f"Took {duration(seconds)}" if collection.single is not None and seconds else "Run"
    if devices - {"None"}:
        words += f" {took} on {in_words(sorted(devices - {'None'}))}."
    return words + averaged(collection.members, "Values are means ± standard deviations over {}.")


def guesses(collection: Collection) -> list[str]:
    """Return the tasks in which nothing was learned, a line for each member."""
    found = []
    for member in collection.members:
        names = []
        for index in range(member.num_tasks):
            tasks = member.learned(index)
            num = sum(task.is_a_guess for task in tasks)
            if num:
                seeds = f" ({num} of {len(tasks)} seeds)" if num < len(tasks) else ""
                names.append(f"{shortened(clean(tasks[0].name), 60)}{seeds}")
        if names:
            found.append(f"{named(member, collection.members)}{in_words(names, MOST_GUESSES)}.")
    return found


def facts(collection: Collection) -> list[Fact]:
    """Return the most important numbers of a run or series."""
    member = collection.members[0]
    if not collection.num_tasks:
        return []
    found = [_average(collection, member)]
    if any(len(run.learned) > 1 for run in member.runs):  # One task alone could not be forgotten.
        found.append(_forgetting(member))
    if member.has_neurons:
        return [*_room(member), _capacity_left(member), *found]
    stored = spread_of(megabytes(run.stored_bytes) for run in member.runs)
    if stored is not None:
        found.append(Fact("Stored", f"{stored} MB", "Needed for inference on all tasks."))
    return found


def _average(collection: Collection, member: Member) -> Fact:
    rows = [run.scores[-1] for run in member.runs if run.scores]
    known = [[score for score in row if score is not None] for row in rows]
    found = spread_of(fmean(row) if row else None for row in known)
    name = "Average test accuracy" if collection.is_accuracy else "Average test score"
    if found is None:
        return Fact(name, "unknown", "There is no test data.")
    some = "" if known == list(map(list, rows)) else f"{max(map(len, known))} of "
    value = f"{found} %" if collection.is_accuracy else str(found)
    return Fact(name, value, f"Of {some}{count(member.num_tasks, 'task')}, after the last.")


def _forgetting(member: Member) -> Fact:
    """Return exactly zero if all outputs are unchanged; otherwise a mean loss."""
    tasks = [task for run in member.runs for task in run.learned]
    num_certified = sum(1 for task in tasks if task.certificate)
    certified = count(num_certified, "certificate")
    known = [task for task in tasks if task.unchanged is not None]
    if not known:
        more = f"There is no test data; {certified}." if num_certified else ""
        return Fact("Forgetting", "not measured", more)
    if all(task.test_score is None for task in known):
        return Fact("Forgetting", "nothing to forget", "All tasks were learned at the same time.")
    num_changed = sum(not task.unchanged for task in known)
    if num_changed:
        amount = spread_of(forgetting(run.scores) if run.scores else None for run in member.runs)
        more = f"The test outputs of {num_changed} of {len(known)} tasks have changed."
        return Fact("Forgetting", str(amount or "outputs differ"), more, "bad")
    which = "all tasks" if len(known) == len(tasks) else f"{len(known)} of {len(tasks)} tasks"
    more = f"The test outputs of {which} are bit for bit what they were when learned"
    if num_certified:
        verified = all(run.verified for run in member.runs)
        more += f"; {certified}{', verified at the end' if verified else ''}"
    num_guessed = sum(task.is_a_guess for task in tasks)
    if num_guessed:
        more += f". In {num_guessed} of {len(tasks)}, nothing was learned"
    return Fact("Forgetting", "0, exactly", f"{more}.", "" if num_guessed else "good")


def _capacity_left(member: Member) -> Fact:
    found = spread_of((free_share(run) for run in member.runs), 0)
    shares = free_shares(member)
    more = "Free neurons, averaged over the layers"
    if len(shares) > 1:
        fullest = min(shares, key=lambda group: shares[group])
        more += f"; least in {shortened(clean(fullest), 40)}, {shares[fullest]:.0f} %"
    return Fact("Capacity left", f"{found} %", f"{more}.")


def _room(member: Member) -> list[Fact]:
    """Return the forecast of how many more tasks fit, if there is one."""
    sentences = list(dict.fromkeys(run.outlook for run in member.runs if run.outlook))
    if not sentences:
        return []
    if any(task.is_a_guess for run in member.runs for task in run.learned[-RECENT:]):
        more = "The forecast depends on the last tasks, in which nothing was learned."
        return [Fact("Room", "unknown", more)]
    numbers = {run.num_more for run in member.runs}
    known = sorted(number for number in numbers if number is not None)
    if len(known) == len(numbers) > 1:
        value = f"About {known[0]} to {known[-1]} more tasks"
        return [Fact("Room", value, f"If they are like the last; {len(member.runs)} seeds.")]
    first, _, more = sentences[0].partition("; ")
    if num := known[0] if len(known) == len(numbers) else 0:
        first = f"About {num} more task{'' if num == 1 else 's'}"
        more = f"If they are like the last; {more}"
    more = f"{more}." if more else ""
    if len(sentences) > 1:
        more += f" This is seed {member.runs[0].seed}; other seeds differ."
    return [Fact("Room", first[:1].upper() + first[1:], more.strip())]


def runs_table(collection: Collection) -> Table:
    """Return a row for each run."""
    rows: list[tuple[Cell, ...]] = [
        (
            str(run.path),
            run.method,
            run.seed,
            f"{len(run.learned)} of {run.num_tasks}",
            "failed" if run.failed is not None else "finished" if run.finished else "not finished",
            None if run.seconds is None else duration(run.seconds),
        )
        for run in collection.runs
    ]
    return Table(("run", "method", "seed", "tasks", "state", "time"), tuple(rows))


def differences(collection: Collection) -> Table:
    """Return the settings in which members differ, except for the seed."""
    configs = [settings_of(member.runs[0]) for member in collection.members]
    rows: list[tuple[Cell, ...]] = []
    for key in dict.fromkeys(key for config in configs for key in config):
        # None means the same as a key that is missing.
        values = [None if (v := config.get(key)) is None else _plain(v)[:200] for config in configs]
        if len(set(values)) > 1:
            rows.append((key, *values))
    return Table(("key", *(member.label for member in collection.members)), tuple(rows))


def _plain(value: object) -> str:
    """Return the value as in a file; text without quotation marks."""
    if value is None:
        return "none"
    return clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _settings(member: Member, members: Sequence[Member]) -> Settings:
    run = member.runs[0]
    config = config_of(run.config, without=("tasks",))
    rows = tuple((key, _plain(value)) for key, value in config.items())
    name = member.label if len(members) > 1 else ""
    return Settings(name, Table(("key", "value"), rows), tuple(run.text.splitlines()[:2000]))


def environments(collection: Collection) -> Table:
    """Return each environment in a column, and how often a run was started in it."""
    sessions = [session for run in collection.runs for session in run.sessions]
    starts = Counter(replace(session, began=None, command=()) for session in sessions)
    shown: list[dict[str, object]] = [to_plain(environment) for environment in starts]
    rows: list[tuple[Cell, ...]] = [
        (key, *(None if plain[key] is None else _plain(plain[key]) for plain in shown))
        for key in (shown[0] if shown else ())
        if any(plain[key] for plain in shown)
    ]
    first = min((session.began for session in sessions if session.began), default=None)
    rows = [("began", first, *[None] * (len(shown) - 1)), *rows, ("starts", *starts.values())]
    numbers = [f"environment {number}" for number in range(1, len(shown) + 1)]
    return Table(("", *(numbers if len(shown) > 1 else ["value"])), tuple(rows if shown else ()))


def certificates(collection: Collection) -> list[tuple[str, Table]]:
    """Return the SHA-256 of each ended task, run by run."""
    found = []
    for run in collection.runs:
        rows = tuple((task.name, task.certificate) for task in run.learned if task.certificate)
        if rows:
            found.append((clean(run.path), Table(("task", "SHA-256"), rows)))
    return found

"""What was run and what it came to: the top of a report."""

from collections.abc import Sequence
from statistics import fmean

from clnp.core.forecast import RECENT
from clnp.methods.method import OURS
from clnp.runs.metrics import forgetting
from clnp.runs.records import RunHistory
from clnp.terminal.summary import AS_GOOD
from clnp.text import clean, duration, shortened

from . import markup
from .collection import Collection, Member
from .measures import columns, free_share, spread_of, tightest
from .picture import Cell, Table, counted, in_words

Fact = tuple[str, str, str, str]

MOST_NAMED = 5
"""Tasks that a sentence names."""


def lead(collection: Collection) -> str:
    """What was run, in two sentences."""
    names, num = collection.names, collection.num_tasks
    methods = list(dict.fromkeys(each.method for each in collection.runs))
    how = "neural pruning" if methods == [OURS] else in_words(methods, 12)
    heads = {each.head for each in collection.runs} & {"single", "multi"}
    network = f" in a {heads.pop()}-head network" if len(heads) == 1 else ""
    ends = [shortened(clean(name), 60) for name in names[:num]][:: max(num - 1, 1)]
    which = f", {' to '.join(ends)}," if ends else ""
    words = f"{counted(num, 'task')}{which} learnt by {how}{network}."
    devices = {str(s.get("gpu") or s.get("cpu")) for r in collection.runs for s in r.sessions[-1:]}
    seconds = collection.runs[0].seconds
    took = f"Took {duration(seconds)}" if collection.single is not None and seconds else "Run"
    if devices:
        words += f" {took} on {in_words(sorted(devices))}."
    return words


def alarm(collection: Collection) -> str:
    """What a reader has to know before any number: tasks in which nothing was learnt, if any."""
    several = len(collection.members) > 1
    found = []
    for member in collection.members:
        names = _guessed(member)
        if names:
            who = f"{clean(member.label)}: " if several else ""
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            found.append(f"{who}{', '.join(names[:MOST_NAMED])}{more}.")
    if not found:
        return ""
    return (
        '<aside class="notes alarm" aria-labelledby="alarm">'
        f"{markup.heading(3, 'NOT LEARNT', 'alarm')}{markup.listing(found)}"
        f"{markup.paragraph(AS_GOOD)}</aside>"
    )


def _guessed(member: Member) -> list[str]:
    """The tasks in which nothing was learnt, and with how many of the seeds if not with all."""
    found = []
    for place in range(member.num_tasks):
        tasks = [task for task in member.task(place) if task.learnt]
        num = sum(task.is_a_guess for task in tasks)
        if num:
            seeds = f" ({num} of {len(tasks)} seeds)" if num < len(tasks) else ""
            found.append(f"{shortened(clean(tasks[0].name), 60)}{seeds}")
    return found


def headline(collection: Collection) -> str:
    """The numbers that matter most; for several members, a table of them."""
    if collection.num_tasks == 0:
        return markup.paragraph("No task has been learnt yet.")
    if len(collection.members) > 1:
        words = (
            "Forgetting: mean loss of a task since it was at its best. Backward transfer: mean "
            "change since it was learnt."
        )
        if any(column.title == "forward transfer" for column in columns(collection)):
            words += " Forward transfer: mean gain over learning it alone."
        if len(collection.runs) > len(collection.members):
            words += " Means ± standard deviations over seeds."
        table = markup.table(
            members_table(collection), label="Methods and runs compared", kind="members"
        )
        return table + markup.paragraph(words)
    member = collection.members[0]
    entries = [_average(collection, member), _forgetting(member)]
    if member.has_neurons:
        entries += [_capacity(member), _outlook(member)]
    else:
        entries += [_stored(member)]
    return markup.facts([entry for entry in entries if entry is not None])


def members_table(collection: Collection) -> Table:
    """A row for each member: mean and deviation of every column."""
    found = columns(collection)
    rows: list[tuple[Cell, ...]] = []
    for member in collection.members:
        cells = [column.text(member) for column in found]
        rows.append((clean(member.label), *cells, len(member.runs)))
    return Table(("", *(column.title for column in found), "seeds"), tuple(rows))


def _over(runs: Sequence[RunHistory]) -> str:
    return f"mean over {len(runs)} seeds, " if len(runs) > 1 else ""


def _average(collection: Collection, member: Member) -> Fact | None:
    rows = [run.scores[-1] for run in member.runs if run.scores]
    known = [[score for score in row if score is not None] for row in rows]
    found = spread_of(fmean(row) if row else None for row in known)
    if found is None:
        return ("Average test score", "unknown", "There is no test data.", "words")
    accuracy = "accuracy" in collection.score_name
    name = "Average test accuracy" if accuracy else "Average test score"
    value = f"{found.text()} %" if accuracy else found.text()
    some = "" if known == list(map(list, rows)) else f"{max(map(len, known))} of "
    more = f"{_over(member.runs)}of {some}{counted(member.num_tasks, 'task')}, after the last"
    return (name, value, more[0].upper() + more[1:], "" if found.num == 1 else "words")


def _forgetting(member: Member) -> Fact:
    """Exactly none, where every output is what it was; otherwise how much."""
    tasks = [task for run in member.runs for task in run.learnt]
    certified = sum(1 for task in tasks if task.certificate)
    judged = [task for task in tasks if task.unchanged is not None]
    if judged and all(task.test_score is None for task in judged):
        return ("Forgetting", "nothing to forget", "All were learnt at the same time.", "words")
    if judged and all(task.unchanged for task in judged):
        outputs = (
            "The test outputs of all tasks are"
            if len(judged) == len(tasks)
            else f"The test outputs of {len(judged)} of {len(tasks)} tasks are"
        )
        more = f"{outputs} what they were when learnt, to the last bit"
        if certified:
            more += f"; {counted(certified, 'certificate')}"
            more += ", verified at the end" if all(run.verified for run in member.runs) else ""
        num_guessed = sum(task.is_a_guess for task in tasks)
        if num_guessed:
            more += f". In {num_guessed} of {len(tasks)} nothing was learnt that could be forgotten"
        return ("Forgetting", "0, exactly", f"{more}.", "" if num_guessed else "good")
    if not judged:
        more = (
            f"No test data to judge by; {counted(certified, 'certificate')}." if certified else ""
        )
        return ("Forgetting", "not measured", more, "words")
    amount = spread_of(forgetting(run.scores) if run.scores else None for run in member.runs)
    changed = sum(1 for task in judged if not task.unchanged)
    value = "outputs differ" if amount is None else amount.text()
    more = f"The outputs of {changed} of {len(judged)} tasks are not what they were when learnt."
    return ("Forgetting", value, more, "bad" if amount is None or amount.num == 1 else "bad words")


def _capacity(member: Member) -> Fact:
    found = spread_of(free_share(run) for run in member.runs)
    least = tightest(member)
    more = f"{_over(member.runs)}of the neurons of a layer, averaged over the layers"
    if least is not None and len(member.groups) > 1:
        more += f"; least in {shortened(clean(least[0]), 40)}, {least[1]:.0f} %"
    value = "unknown" if found is None else f"{found.text(0)} %"
    small = "words" if found is None or found.num > 1 else ""
    return ("Capacity left", value, f"{more[0].upper()}{more[1:]}.", small)


def _outlook(member: Member) -> Fact | None:
    sentences = list(dict.fromkeys(run.outlook for run in member.runs if run.outlook))
    if not sentences:
        return None
    if any(task.is_a_guess for run in member.runs for task in run.learnt[-RECENT:]):
        more = "It goes by the last tasks, in which nothing was learnt."
        return ("Room", "unknown", more, "words")
    numbers = [run.num_more for run in member.runs]
    known = sorted({number for number in numbers if number is not None})
    if len(sentences) > 1 and len(known) > 1 and None not in numbers:
        value = f"About {known[0]} to {known[-1]} more tasks"
        return ("Room", value, f"like the last would fit, by {len(numbers)} seeds.", "words")
    first, _, rest = sentences[0].partition("; ")
    if len(sentences) > 1:
        rest += f"{'. ' if rest else ''}This is seed {member.runs[0].seed}; others say otherwise"
    return ("Room", f"{first[0].upper()}{first[1:]}", f"{rest}." if rest else "", "words")


def _stored(member: Member) -> Fact | None:
    found = spread_of(
        None if run.stored_bytes is None else run.stored_bytes / 1e6 for run in member.runs
    )
    if found is None:
        return None
    more = f"What {clean(member.runs[0].method)} keeps to answer for all tasks."
    return ("Stored", f"{found.text()} MB", more, "" if found.num == 1 else "words")

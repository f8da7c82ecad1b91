"""What `numbarnn check` tells: comparisons grouped for tables, the failures, the verdict."""

import textwrap

from numbarnn.bench import console
from numbarnn.bench.cases.cases import OPTIONS
from numbarnn.bench.peers import cudnn, peers
from numbarnn.common import precision

ROWS_SHOWN = 40  # failures and notes printed one by one; --json has them all
LETTERS_SHOWN = 400  # of a message in a table
PLAIN = "none of these"  # what stands for the cases without an option
TWICE = 2.0  # the ratio to a peer's error that passes at any size


class Group:
    """Some comparisons together, at least one.

    Attributes:
        key: what they have in common, a tuple of words.
        worst: a failure, or else the one nearest to its limit; those of dropout's masks come last.
        median_ratio, within_twice: of the ratios of errors to the peer's: the median, and the share of those up to 2.
    """

    def __init__(self, key, members):
        self.key, self.members = key, members
        self.failed = sum(not one.ok for one in members)
        self.worst = max(members, key=lambda c: (not c.ok, not c.quantity.startswith("dropout"), c.share))
        ratios = sorted(one.ratio for one in members if one.ratio is not None and one.ratio == one.ratio)
        self.median_ratio = ratios[(len(ratios) - 1) // 2] if ratios else None
        self.within_twice = sum(ratio <= TWICE for ratio in ratios) / len(ratios) if ratios else None
        self.result = "FAILED" if self.failed else "ok"


def grouped(comparisons, key):
    """A `Group` for each value of `key(comparison)`, in the order in which they come."""
    found = {}
    for comparison in comparisons:
        found.setdefault(key(comparison), []).append(comparison)
    return [Group(key, members) for key, members in found.items()]


def of_results(comparisons):
    """Those of results: without refusals of schedules, and notes about peers."""
    return [comparison for comparison in comparisons if comparison.compared]


def by_run(comparisons, verbose=False):
    """Groups by cell, engine, schedule and dtype, or by case if verbose."""
    last = (lambda c: c.options) if verbose else dtype_of
    groups = grouped(of_results(comparisons), lambda c: (c.cell, c.engine, c.schedule, last(c)))
    return groups if verbose else sorted(groups, key=lambda group: (group.key[1], group.key[0]))


def dtype_of(comparison):
    return next((dtype for dtype in precision.DTYPES if dtype in comparison.options.split()), "-")


def by_option(comparisons):
    """Groups by option, PLAIN first; a comparison is in those of all that its case uses."""
    groups = []
    for option in (PLAIN, *OPTIONS):
        if members := [c for c in of_results(comparisons) if (option in c.uses if option != PLAIN else not c.uses)]:
            groups.append(Group((option,), members))
    return groups


def cells(group):
    """A group's cells under `COLUMNS`."""
    worst, middle, within = group.worst, group.median_ratio, group.within_twice
    errors = map(number, (worst.error, worst.torch_error, worst.cudnn_error, worst.limit))
    shares = "-" if middle is None else f"{middle:.2f}", "-" if within is None else f"{within:.0%}"
    return [str(len(group.members)), *errors, *shares, worst.quantity]


COLUMNS = ("checks", "worst", "PyTorch", "cuDNN", "limit", "ratio", "up to 2", "at")
NUMBERS = COLUMNS[:-1]
LEGEND = (
    "worst: the error nearest to its limit, with the peers' errors there; ratio: the median of error / the peer's "
    "error (cuDNN's where it ran, else PyTorch's); up to 2: the share of ratios that are at most 2"
)


def number(value):
    return "-" if value is None else f"{value:.1e}"


def table(groups, headings):
    """(columns, rows) of groups; columns in which no row has anything are left out."""
    columns = ["result", *headings, *COLUMNS]
    rows = [[group.result, *group.key, *cells(group)] for group in groups]
    kept = [i for i, column in enumerate(columns) if column not in NUMBERS or any(row[i] != "-" for row in rows)]
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]


def failure_row(comparison):
    """A failed comparison as cells of FAILURE_COLUMNS; a long message is cut."""
    happened = comparison.message or f"{number(comparison.error)} > {number(comparison.limit)}"
    happened = textwrap.shorten(happened, LETTERS_SHOWN, placeholder=" ...")
    about = comparison.cell, comparison.engine, comparison.schedule, comparison.options
    return [*about, comparison.mode, comparison.quantity, happened]


FAILURE_COLUMNS = ("cell", "engine", "schedule", "options", "mode", "quantity", "what happened")


def notes(comparisons):
    """What there is to tell about peers: triples of a peer, what it said, and the cases, the most frequent first."""
    found = {}
    for comparison in comparisons:
        if not (comparison.compared or comparison.refused):
            case = f"{comparison.cell} {comparison.options}"
            found.setdefault((comparison.quantity, comparison.message), []).append(case)
    return sorted(((*about, cases) for about, cases in found.items()), key=lambda note: -len(note[2]))


def print_comparisons(comparisons, verbose=False):
    """A row per cell, engine, schedule and dtype (per case when verbose); one per option; then a table of failures."""
    headings = "cell", "engine", "schedule", "options" if verbose else "dtype"
    columns, rows = table(by_run(comparisons, verbose), headings)
    console.print_table("Error against float64", columns, rows, right=NUMBERS)
    columns, rows = table(by_option(comparisons), ("option",))
    console.print_table("By option; a case with several is in each row of theirs", columns, rows, NUMBERS)
    console.say_wrapped(LEGEND)
    failures = [comparison for comparison in comparisons if not comparison.ok]
    if failures:
        more = f" (the first {ROWS_SHOWN} of {len(failures)})" if len(failures) > ROWS_SHOWN else ""
        rows = [failure_row(comparison) for comparison in failures[:ROWS_SHOWN]]
        console.print_table(f"Failures{more}", FAILURE_COLUMNS, rows)


def print_summary(comparisons, seconds):
    """The last lines: what schedules and peers refused, and the verdict."""
    refused = [comparison for comparison in comparisons if comparison.refused]
    for group in grouped(refused, lambda c: (c.schedule, c.engine)):
        (schedule, engine), first = group.key, group.members[0]
        cases = f"{len(group.members)} cases on {engine}, such as {first.cell} {first.options}"
        console.say_wrapped(f"{schedule} refuses {cases}: {first.message}")
    for peer, said, cases in notes(comparisons)[:ROWS_SHOWN]:
        console.say_wrapped(f"{peer}, {len(cases)} cases such as {cases[0]}: {said}")
    if any(comparison.engine == "cuda" for comparison in comparisons) and (reason := cudnn.why_not()):
        console.say_wrapped(f"without cuDNN: {reason}")
    console.say_wrapped(f"numbarnn check: {verdict(comparisons, seconds)}")


def verdict(comparisons, seconds):
    failed = sum(not comparison.ok for comparison in comparisons)
    total = sum(comparison.compared for comparison in comparisons)
    engines = sorted({comparison.engine for comparison in comparisons})
    against = ["float64"] + ["cuDNN"] * any(comparison.cudnn_error is not None for comparison in comparisons)
    against += ["PyTorch" if peers.installed("torch") else "nothing else (PyTorch is not installed)"]
    how = f"{failed} of {total} comparisons FAILED" if failed else f"all {total} passed"
    return f"{how}, on {', '.join(engines) or 'no engine'}, against {' and '.join(against)}, in {seconds:.0f} s"

"""What `numbarnn check` tells: comparisons grouped for tables, the failures, the verdict."""

import textwrap

from numbarnn.bench import console
from numbarnn.bench.cases.cases import OPTIONS
from numbarnn.bench.check.accuracy import REFUSED
from numbarnn.bench.peers import contender, cudnn
from numbarnn.common import precision

ROWS_SHOWN = 40  # failures and notes printed one by one; --json has them all
LETTERS_SHOWN = 400  # of a message in a table
PLAIN = "none of these"  # what stands for the cases without an option
COLUMNS = ("checks", "worst", "PyTorch", "cuDNN", "limit", "ratio", "up to 2", "at")
NUMBERS = COLUMNS[:-1]
LEGEND = (
    "worst: the error nearest to its limit, with the peers' errors there; ratio: the median of error / the peer's "
    "error (cuDNN's where it ran, else PyTorch's); up to 2: the share of ratios that are at most 2"
)
FAILURE_COLUMNS = ("cell", "engine", "schedule", "options", "mode", "quantity", "what happened")


class Group:
    """Some comparisons together, at least one.

    Attributes:
        key: what they have in common, a tuple of words.
        worst: a failure, or else the one nearest to its limit.
        median_ratio, within_twice: of the ratios of errors to the peer's: the median, and the share of those up to 2.
    """

    def __init__(self, key, members):
        self.key, self.members = key, members
        self.result = "ok" if all(one.ok for one in members) else "FAILED"
        self.worst = max(members, key=lambda c: (not c.ok, c.share))
        ratios = sorted(one.ratio for one in members if one.ratio is not None and one.ratio == one.ratio)
        self.median_ratio = ratios[(len(ratios) - 1) // 2] if ratios else None
        self.within_twice = sum(ratio <= 2 for ratio in ratios) / len(ratios) if ratios else None

    def cells(self):
        """Return its cells under `COLUMNS`."""
        worst, middle, within = self.worst, self.median_ratio, self.within_twice
        errors = map(number, (worst.error, worst.torch_error, worst.cudnn_error, worst.limit))
        shares = "-" if middle is None else f"{middle:.2f}", "-" if within is None else f"{within:.0%}"
        return [str(len(self.members)), *errors, *shares, worst.quantity]


def grouped(comparisons, key):
    """Return a `Group` for each value of `key(comparison)`, in the order in which they come."""
    found = {}
    for comparison in comparisons:
        found.setdefault(key(comparison), []).append(comparison)
    return [Group(key, members) for key, members in found.items()]


def by_run(comparisons, verbose=False):
    """Return groups by cell, engine, schedule and dtype, or by case if verbose."""

    def key(one):
        words = one.options.split()
        dtype = next((dtype for dtype in precision.DTYPES if dtype in words), "-")
        return one.cell, one.engine, one.schedule, one.options if verbose else dtype

    groups = grouped([one for one in comparisons if one.compared], key)
    return groups if verbose else sorted(groups, key=lambda group: (group.key[1], group.key[0]))


def by_option(comparisons):
    """Return groups by option, PLAIN first; a comparison is in those of all that its case uses."""
    found = {option: [one for one in comparisons if one.compared and option in (one.uses or (PLAIN,))]
             for option in (PLAIN, *OPTIONS)}  # fmt: skip
    return [Group((option,), members) for option, members in found.items() if members]


def number(value):
    """Return an error as text."""
    return "-" if value is None else f"{value:.1e}"


def table(groups, headings):
    """Return (columns, rows) of groups; columns in which no row has anything are left out."""
    columns = ["result", *headings, *COLUMNS]
    rows = [[group.result, *group.key, *group.cells()] for group in groups]
    kept = [i for i, column in enumerate(columns) if column not in NUMBERS or any(row[i] != "-" for row in rows)]
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]


def failure_row(comparison):
    """Return a failed comparison as cells of FAILURE_COLUMNS; a long message is cut."""
    happened = comparison.message or f"{number(comparison.error)} > {number(comparison.limit)}"
    about = comparison.cell, comparison.engine, comparison.schedule, comparison.options
    happened = textwrap.shorten(happened, LETTERS_SHOWN, placeholder=" ...")
    return [*about, comparison.mode, comparison.quantity, happened]


def print_comparisons(comparisons, verbose=False):
    """Print a row per cell, engine, schedule and dtype (per case when verbose); one per option; then the failures."""
    headings = "cell", "engine", "schedule", "options" if verbose else "dtype"
    console.print_table("Error against float64", *table(by_run(comparisons, verbose), headings), NUMBERS)
    title = "By option; a case with several is in each row of theirs"
    console.print_table(title, *table(by_option(comparisons), ("option",)), NUMBERS)
    console.say_wrapped(LEGEND)
    if failures := [comparison for comparison in comparisons if not comparison.ok]:
        more = f" (the first {ROWS_SHOWN} of {len(failures)})" if len(failures) > ROWS_SHOWN else ""
        rows = [failure_row(comparison) for comparison in failures[:ROWS_SHOWN]]
        console.print_table(f"Failures{more}", FAILURE_COLUMNS, rows)


def print_summary(comparisons, seconds):
    """Print the last lines: what schedules and peers refused, and the verdict."""
    told = {}
    for one in comparisons:
        if not one.compared:
            who = f"{one.schedule} refuses" if one.mode == REFUSED else one.quantity
            about = (who, one.engine) if one.mode == REFUSED else (who, one.message)
            told.setdefault(about, []).append(one)
    for (who, _), cases in sorted(told.items(), key=lambda item: -len(item[1]))[:ROWS_SHOWN]:
        first, comma = cases[0], "" if cases[0].mode == REFUSED else ","
        where = f" on {first.engine}," if first.mode == REFUSED else ""
        words = f"{len(cases)} cases{where} such as {first.cell} {first.options}: {first.message}"
        console.say_wrapped(f"{who}{comma} {words}")
    if any(comparison.engine == "cuda" for comparison in comparisons) and (reason := cudnn.why_not()):
        console.say_wrapped(f"without cuDNN: {reason}")
    failed, total = sum(not one.ok for one in comparisons), sum(one.compared for one in comparisons)
    against = ["float64"] + ["cuDNN"] * any(one.cudnn_error is not None for one in comparisons)
    against += ["PyTorch" if contender.installed("torch") else "nothing else (PyTorch is not installed)"]
    how = f"{failed} of {total} comparisons FAILED" if failed else f"all {total} passed"
    where = ", ".join(sorted({one.engine for one in comparisons})) or "no engine"
    console.say_wrapped(f"numbarnn check: {how}, on {where}, against {' and '.join(against)}, in {seconds:.0f} s")

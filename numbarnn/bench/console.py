"""What commands have in common: tables and progress bars (rich if installed, else plain text), files, arguments."""

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path

import numpy as np

from numbarnn.common import files, install

WRAPPED = 7  # the narrowest that a column gets which may be wrapped
MOST_THREADS = 1024  # more than any CPU has cores


class CannotRun(RuntimeError):
    """A subcommand cannot do what it was asked for; the message says why and what helps."""


class WrongArguments(CannotRun):
    """Options that do not go together, or the file of one is not what it must be; the message names them as they are
    written, what came, and the cure. Exit status 2."""


class MissingPackage(CannotRun):
    """A subcommand needs a package that is not installed; the message has the command that installs it."""

    def __init__(self, package, purpose, extra):
        super().__init__(f"{package} is not installed, and {purpose} needs it: {install.command(extra)}")


def figure(purpose, **options):
    """A matplotlib Figure; MissingPackage, which names the purpose, where it is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackage("matplotlib", purpose, "cli") from error
    return Figure(**options, layout="constrained")


def have_rich():
    return importlib.util.find_spec("rich") is not None


def say(text="", error=False):
    """Prints a line of plain text."""
    print(text, file=sys.stderr if error else sys.stdout, flush=True)


def print_python(text):
    """Print Python source; with rich in colors on a terminal, else as plain text."""
    if not (have_rich() and sys.stdout.isatty()):
        return say(text)
    from rich.console import Console
    from rich.syntax import Syntax

    Console().print(Syntax(text, "python", theme="ansi_dark", background_color="default", word_wrap=True))


def print_table(title, columns, rows, right=(), wrap=()):
    """Prints a table.

    Args:
        right: headings of columns of numbers, aligned to the right. wrap: of those that give way on a narrow terminal.
    """
    rows = [[str(cell) for cell in row] for row in rows]
    if have_rich():
        print_rich_table(title, columns, rows, right, wrap)
    else:
        print_plain_table(title, columns, rows, right)


def print_rich_table(title, columns, rows, right, wrap):
    """`print_table` with rich; a file or pipe gets as much width as the table wants."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    style = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False}
    table = Table(title=title, title_justify="left", title_style="bold", **style)
    for column in columns:
        justify, width = "right" if column in right else "left", WRAPPED if column in wrap else None
        table.add_column(column, justify=justify, overflow="fold", no_wrap=width is None, min_width=width)
    for row in rows:
        style = {"FAILED": "bold red", "REFUSED": "bold red", "ok": "green"}
        table.add_row(*(Text(cell, style=style.get(cell, "")) for cell in row))
    Console(width=None if sys.stdout.isatty() else 200, highlight=False).print(table)


def print_plain_table(title, columns, rows, right):
    """`print_table` in plain text."""
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    say(title)
    for row in [columns, ["-" * width for width in widths], *rows]:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        say("  " + "  ".join(cells).rstrip())
    say()


class Progress:
    """Progress bars on the error stream, one per task: with rich on a terminal where the style is "auto".

    The style "lines" writes "progress DONE TOTAL" after each unit of work, for a parent process to read.
    """

    def __init__(self, style="auto"):
        self.style, self.bars, self.counts = style, None, {}

    def __enter__(self):
        if self.style == "auto" and have_rich() and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bars

            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
            self.bars = Bars(*columns, console=Console(stderr=True), transient=True)
            self.bars.start()
        return self

    def __exit__(self, *exception):
        if self.bars is not None:
            self.bars.stop()

    def start(self, name, total):
        """Begins a task of `total` units; None where the number is not known yet."""
        self.counts[name] = [0, total, self.bars and self.bars.add_task(name, total=total)]

    def update(self, name, done=None, total=None):
        """Sets how much of a task is done (default: one unit more), and its total where that became known."""
        count = self.counts[name]
        count[0] = count[0] + 1 if done is None else done
        count[1] = count[1] if total is None else total
        if self.bars is not None:
            self.bars.update(count[2], completed=count[0], total=count[1])
        elif self.style == "lines":
            say(f"progress {count[0]} {count[1]}", error=True)


def environment(simulated=False):
    """The environment of a child process that runs this numbarnn, in the simulator if it is to."""
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path} | ({"NUMBA_ENABLE_CUDASIM": "1"} if simulated else {})


def json_path(text):
    """An argparse type: a file that can be written (JSON or another), checked before the work starts."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file to write, got the directory {text!r}")
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in a directory that exists, got {text!r}")
    try:
        files.check_writable(path)
    except OSError as error:
        said = f"expected a file that can be written, got {text!r}: {error.strerror}"
        raise argparse.ArgumentTypeError(said) from None
    return path


def existing_file(what):
    """An argparse type: a file that is there, as text; what: words for it, in the error."""

    def parse(text):
        if not Path(text).is_file():
            raise argparse.ArgumentTypeError(f"expected {what}, got {text!r}: not a file")
        return text

    return parse


def add_json_argument(parser, what):
    parser.add_argument("--json", type=json_path, metavar="FILE", help=f"also write {what} to FILE, as JSON")


def write_json(path, data):
    """Writes data as JSON; NaN and infinities, which JSON lacks, become null. The file is replaced whole."""
    write_bytes(path, (json.dumps(plain(data), indent=1, allow_nan=False) + "\n").encode())


def write_bytes(path, data):
    """Writes a file, or replaces it whole."""
    with files.replacing(path) as part:
        part.write_bytes(data)


def plain(data):
    """Data of dicts, lists and numbers (Python's or NumPy's) in the types that JSON knows."""
    if isinstance(data, dict):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [plain(value) for value in data]
    if isinstance(data, (np.ndarray, np.generic)):
        return plain(data.tolist())
    if isinstance(data, float) and not np.isfinite(data):
        return None
    return data


def comma_list(choices):
    """An argparse type: one or more of `choices`, separated by commas, or "all"."""

    def parse(text):
        names = list(choices) if text == "all" else [name.strip() for name in text.split(",")]
        unknown = [name for name in names if name not in choices]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"expected {', '.join(choices)}, several with commas between, or all; got {unknown[0]!r}"
            )
        return list(dict.fromkeys(names))

    return parse


def whole_numbers(text, expected, count=None):
    """Whole numbers of at least 1 with commas between, `count` of them; expected: these words, for the error."""
    parts = [part.strip() for part in text.split(",")]
    if count not in (None, len(parts)) or not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise argparse.ArgumentTypeError(f"expected {expected} got {text!r}")
    return tuple(map(int, parts))


def positive_int(text):
    """An argparse type: a whole number of at least 1."""
    return whole_numbers(text, "a whole number of at least 1,", 1)[0]


def thread_count(text):
    """An argparse type: a number of threads, up to MOST_THREADS; PyTorch would try to start as many as it is told."""
    threads = positive_int(text)
    if threads > MOST_THREADS:
        raise argparse.ArgumentTypeError(f"expected at most {MOST_THREADS} threads, got {text!r}")
    return threads

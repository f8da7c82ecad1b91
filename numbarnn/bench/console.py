"""What commands have in common: tables, progress bars (with rich, if installed), files, arguments."""

import argparse
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from html import escape
from pathlib import Path

import numpy as np

from numbarnn.common import files, install

PIPED = 100  # columns of what goes to a file or pipe
NARROW = 16  # columns of a text that wraps, at least
GAP, INDENT = 2, 4  # blanks between columns, and before the further lines of a row
COLORS = dict.fromkeys(("FAILED", "REFUSED", "SLOWER"), "\x1b[1;31m") | {"ok": "\x1b[32m"}
COLORED = re.compile(rf"(?<!\S)({'|'.join(COLORS)})(?!\S)")
MOST_THREADS = 1024  # more than any CPU has cores
LETTERS_SAID = 2000  # of what a process wrote to its error stream


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


def say_wrapped(text):
    """Print sentences in the width that tables have."""
    say(textwrap.fill(text, output_width(), break_long_words=False, break_on_hyphens=False))


def output_width():
    """The terminal's columns; of a file or pipe COLUMNS, or PIPED."""
    return shutil.get_terminal_size((PIPED, 24)).columns


def print_python(text):
    """Print Python source; with rich in colors on a terminal, else as plain text."""
    if not (have_rich() and sys.stdout.isatty()):
        return say(text)
    from rich.console import Console
    from rich.syntax import Syntax

    Console().print(Syntax(text, "python", theme="ansi_dark", background_color="default", word_wrap=True))


def print_table(title, columns, rows, right=()):
    """Print a table in the width of the terminal; in a file or pipe in COLUMNS columns, or PIPED.

    Nothing is cut. Where the columns do not fit, texts wrap; where that is not enough, each row takes several lines, as
    the headings do.

    Args:
        right: headings of columns of numbers, aligned to the right.
    """
    terminal = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = output_width()
    bold, plain = ("\x1b[1m", "\x1b[0m") if terminal else ("", "")
    lines = table_lines(columns, [[str(cell) for cell in row] for row in rows], right, width) if rows else ["no rows"]
    if terminal:
        lines = [COLORED.sub(lambda match: f"{COLORS[match[0]]}{match[0]}{plain}", line) for line in lines]
    say("\n".join([f"{bold}{textwrap.fill(title, width)}{plain}", "", *lines, ""]))


def table_lines(columns, rows, right, width):
    """Return the lines of a table: headings, a rule, and one or more lines for each row."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    words = [
        max((len(word) for cell in cells for word in cell.split()), default=0) for cells in zip(*rows, strict=True)
    ]
    least = [max(len(column), word, NARROW) for column, word in zip(columns, words, strict=True)] if rows else widths
    narrow = list(widths)
    while sum(narrow) + GAP * (len(columns) - 1) > width:
        wide = [i for i, column in enumerate(columns) if column not in right and narrow[i] > least[i]]
        if not wide:
            break
        narrow[max(wide, key=narrow.__getitem__)] -= 1
    else:
        widths = narrow
    folds, used = [[]], 0  # the columns of each line
    for i, column_width in enumerate(widths):
        widths[i] = min(column_width, max(width - INDENT, least[i]))
        if folds[-1] and used + GAP + widths[i] > width:
            folds.append([])
        used = used + GAP + widths[i] if folds[-1] else widths[i] + INDENT * (len(folds) > 1)
        folds[-1].append(i)

    def lines_of(row):
        found = []
        for number, fold in enumerate(folds):
            cells = [textwrap.wrap(row[i], widths[i], break_long_words=False, break_on_hyphens=False) for i in fold]
            for parts in itertools.zip_longest(*cells, fillvalue=""):
                aligned = [
                    part.rjust(widths[i]) if columns[i] in right else part.ljust(widths[i])
                    for i, part in zip(fold, parts, strict=True)
                ]
                found.append((" " * INDENT * (number > 0) + (" " * GAP).join(aligned)).rstrip())
        return found

    head = lines_of(columns)
    body = [line for row in rows for line in lines_of(row)]
    return [*head, "-" * min(max(map(len, head + body)), width), *body]


class Progress:
    """Progress bars on the error stream, one per task: with rich, on a terminal."""

    def __init__(self):
        self.bars, self.tasks = None, {}

    def __enter__(self):
        if have_rich() and sys.stderr.isatty():
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
        """Begin a task of `total` units; None where the number is not known."""
        self.tasks[name] = self.bars and self.bars.add_task(name, total=total)

    def update(self, name, done=1):
        """Add some units that are done."""
        if self.bars is not None:
            self.bars.update(self.tasks[name], advance=done)


def environment(simulated=False):
    """Return the environment of a child process that runs this numbarnn, in the simulator if it is to."""
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path} | ({"NUMBA_ENABLE_CUDASIM": "1"} if simulated else {})


def run_simulated(arguments, timeout):
    """Run a command of numbarnn in a process that is the simulator, as Numba reads its switch when it starts.

    Returns its exit code (None: it took too long), what it wrote as JSON (None: nothing), and what became of it.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", "numbarnn", *arguments, "--json", str(answer)]
        try:
            ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout,
                                 env=environment(simulated=True))  # fmt: skip
        except subprocess.TimeoutExpired:
            return None, None, f"it took more than {timeout} s"
        found = json.loads(answer.read_text()) if answer.exists() else None
    said = " ".join(ran.stderr.decode(errors="replace").split())[-LETTERS_SAID:]
    return ran.returncode, found, said or f"exit code {ran.returncode}"


def document(title, body, style, script=""):
    """Return a page of a body (HTML), one file that refers to nothing outside of it; a script runs at its end."""
    scripts = f"<script>\n{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"/>\n<title>{escape(title)}</title>\n'
        f"<style>{style}</style>\n</head>\n<body>\n{body}\n{scripts}</body>\n</html>\n"
    )


def write_json(path, data):
    """Write data as JSON; NaN and infinities, which JSON lacks, become null. The file is replaced whole."""
    write_bytes(path, (json.dumps(plain(data), indent=1, allow_nan=False) + "\n").encode())


def write_bytes(path, data):
    """Write a file, or replace it whole."""
    with files.replacing(path) as part:
        part.write_bytes(data)


def plain(data):
    """Return data of dicts, lists and numbers (Python's or NumPy's) in the types that JSON knows."""
    if isinstance(data, dict):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [plain(value) for value in data]
    if isinstance(data, (np.ndarray, np.generic)):
        return plain(data.tolist())
    return None if isinstance(data, float) and not np.isfinite(data) else data


# ----------------------------------------------------------------------------------------------------------- arguments
def add_json_argument(parser, what):
    """Add --json FILE."""
    parser.add_argument("--json", type=json_path, metavar="FILE", help=f"also write {what} to FILE, as JSON")


def add_list_argument(parser, option, choices, default, more=""):
    """Add an option that takes several of `choices`, with commas between, or "all"."""

    def parse(text):
        names = list(choices) if text == "all" else [name.strip() for name in text.split(",")]
        if unknown := [name for name in names if name not in choices]:
            raise argparse.ArgumentTypeError(
                f"expected {', '.join(choices)}, several with commas between, or all; got {unknown[0]!r}"
            )
        return list(dict.fromkeys(names))

    about = f"from {', '.join(choices)}; default {','.join(default)}{more}"
    parser.add_argument(option, type=parse, default=default, metavar=f"{option[2:].upper()}[,...]", help=about)


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


def existing_file(text):
    """An argparse type: a file that is there."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"expected a file that numbarnn wrote as --json, got {text!r}: not a file")
    return Path(text)


def whole_numbers(text, expected, count=None):
    """Return whole numbers of at least 1 with commas between, `count` of them; expected: words for the error."""
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

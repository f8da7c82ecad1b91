"""Console output, files, types of arguments and errors of the commands."""

import argparse
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from html import escape
from pathlib import Path

import numpy as np

from numbarnn.common import files, install

PIPED = 100  # columns of output to a file or pipe
NARROW = 16  # least width of a column whose text wraps
GAP, INDENT = 2, 4  # blanks between columns, and before a row's second and later lines
COLORS = dict.fromkeys(("FAILED", "REFUSED"), "\x1b[1;31m") | {"ok": "\x1b[32m"}
LETTERS_SAID = 2000  # letters of a process's error output that are shown


class CannotRun(RuntimeError):
    """A command cannot do its work; the message says why and what helps. Exit status 1."""


class WrongArguments(CannotRun):
    """Options do not go together, or a file has the wrong contents. Exit status 2."""


class MissingPackage(CannotRun):
    """A package is not installed; the message has the command that installs it."""

    def __init__(self, package, purpose, extra):
        super().__init__(f"{package} is not installed, and {purpose} needs it: {install.command(extra)}")


def figure(purpose, **options):
    """Return a matplotlib Figure; MissingPackage names the purpose if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackage("matplotlib", purpose, "cli") from error
    return Figure(**options, layout="constrained")


# -------------------------------------------------------------------------------------------------------------- output
def say(text="", error=False):
    print(text, file=sys.stderr if error else sys.stdout, flush=True)


def say_wrapped(text):
    """Print text wrapped to the terminal's width."""
    say(_fill(text))


def _fill(text):
    width = shutil.get_terminal_size((PIPED, 24)).columns
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def print_table(title, columns, rows, right=()):
    """Print a table that fits the terminal's width. right: headings of columns that are aligned to the right."""
    terminal = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    lines = table_lines(columns, [[str(cell) for cell in row] for row in rows], right) if rows else ["no rows"]
    if terminal:
        lines = [" ".join(f"{COLORS[w]}{w}\x1b[0m" if w in COLORS else w for w in line.split(" ")) for line in lines]
    title = f"\x1b[1m{_fill(title)}\x1b[0m" if terminal else _fill(title)
    say("\n".join([title, "", *lines, ""]))


def table_lines(columns, rows, right=()):
    """Return the lines of a table of texts, wrapped. If that is still too wide, columns continue below."""
    texts, width = [*zip(columns, *rows, strict=True)], shutil.get_terminal_size((PIPED, 24)).columns
    least = [max(NARROW, *(len(word) for text in cells for word in [*text.split(), ""])) for cells in texts]
    widths = [max(map(len, cells)) for cells in texts]
    while sum(widths) + GAP * (len(widths) - 1) > width:
        wide = [i for i, column in enumerate(columns) if column not in right and widths[i] > least[i]]
        if not wide:
            break
        widths[max(wide, key=widths.__getitem__)] -= 1
    folds, used = [[]], 0  # the columns of each line
    for i in range(len(columns)):
        widths[i] = min(widths[i], max(width - INDENT, least[i]))
        if folds[-1] and used + GAP + widths[i] > width:
            folds.append([])
        used = used + GAP + widths[i] if folds[-1] else INDENT * (len(folds) > 1) + widths[i]
        folds[-1].append(i)
    lines = []
    for row in (columns, *rows):
        for number, fold in enumerate(folds):
            cells = [textwrap.wrap(row[i], widths[i], break_long_words=False, break_on_hyphens=False) for i in fold]
            for parts in itertools.zip_longest(*cells, fillvalue=""):
                aligned = [part.rjust(widths[i]) if columns[i] in right else part.ljust(widths[i])
                           for i, part in zip(fold, parts, strict=True)]  # fmt: skip
                lines.append((" " * INDENT * (number > 0) + (" " * GAP).join(aligned)).rstrip())
        if row is columns:
            lines.append("-" * min(max(sum(widths[i] + GAP for i in fold) for fold in folds), width))
    return lines


def progress_bar(items, title, total=None):
    """Yield items, with a progress bar if rich is installed and standard error is a terminal."""
    if importlib.util.find_spec("rich") is None or not sys.stderr.isatty():
        return (yield from items)
    from rich.console import Console
    from rich.progress import track

    yield from track(items, title, total, console=Console(stderr=True), transient=True)


def document(title, body, style, script=""):
    """Return a self-contained HTML page with this body."""
    scripts = f"<script>\n{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"/>\n<title>{escape(title)}</title>\n'
        f"<style>{style}</style>\n</head>\n<body>\n{body}\n{scripts}</body>\n</html>\n"
    )


def write_json(path, data):
    """Write data as JSON, with null for NaN and infinities. The file is replaced in one step."""
    write_bytes(path, (json.dumps(json_types(data), indent=1, allow_nan=False) + "\n").encode())


def write_bytes(path, data):
    with files.replacing(path) as part:
        part.write_bytes(data)


def json_types(data):
    """Convert dicts, lists, arrays and numbers to types that JSON has."""
    if isinstance(data, dict):
        return {str(key): json_types(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [json_types(value) for value in data]
    if isinstance(data, (np.ndarray, np.generic)):
        return json_types(data.tolist())
    return None if isinstance(data, float) and not np.isfinite(data) else data


# ----------------------------------------------------------------------------------------- another process of numbarnn
def environment():
    """Return environment variables with which a child process imports this numbarnn."""
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path}


def run_apart(arguments, timeout):
    """Run a `numbarnn` command in another process.

    Return its exit code (None: it timed out), the JSON that it wrote (None: nothing), and its error output."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", "numbarnn", *arguments, "--json", str(answer)]
        try:
            ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout,
                                 env=environment())  # fmt: skip
        except subprocess.TimeoutExpired:
            return None, None, f"it took more than {timeout} s"
        data = json.loads(answer.read_text()) if answer.exists() else None
    said = " ".join(ran.stderr.decode(errors="replace").split())[-LETTERS_SAID:]
    return ran.returncode, data, said or f"exit code {ran.returncode}"


# ----------------------------------------------------------------------------------------------------------- arguments
def add_json_argument(parser, what):
    parser.add_argument("--json", type=json_path, metavar="FILE", help=f"Also write {what} to FILE as JSON.")


def add_list_argument(parser, option, choices, default, more=""):
    """Add an option whose value is names of `choices`, separated by commas, or "all"."""

    def parse(text):
        names = list(choices) if text == "all" else [name.strip() for name in text.split(",")]
        if unknown := [name for name in names if name not in choices]:
            expected = f"{', '.join(choices)}, several with commas between, or all"
            raise argparse.ArgumentTypeError(f"expected {expected}; got {unknown[0]!r}")
        return list(dict.fromkeys(names))

    about = f"One or more of {', '.join(choices)}, with commas, or all. Default: {','.join(default)}.{more}"
    parser.add_argument(option, type=parse, default=default, metavar=f"{option[2:].upper()}[,...]", help=about)


def json_path(text):
    """Parse the path of a file that can be written (an argparse type)."""
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


def whole_numbers(text, expected, count=None):
    """Parse whole numbers of at least 1, separated by commas. count: how many. expected: words for the error."""
    parts = [part.strip() for part in text.split(",")]
    if count not in (None, len(parts)) or not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"expected {expected} got {text!r}")
    return tuple(map(int, parts))


def at_least_1(text):
    return whole_numbers(text, "a whole number of at least 1,", 1)[0]

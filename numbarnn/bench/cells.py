"""Find the cell that a command's argument names: built in, or of the library, a file or a module."""

import argparse
import importlib
import importlib.util
import os
import sys
from difflib import get_close_matches
from pathlib import Path

from numbarnn.cells import CELLS, Cell, library

LIBRARY = "numbarnn.cells.library"
CELL_PLACES = "FILE.py:NAME, or MODULE:NAME"
ABOUT_CELL = f"{', '.join(CELLS)}, a cell of {LIBRARY} by name, or {CELL_PLACES} (which is run). Default: %(default)s."


def built_in_or_own(text):
    """Return the Cell of a built-in name such as "lstm", else that of `find_cell` (an argparse type)."""
    return CELLS[text] if text in CELLS else find_cell(text, CELLS)


def find_cell(text, others=()):
    """Return the Cell of a name in the library, of FILE.py:NAME or MODULE:NAME. others: further names to suggest."""
    where, _, name = text.rpartition(":")
    module = load_module(where) if where else library
    match, place = getattr(module, name, None), where or LIBRARY
    if isinstance(match, Cell):
        return match
    there = sorted(key for key, value in vars(module).items() if isinstance(value, Cell))
    if not where and name.endswith(".py"):
        raise argparse.ArgumentTypeError(f"{text!r} is a file without the name of a cell; write {text}:NAME")
    if match is None:
        alike = get_close_matches(name, [*there, *others], 1)
        problem = "is not there" + (f"; did you mean {alike[0]!r}?" if alike else "")
    else:
        problem = f"is a {type(match).__name__}, not a Cell as numbarnn.cell makes it"
        if callable(match) and not isinstance(match, type):
            problem += ": put @numbarnn.cell above its equations" if where else f"; one that it returns: {CELL_PLACES}"
    raise argparse.ArgumentTypeError(f"{name!r} of {place} {problem}; Cells there: {', '.join(there) or 'none'}")


def load_module(where):
    """Import a module by its name or the path of its file."""
    path = Path(where)
    try:
        if path.suffix != ".py":
            sys.path.insert(0, os.getcwd())
            return importlib.import_module(where)
        if not path.is_file():
            raise FileNotFoundError("there is no such file")
        sys.path.insert(0, str(path.parent.resolve()))
        spec = importlib.util.spec_from_file_location(f"numbarnn_cells_of_{path.stem}", path)
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except Exception as error:
        raise argparse.ArgumentTypeError(f"{where}: {type(error).__name__}: {error}") from error

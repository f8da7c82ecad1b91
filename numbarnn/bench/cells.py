"""`numbarnn cells`: list the library's cells; and find one by its name: of a file, a module, numbarnn."""

import argparse
import ast
import importlib
import importlib.util
import inspect
import os
import re
import sys
from difflib import get_close_matches
from pathlib import Path

from numbarnn.bench import console
from numbarnn.cells import CELLS, Cell, library

LIBRARY = "numbarnn.cells.library"
CELL_PLACES = "FILE.py:NAME, or MODULE:NAME"
ABOUT_CELL = f"{', '.join(CELLS)}, a cell of {LIBRARY} by its name, or {CELL_PLACES}, which is run; default %(default)s"
COLUMNS = ("cell", "paper", "states", "products", "equation")
_PAPER = re.compile(r"^([A-Z][^\n:;]*? (?:19|20)\d\d\b(?: \(\w+\))?(?:, (?:arXiv:|doi:)[\w./]+\w)?)", re.MULTILINE)


def add_arguments(parser):
    """Options of `numbarnn cells`."""
    console.add_json_argument(parser, "the list")


def run(args):
    """Print the library's cells; returns 0."""
    rows = [_row(name, getattr(library, name)) for name in library.__all__]
    title = f"Cells of {LIBRARY}; numbarnn bench --cell NAME times one"
    console.print_table(title, COLUMNS, rows, right=("products",))
    if args.json:
        console.write_json(args.json, [dict(zip(COLUMNS, row, strict=True)) for row in rows])
    return 0


def _row(name, found):
    """Return a row of `COLUMNS`: products are those of a step, the equation is that of the first state and all it
    names."""
    cell = found if isinstance(found, Cell) else found()  # of a function that makes cells, its first
    made_by = cell.definition if found is cell else found
    paper = _PAPER.search(inspect.getdoc(made_by))
    products = bool(cell.recurrent_gates) + cell.num_products + cell.projected
    called = name if found is cell else f"{name}({', '.join(inspect.signature(found).parameters)})"
    return called, paper[1] if paper else "", " ".join(cell.states), products, _equation(cell.equations)


def _equation(text):
    """The expression of the first state that equations return, and those of the names in it, the nearest first."""
    body = ast.parse(text).body[0].body
    returned = next(node.value for node in ast.walk(body[-1]) if isinstance(node, ast.Return))
    found = [returned.elts[0] if isinstance(returned, ast.Tuple) else returned]
    for statement in reversed(body[:-1]):  # a loop is one statement
        if _names(ast.Store, statement) & _names(ast.Load, *found):
            found.append(statement)
    if isinstance(found[0], ast.Name) and len(found) > 1:
        del found[0]  # h_new = ... says it
    texts = (ast.get_source_segment(text, part) for part in found)
    return "; ".join(re.sub(r"\n\s*", "; ", re.sub(r"([:(,])\n\s*", r"\1 ", part)) for part in texts)


def _names(context, *nodes):
    """The names that nodes, and all within them, read (`ast.Load`) or assign to (`ast.Store`)."""
    inside = (node for one in nodes for node in ast.walk(one) if isinstance(node, ast.Name))
    return {node.id for node in inside if isinstance(node.ctx, context)}


# ------------------------------------------------------------------------------------------------------ finding a cell
def built_in_or_own(text):
    """An argparse type: the Cell of a built-in name such as "lstm", else as `find`."""
    return CELLS[text] if text in CELLS else find(text, CELLS)


def find(text, others=()):
    """Return the Cell of a name in the library, of FILE.py:NAME or MODULE:NAME; else an error says what there is.

    Args:
        others: names that may be meant, too.
    """
    where, _, name = text.rpartition(":")
    module = load_module(where) if where else library
    found, place = getattr(module, name, None), where or LIBRARY
    if isinstance(found, Cell):
        return found
    there = sorted(key for key, value in vars(module).items() if isinstance(value, Cell))
    if not where and name.endswith(".py"):
        raise argparse.ArgumentTypeError(f"{text!r} is a file without the name of a cell; write {text}:NAME")
    if found is None:
        alike = get_close_matches(name, [*there, *others], 1)
        what = "is not there" + (f"; did you mean {alike[0]!r}?" if alike else "")
    else:
        what = f"is a {type(found).__name__}, not a Cell as numbarnn.cell makes it"
        if callable(found) and not isinstance(found, type):
            what += ": put @numbarnn.cell above its equations" if where else f"; one that it returns: {CELL_PLACES}"
    raise argparse.ArgumentTypeError(f"{name!r} of {place} {what}; Cells there: {', '.join(there) or 'none'}")


def load_module(where):
    """Return the module of a file's path, or of a module's name."""
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

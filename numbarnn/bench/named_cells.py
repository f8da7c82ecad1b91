"""Cells by their names on a command line: of the library, of a file, of a module."""

import argparse
import importlib
import importlib.util
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from numbarnn.bench.speed.command import said
from numbarnn.cells import Cell, library, tracing


@dataclass(frozen=True)
class Named:
    """A cell, by the words with which it was asked for."""

    name: str
    cell: Cell
    trace_s: float | None


def parse(text):
    """An argparse type: cells, with commas between -> list of `Named`."""
    return [find(name) for name in dict.fromkeys(part.strip() for part in text.split(","))]


def find(text):
    """The `Named` cell of a name in the library, of FILE.py:NAME or MODULE:NAME."""
    where, _, name = text.rpartition(":")
    module = load(where) if where else library
    found, place = getattr(module, name, None), where or "numbarnn.cells.library"
    if not isinstance(found, Cell):
        there = ", ".join(sorted(key for key, value in vars(module).items() if isinstance(value, Cell))) or "none"
        what = "is not there" if found is None else f"is a {type(found).__name__}, not a Cell as numbarnn.cell makes it"
        raise argparse.ArgumentTypeError(f"{name!r} of {place} {what}; Cells there: {there}")
    if not isinstance(found, tracing.TracedCell):
        return Named(text, found, None)
    begin = time.perf_counter()
    tracing.cell(found, save=found.save, name=found.name)
    return Named(text, found, time.perf_counter() - begin)


def load(where):
    """The module of a file's path, or of a module's name."""
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
    except Exception as problem:
        raise argparse.ArgumentTypeError(f"{where}: {said(problem)}") from problem

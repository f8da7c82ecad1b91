"""Find mistakes in valid equations: random numbers that tracing would freeze, a forgotten @."""

import dis
import inspect
import warnings
from itertools import zip_longest

import numpy as np

from numbarnn.cells.tracing.errors import describe, error
from numbarnn.cells.tracing.graph import reachable
from numbarnn.cells.tracing.values import words

_OUTSIDE = (
    "a cell is traced once, and each step would have the same ones. Draw outside and pass them in: those of each "
    "step as a side input (numbarnn.side), others as a hyperparameter, f(x, h, p, noise=array). numbarnn.dropout and "
    "zoneout draw at each step"
)
_GENERATORS = set("default_rng RandomState SeedSequence PCG64 MT19937 Philox SFC64 Random manual_seed".split())


def refuse_changed_constants(first, again):
    """Raise CellError if the `Trace.constants` of two runs differ, as those of random numbers do."""
    for (value, place), (other, _) in zip_longest(first, again, fillvalue=(None, None)):
        if np.asarray(value).tobytes() != np.asarray(other).tobytes():
            raise error(
                f"the equations have {words(value)} in one run and {words(other)} in the next, as if they drew random "
                f"numbers: {_OUTSIDE}",
                place,
            )


def refuse_seeded_generators(function, seen=()):
    """Raise CellError if the equations, or functions of their module that they call, seed a generator.

    `refuse_changed_constants` cannot find it, as its numbers are the same in each run. Nested functions may seed one:
    `numbarnn.constant(lambda H: ...)`."""
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is None or function in seen:
        return
    lines, line, before = dict(dis.findlinestarts(code)), code.co_firstlineno, None
    for instruction in dis.get_instructions(code):
        line, name = lines.get(instruction.offset) or line, instruction.argval
        if not isinstance(name, str):
            continue
        known = function.__globals__.get(name)
        of_numpy = str(getattr(known, "__module__", "")).startswith("numpy.random")
        if name in _GENERATORS or of_numpy or (before, name) == ("random", "seed"):
            raise error(f"the equations seed a generator ({name}): {_OUTSIDE}", (code.co_filename, line))
        if inspect.isfunction(known) and known.__module__ == function.__module__:
            refuse_seeded_generators(known, (*seen, function))
        before = name


def check_names_of_matrices(outputs, kinds):
    """Find a forgotten @, in vectors with names of matrices: refuse them as factors, warn of them as terms of sums.

    W, R and U, and groups with these names, are matrices by convention. So are groups of one letter that have a matrix,
    and capital letters if another matrix has one; for these p.D * x may be intended, so that there is only a warning.
    kinds: see `Trace`.
    """
    matrices = [name for name, kind in kinds.items() if kind == "matrix"]
    groups = {group for name in matrices if len(group := _group(name)) == 1}
    capital = any(name[0].isupper() and not _group(name) for name in matrices)
    for node in reachable(outputs):
        for number, part in enumerate(node.args if node.op in ("mul", "divide", "add", "sub") else ()):
            name, other = part.data, node.args[1 - number]
            if part.op != "vector" or kinds.get(name) != "vector" or other.op == "const":
                continue
            parts = name.split(".")
            if node.op in ("add", "sub"):
                suspect, done, named = {"W", "R", "U"}.intersection(parts), "added", "bias"
            else:
                alike = capital and name[0].isupper() and len(parts) == 1 and other.op in ("input", "state")
                suspect, done, named = alike or _group(name) in groups, "multiplied element by element", "diagonal"
                if {"W", "R"}.intersection(parts) or (suspect and _group(name).isupper()):
                    raise error(
                        f"p.{name}, by its name a matrix, is {done}: a matrix stands left of @, p.{name} @ vector; one "
                        "number per unit has another name, such as p.diagonal",
                        node.place,
                    )
            if suspect:
                warnings.warn_explicit(
                    f"p.{name}, by its name a matrix, is {done}, as one number per unit. A matrix stands left of @, "
                    f"p.{name} @ vector; else take another name, such as p.{named}\n{describe(node.place)}",
                    UserWarning,
                    *node.place,
                )


def _group(name):
    """Return a parameter's group, such as W for W.i, or ""."""
    return name.rpartition(".")[0].rpartition(".")[2]

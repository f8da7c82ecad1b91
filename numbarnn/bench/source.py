"""Print a kernel's Python source without the parts that its constants rule out.

A factory makes each kernel for one cell and one tile, and one source serves them all: `if masked:` stands in a kernel
without masks too, and the compiler drops it. `reduced` drops the same parts from the source.
"""

import ast
import inspect
import io
import re
import textwrap
import tokenize
from itertools import accumulate

import numpy as np

from numbarnn.bench.reducer import Reducer, outside, pairs

WIDTH = 120  # columns of a printed line
MARK = re.compile(r"( *)(_above|_beside)\((.*)\)")  # a comment, as `reducer` has it
NO_STATEMENT = re.compile(r"\s*(#|else\b|elif\b|$)")  # how a line begins that has none, or one with nothing above it


class _Large(int):
    """An int that is printed in hexadecimal, as masks are written."""

    def __repr__(self):
        return hex(self)


def reduced(function):
    """Return the source of a kernel's Python function, without code that never runs and names that nothing reads."""
    tree, before = ast.parse(_with_marks(textwrap.dedent(inspect.getsource(function)))), None
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value >= 2**16:
            node.value = _Large(node.value)
    while before != (before := ast.dump(tree)):
        Reducer(function, tree).generic_visit(tree)
    lines, beside = [], ""
    for line in ast.unparse(ast.fix_missing_locations(tree)).splitlines():
        if mark := MARK.fullmatch(line):
            comment = ast.literal_eval(mark[3])
            if mark[2] == "_beside":
                beside += f"  {comment}"
            elif comment or not lines[-1].endswith(":"):  # a blank line, but not the first of a block
                lines.append(f"{mark[1]}{comment}".rstrip())
        else:
            *first, last = _wrapped(line)
            lines, beside = [*lines, *first, last + beside], ""
    return "\n".join(lines)


def constants(function, source):
    """Return the numbers and dtypes that a kernel's source takes from its factory and module, as lines of a comment.

    Args:
        source: what `reduced` returned.
    """
    values, listed = outside(function), []
    factories, origins = function.__qualname__.split(".<locals>.")[:-1], {}  # origins: {"U": ["tile.units"]}
    for factory in ast.walk(ast.parse(inspect.getsource(inspect.getmodule(function)))):
        for node in ast.walk(factory) if getattr(factory, "name", None) in factories else ():
            for target, value in pairs(node):
                if isinstance(value, (ast.Attribute, ast.BinOp)):
                    origins[ast.unparse(target)] = [ast.unparse(value)]
    for name in sorted({node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}):
        value = values.get(name)
        if isinstance(value, type) and issubclass(value, np.generic):
            listed.append(f"{name} = {value.__name__}")
        elif isinstance(value, (int, float)):
            listed.append(" = ".join([name, *origins.get(name, []), str(value)]))
    return [f"# {line}" for line in textwrap.wrap(", ".join(listed), WIDTH - 2)]


def _with_marks(source):
    """Return a source with its comments and blank lines as calls of `_above` and `_beside`, which an AST keeps."""
    lines, starts, continued, marks = source.splitlines(), [], set(), {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
            starts += [first] * (not NO_STATEMENT.match(lines[first - 1]))
            continued |= set(range(node.lineno + 1, node.end_lineno + 1) if not hasattr(node, "body") else ())
    found = {i: "" for i, line in enumerate(lines, 1) if not line.strip() and i not in continued}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and "fmt: skip" not in token.string:
            found[token.start[0]] = token.string
    for i, comment in sorted(found.items()):
        above = i not in continued and NO_STATEMENT.match(lines[i - 1])
        owner = min((start for start in starts if start > i), default=0) if above else max(j for j in starts if j <= i)
        marks.setdefault(owner, []).append(f"{'_above' if above else '_beside'}({comment!r})")
    for owner in sorted(marks, reverse=True):
        if owner:  # 0: a comment below all statements
            indent = lines[owner - 1][: -len(lines[owner - 1].lstrip())]
            lines[owner - 1 : owner - 1] = [indent + mark for mark in marks[owner]]
    return "\n".join(lines)


def _wrapped(line):
    """Return a line of code as lines of at most WIDTH, broken after commas in its outermost brackets."""
    indent, lines = line[: -len(line.lstrip())] + "    ", []
    plain = re.sub(r"^( *\w+(?:, \w+)* = )\((.*)\)$", r"\1\2", line)  # a, b = (x, y)
    if plain != line and len(plain) <= WIDTH and _is_same(line, plain):
        return [plain]
    depths = list(accumulate((letter in "([{") - (letter in ")]}") for letter in line))
    while len(line) > WIDTH:
        commas = [i for i in range(WIDTH) if line[i] == "," and depths[i]]
        if not commas:
            break
        at = max(commas, key=lambda i: (-depths[i], i)) + 1
        lines.append(line[:at])
        line, depths = indent + line[at + 1 :], [1] * len(indent) + depths[at + 1 :]
    return [*lines, line]


def _is_same(line, other):
    """Return whether two lines are the same code."""
    try:
        return ast.dump(ast.parse(line.strip())) == ast.dump(ast.parse(other.strip()))
    except SyntaxError:
        return False

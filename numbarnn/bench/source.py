"""Print a kernel's Python source without the branches that its constants rule out.

A factory makes each kernel for one cell and one tile, and one source serves them all: `if masked:` stands in a kernel
without masks too, and the compiler drops it. `reduced` drops the same branches from the text, and everything behind a
`return`; `constants` lists the numbers and flags that the rest uses. The remaining text is unchanged.
"""

import ast
import inspect
import textwrap

import numpy as np

WIDTH = 120  # columns of a printed line
PLAIN = (bool, int, float, str, type(None), tuple)
UNKNOWN = object()


def outside(function):
    """Return the values that a function finds outside itself, by name."""
    variables = inspect.getclosurevars(function)
    values = {**variables.builtins, **variables.globals, **variables.nonlocals}
    return {name: value for name, value in values.items() if name not in function.__code__.co_varnames}


def reduced(function):
    """Return the source of a kernel's Python function, without code that never runs."""
    known = {name: value for name, value in outside(function).items() if type(value) in PLAIN}
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    (definition,) = ast.parse("\n".join(lines)).body
    begin = definition.body[0].lineno - 1
    return "\n".join([*lines[:begin], *_block(definition.body, lines, begin, known)])


def constants(function, source):
    """Return the numbers, flags and dtypes that a source from `reduced` uses, as lines of a comment."""
    values, listed = outside(function), []
    for name in sorted({node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}):
        value = values.get(name)
        if isinstance(value, type) and issubclass(value, np.generic):
            listed.append(f"{name} = {value.__name__}")
        elif isinstance(value, (int, float)):
            listed.append(f"{name} = {value}")
    return [f"# {line}" for line in textwrap.wrap(", ".join(listed), WIDTH - 2)]


def _value(node, known):
    """Return the value of an expression of constants, else UNKNOWN; `False and ...` is False."""
    try:
        return eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": {}}, known)
    except Exception:  # names, attributes and calls that are no constants: which error it is depends on the expression
        return UNKNOWN


def _block(block, lines, begin, known):
    """Return the lines of statements, the first of which, or the comment above it, stands at place `begin`."""
    kept = []
    for one in block:
        above, begin = lines[begin : one.lineno - 1], one.end_lineno
        if isinstance(one, ast.If):
            kept += _branch(one, lines, known, above, "if")
        elif hasattr(one, "body"):
            first = _behind_colon(lines, one.lineno - 1, one.body)
            kept += [*above, *lines[one.lineno - 1 : first], *_block(one.body, lines, first, known)]
        else:
            kept += [*above, *lines[one.lineno - 1 : one.end_lineno]]
        last = kept[-1][one.col_offset :].split(" ")[0] if kept else ""  # perhaps of a branch that is taken
        if isinstance(one, ast.Return) or last in ("return", "continue", "break"):
            break
    there = any(line.strip() and not line.lstrip().startswith("#") for line in kept)
    return kept if there else [" " * block[0].col_offset + "pass"]


def _branch(node, lines, known, above, word):
    """Return the lines of an `if` or `elif` and what follows it; above: the lines of its comment."""
    truth, indent = _value(node.test, known), " " * node.col_offset
    behind, body = [], _block(node.body, lines, _behind_colon(lines, node.lineno - 1, node.body), known)
    if node.orelse and lines[node.orelse[0].lineno - 1].lstrip().startswith("elif"):
        if truth is not UNKNOWN and not truth:
            return _branch(node.orelse[0], lines, known, above, word)
        behind = _branch(node.orelse[0], lines, known, [], "elif")
    elif node.orelse:
        rest = _block(node.orelse, lines, _behind_colon(lines, node.body[-1].end_lineno, node.orelse), known)
        behind = [f"{indent}else:", *rest]
    if truth is UNKNOWN:
        first, *more = lines[node.lineno - 1 : _behind_colon(lines, node.lineno - 1, node.body)]
        return [*above, indent + word + first.strip().removeprefix("el")[2:], *more, *body, *behind]
    chosen = body if truth else behind[1:]
    if word == "elif":
        return [f"{indent}else:", *chosen] if chosen else []
    return [*above, *(line.removeprefix("    ") for line in chosen)] if chosen else []


def _behind_colon(lines, number, block):
    """Return the place behind the first line, from this one on, that ends with a colon and stands above a block."""
    while number < block[0].lineno - 1 and not lines[number].split("#")[0].rstrip().endswith(":"):
        number += 1
    return number + 1

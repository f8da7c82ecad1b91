"""Print a kernel's Python source without the branches that its constants rule out.

A factory makes each kernel for one cell and one tile, and one source serves them all: `if masked:` stands in a kernel
without masks too, and the compiler drops it. `reduced` drops the same branches and choices from the text, and what
stands behind a `return`. What stays is the text as it was written.
"""

import ast
import inspect
import re
import textwrap

import numpy as np

WIDTH = 120  # columns of a printed line
#: What an expression of constants is made of.
PLAIN = (
    ast.Name, ast.Constant, ast.Tuple, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.expr_context,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
UNKNOWN = object()


def outside(function):
    """Return the values that a function finds outside itself, by name."""
    found = inspect.getclosurevars(function)
    values = {**found.builtins, **found.globals, **found.nonlocals}
    return {name: value for name, value in values.items() if name not in function.__code__.co_varnames}


def reduced(function):
    """Return the source of a kernel's Python function, without code that never runs."""
    known = {name: value for name, value in outside(function).items()
             if type(value) in (bool, int, float, str, type(None), tuple)}  # fmt: skip
    text, following = None, textwrap.dedent(inspect.getsource(function))
    while following is not None:
        text, following = following, _edited(following, known)
    return re.sub(r"\n\n(?=\n)|(?<=:\n)\n", "", text).rstrip()


def constants(function, source):
    """Return the numbers and dtypes that a kernel's source takes from its factory and module, as lines of a comment.

    Args:
        source: what `reduced` returned.
    """
    values, listed = outside(function), []
    for name in sorted({node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}):
        value = values.get(name)
        if isinstance(value, type) and issubclass(value, np.generic):
            listed.append(f"{name} = {value.__name__}")
        elif isinstance(value, (int, float)):
            listed.append(f"{name} = {value}")
    return [f"# {line}" for line in textwrap.wrap(", ".join(listed), WIDTH - 2)]


def _edited(text, known):
    """Return a text after the first edit that `known` constants ask for; None: there is nothing to edit."""
    for node in ast.walk(ast.parse(text)):
        for block in (getattr(node, "body", ()), getattr(node, "orelse", ())):
            for number, statement in enumerate(block if isinstance(block, list) else ()):
                if isinstance(statement, ast.If) and (truth := _value(statement.test, known)) is not UNKNOWN:
                    return "".join(_without_branch(text.splitlines(True), statement, truth, len(block) == 1))
                if isinstance(statement, (ast.Return, ast.Continue, ast.Break)) and number + 1 < len(block):
                    lines = text.splitlines(True)
                    return "".join(lines[: statement.end_lineno] + lines[block[-1].end_lineno :])
        if isinstance(node, ast.IfExp) and (truth := _value(node.test, known)) is not UNKNOWN:
            return _replaced(text, node, [node.body if truth else node.orelse], "")
        if isinstance(node, ast.BoolOp) and _value(node, known) is UNKNOWN:
            needless = not isinstance(node.op, ast.Or)  # True and ..., False or ...
            kept = [one for one in node.values if _value(one, known) is not needless]
            if len(kept) < len(node.values):
                return _replaced(text, node, kept, " and " if needless else " or ")
    return None


def _value(node, known):
    """Return the value of an expression of constants, UNKNOWN if it has anything else; `False and ...` is False."""
    if isinstance(node, ast.BoolOp):
        decisive, values = isinstance(node.op, ast.Or), [_value(one, known) for one in node.values]
        if decisive in (value for value in values if isinstance(value, bool)):
            return decisive
        if all(value is (not decisive) for value in values):
            return not decisive
    for part in ast.walk(node):
        if not (part.id in known if isinstance(part, ast.Name) else isinstance(part, PLAIN)):
            return UNKNOWN
    return eval(ast.unparse(node), {"__builtins__": {}}, known)


def _without_branch(lines, node, truth, alone):
    """Return lines in which of an `if` or `elif` stays what is taken; alone: it is its block's only statement."""
    start, end, last = node.lineno - 1, node.end_lineno, node.body[-1].end_lineno
    indent, is_elif = " " * node.col_offset, lines[start].lstrip().startswith("elif")
    if truth:
        body = lines[_behind_colon(lines, node.test.end_lineno - 1) : last]
    elif not node.orelse:
        body = []
    elif lines[node.orelse[0].lineno - 1].lstrip().startswith("elif"):
        first, *rest = lines[node.orelse[0].lineno - 1 : end]
        return [*lines[:start], first if is_elif else first.replace("elif", "if", 1), *rest, *lines[end:]]
    else:
        body = lines[_behind_colon(lines, last) : end]
    if is_elif:
        return [*lines[:start], *([f"{indent}else:\n", *body] if body else ()), *lines[end:]]
    while not body and lines[start - 1].lstrip().startswith("#"):  # about the branch
        start -= 1
    kept = [line.removeprefix("    ") for line in body] or [f"{indent}pass\n"] * alone
    return [*lines[:start], *kept, *lines[end:]]


def _behind_colon(lines, number):
    """Return the number of the line behind the first, from this one on, that ends with a colon."""
    while not lines[number].split("#")[0].rstrip().endswith(":"):
        number += 1
    return number + 1


def _replaced(text, node, parts, word):
    """Return a text with some parts of an expression, and a word between, in place of it."""
    lines = text.encode().splitlines(True)
    begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    found = word.join(f"({part})" if " " in part and len(parts) > 1 else part
                      for part in (ast.get_source_segment(text, part) for part in parts))  # fmt: skip
    return (text.encode()[:begin] + found.encode() + text.encode()[end:]).decode()

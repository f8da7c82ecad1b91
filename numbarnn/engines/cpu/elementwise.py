"""Expressions of matrices element by element, `a - a.T - 0.1 * eye`, compiled: one pass over the operands.

NumPy makes an array of every part of an expression. Here a plain function is written for each form of expression (which
operations, which operands are transposed). It works tile by tile. The tile of a transposed operand is transposed first,
in registers, so that the loop over all operands goes along rows and becomes vector instructions.
"""

import linecache
from functools import cache
from hashlib import sha256

import numpy as np

from numbarnn.compile.plain import plain
from numbarnn.engines.cpu.moves import transpose_square
from numbarnn.engines.cpu.records import from_python
from numbarnn.engines.cpu.vectors import VECTOR_BYTES, bytes_of, numbers_at

FROM = 1 << 14  # numbers from which a matrix is worth a function of its own
TILE = 32
_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "divide": "/"}


def run(out, term, value, add):
    """out (rows, columns) = a term's value, or +=.

    Args:
        term: a `numbarnn.cells.layout.Term`.
        value: function of a term that is not element by element (a parameter, a product): its array or number.
        add: +=.
    """
    operands = {}  # term of an operand, and whether it is transposed -> its number
    scalars = {}
    expression = _expression(term, False, value, operands, scalars)
    turned = tuple(transposed for _, transposed in operands)
    function = _function(expression, turned, len(scalars), add, out.dtype.name)
    arrays = [_contiguous(value(one), out.dtype) for one, _ in operands]
    numbers = np.array([float(value(one)) for one in scalars], out.dtype)
    tiles = np.empty(TILE * TILE * sum(turned), out.dtype)
    addresses = [number for array in (out, *arrays) for number in (array.ctypes.data, array.strides[0])]
    function(*out.shape, numbers.ctypes.data, tiles.ctypes.data, *addresses)


def _contiguous(array, dtype):
    """The array in the dtype, with the numbers of each row side by side; a copy only where it is not so."""
    array = np.asarray(array, dtype)
    return array if array.strides[1] == array.itemsize else np.ascontiguousarray(array)


def _expression(term, transposed, value, operands, scalars):
    """The text of a term's element (i, j); notes its operands."""
    if term.op == "transpose":
        return _expression(term.args[0], not transposed, value, operands, scalars)
    if term.op in ("neg", *_SYMBOLS):
        parts = [_expression(part, transposed, value, operands, scalars) for part in term.args]
        return f"(-{parts[0]})" if term.op == "neg" else f"({f' {_SYMBOLS[term.op]} '.join(parts)})"
    if term.op in ("eye", "lower"):
        sign = "==" if term.op == "eye" else "<=" if transposed else ">="
        return f"(ONE if i0 + i {sign} j0 + j else ZERO)"
    if term.op in ("number", "fill", "sum", "zero") or np.ndim(value(term)) == 0:
        return f"s{scalars.setdefault(term, len(scalars))}"
    return f"a{operands.setdefault((term, transposed), len(operands))}[j]"


@cache
def _function(expression, turned, scalars, add, dtype):
    """The function of (rows, columns, address of the scalars, of memory for tiles, then address and bytes between rows
    of out and each operand)."""
    text = _text(expression, turned, scalars, add)
    name = f"elementwise_{sha256(f'{text} {dtype}'.encode()).hexdigest()[:16]}"
    file, text = f"<numbarnn {name}>", text.replace("FUNCTION", name)
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    number = np.dtype(dtype).type
    names = {"ZERO": number(0), "ONE": number(1), "numbers_at": numbers_at, "bytes_of": bytes_of, "turn": _turn}
    names["__name__"] = __name__
    exec(compile(text, file, "exec"), names)
    return from_python(names[name])


def _text(expression, turned, scalars, add):
    """Its source, in which it is called FUNCTION."""
    numbers = range(len(turned))
    given = "".join(f", p{n}, p{n}_row" for n in numbers)
    lines = [f"def FUNCTION(rows, columns, scalars, tiles, out, out_row{given}):"]
    lines += [f"    s{n} = numbers_at(ZERO, scalars)[{n}]" for n in range(scalars)]
    lines += [f"    size, tile = bytes_of(ZERO), {TILE}"]
    step = "tile" if any(turned) else "columns"
    lines += ["    for i0 in range(0, rows, tile):", f"        for j0 in range(0, columns, {step}):"]
    lines += [f"            m, n = min(tile, rows - i0), min({step}, columns - j0)"]
    for n in (n for n in numbers if turned[n]):
        lines += [f"            t{n} = tiles + {sum(turned[:n])} * tile * tile * size"]
        lines += [f"            turn(ZERO, p{n} + j0 * p{n}_row + i0 * size, p{n}_row, t{n}, m, n)"]
    lines += ["            for i in range(m):"]
    lines += ["                o = numbers_at(ZERO, out + (i0 + i) * out_row + j0 * size)"]
    for n in numbers:
        place = f"t{n} + i * tile * size" if turned[n] else f"p{n} + (i0 + i) * p{n}_row + j0 * size"
        lines += [f"                a{n} = numbers_at(ZERO, {place})"]
    lines += ["                for j in range(n):"]
    lines += [f"                    o[j] = {'o[j] + ' if add else ''}{expression}"]
    return "\n".join(lines) + "\n"


@plain
def _turn(zero, source, source_row, tile, rows, columns):
    """tile (TILE, TILE) = source (columns, rows) transposed."""
    size = bytes_of(zero)
    width = VECTOR_BYTES // size
    whole_rows, whole_columns = rows // width * width, columns // width * width
    for j in range(0, whole_columns, width):
        for i in range(0, whole_rows, width):  # along the source's rows, so that a line of the cache is read once
            start, into = source + j * source_row + i * size, tile + (i * TILE + j) * size
            transpose_square(zero, start, source_row, width, into, TILE * size)
    for i in range(rows):
        numbers = numbers_at(zero, tile + i * TILE * size)
        for j in range(0 if i >= whole_rows else whole_columns, columns):
            numbers[j] = numbers_at(zero, source + j * source_row)[i]

"""Pack weights into the panels that `panels` multiplies.

Packing reads and writes all weights once, so it pays from a few steps on. Inference keeps packed weights (`packed`).
"""

from numbarnn.compile.plain import plain
from numbarnn.engines.cpu.moves import copy_panel_term, fetch, transpose_square
from numbarnn.engines.cpu.panels import PANEL_ROW, ZERO
from numbarnn.engines.cpu.records import by_address, product_at
from numbarnn.engines.cpu.vectors import LINE, VECTOR_BYTES, bytes_of, numbers_at

AHEAD = 32  # terms to prefetch ahead: a column panel is read from rows that lie far apart in memory


def panels_shape(shape, H, transposed, dtype, panel_row=PANEL_ROW):
    """Return the shape of panels that hold rows of weights (gates * H, terms), or columns of weights (terms, columns).

    Args:
        transposed: pack columns. panel_row: bytes of a panel's columns, PANEL_ROW or GEMV_ROW.
    """
    (rows, columns), width = shape, panel_row // dtype.itemsize
    if transposed:
        return -(-columns // width), rows, width
    gates = rows // max(1, H)
    return gates * (H // width) + -(-gates * (H % width) // width), columns, width


@by_address
def pack_rows(zero, address):
    """Pack a panel whose columns are rows of weights: `out` of a `records.Product` from b (columns, terms).
    Missing columns become zeros. `out_row` is the distance between two terms. With `rest`, the panel takes that many
    rows from each of several b."""
    at, item, done = product_at(address), bytes_of(zero), ZERO
    while done < at.columns:
        count, b = at.columns - done, at.b + done * at.b_row
        if at.rest:
            number = at.rest_first + done
            count = min(count, at.rest - number % at.rest)
            b = at.b + number // at.rest * at.b_next + number % at.rest * at.b_row
        _pack_columns_of(zero, at, b, count, at.out + done * item)
        done += count
    for k in range(at.terms if at.columns < at.out_row // item else 0):
        panel = numbers_at(zero, at.out + k * at.out_row)
        for i in range(at.columns, at.out_row // item):
            panel[i] = zero


@plain
def _pack_columns_of(zero, at, b, columns, out):
    """Pack consecutive rows of weights as columns of a panel: whole squares first, then single rows."""
    item = bytes_of(zero)
    square = VECTOR_BYTES // item
    terms, whole = at.terms // square * square, columns // square * square
    for k in range(0, terms, square):
        for first in range(0, whole, square):
            start, into = b + first * at.b_row + k * item, out + k * at.out_row + first * item
            transpose_square(zero, start, at.b_row, square, into, at.out_row)
    for i in range(columns):
        row = numbers_at(zero, b + i * at.b_row)
        for k in range(terms if i < whole else 0, at.terms):
            numbers_at(zero, out + k * at.out_row)[i] = row[k]


@by_address
def pack_columns(zero, address):
    """Pack a panel whose columns are columns of weights: `out` of a `records.Product` from b (terms, columns).
    Missing columns become zeros. `out_row` is the distance between two terms."""
    at = product_at(address)
    width = at.out_row // bytes_of(zero)
    if at.columns == width and at.out_row == PANEL_ROW:
        for k in range(at.terms):
            for line in range(0, PANEL_ROW, LINE):
                fetch(zero, at.b + (k + AHEAD) * at.b_row + line)
            copy_panel_term(zero, at.b + k * at.b_row, at.out + k * PANEL_ROW)
        return
    for k in range(at.terms):
        row, panel = numbers_at(zero, at.b + k * at.b_row), numbers_at(zero, at.out + k * at.out_row)
        for i in range(width):
            panel[i] = row[i] if i < at.columns else zero

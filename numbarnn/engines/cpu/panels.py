"""Products with weights that are stored as they are read: in panels.

A panel has all terms of `width` columns, as many as two vectors of the machine have numbers, one term after the other.
Packing reads and writes all weights once, so it is worth it from a few steps on.
"""

import numpy as np

from numbarnn.compile.plain import plain
from numbarnn.engines.cpu.records import by_address, product_at
from numbarnn.engines.cpu.vectors import (
    MOST_ROWS,
    VECTOR_BYTES,
    bytes_of,
    numbers_at,
    own_rows,
    panel_width,
    tile_product,
    transpose_square,
)

PANEL_ROW = 2 * VECTOR_BYTES  # bytes of a panel's columns
CHAIN = 256  # terms added up one after another, and as much of a panel as stays in the first cache
_one, _two, _three, _four, _five, _six = (tile_product(rows, 1) for rows in range(1, MOST_ROWS + 1))
# For arguments that are always the same.
_ONE, _ROW, _NEW = np.intp(1), np.intp(PANEL_ROW), np.bool_(False)
_one_by_4, _two_by_2 = tile_product(1, 4), tile_product(2, 2)
FEW_ROWS = 3  # that `multiply_few_rows` takes at most


# ------------------------------------------------------------------------------------------ packing
def panels_shape(shape, H, transposed, dtype):
    """The shape of weights (gates * H, terms) in panels of each gate's rows, or (terms, columns) of their columns."""
    (rows, columns), width = shape, panel_width(dtype)
    if transposed:
        return -(-columns // width), rows, width
    return rows // max(1, H) * -(-H // width), columns, width


@by_address
def pack_rows(zero, address):
    """A panel whose columns are rows of weights: `out` of a `records.Product` from b (columns, terms).

    Fewer columns than `width` are filled up with zeros.
    """
    at, item = product_at(address), bytes_of(zero)
    square, width, done = VECTOR_BYTES // item, PANEL_ROW // item, 0
    if at.columns == width:
        done = at.terms // square * square
        for k in range(0, done, square):
            for half in range(2):
                start = at.b + half * square * at.b_row + k * item
                transpose_square(zero, start, at.b_row, at.out + k * PANEL_ROW + half * VECTOR_BYTES, PANEL_ROW)
    panel = numbers_at(zero, at.out)
    for i in range(width):
        row = numbers_at(zero, at.b + i * at.b_row)
        for k in range(done, at.terms):
            panel[k * width + i] = row[k] if i < at.columns else zero


@by_address
def pack_columns(zero, address):
    """A panel whose columns are columns of weights: `out` of a `records.Product` from b (terms, columns); likewise."""
    at = product_at(address)
    width = PANEL_ROW // bytes_of(zero)
    for k in range(at.terms):
        row, panel = numbers_at(zero, at.b + k * at.b_row), numbers_at(zero, at.out + k * PANEL_ROW)
        for i in range(width):
            panel[i] = row[i] if i < at.columns else zero


# ------------------------------------------------------------------------------------------ products
@by_address
def panel_product(zero, address):
    """A `records.Product` whose b is in panels."""
    at, item = product_at(address), bytes_of(zero)
    width, add = PANEL_ROW // item, at.add != 0
    whole, tile = at.columns // width, own_rows()
    _multiply_panels(zero, at.rows, at.a, at.a_row, at.b, at.b_row, whole, at.terms, at.out, at.out_row, add)
    left, panel, out = at.columns - whole * width, at.b + whole * at.b_row, at.out + whole * PANEL_ROW
    if left > 0:  # the last panel by way of memory of its own, as out has fewer columns
        for first in range(0, at.rows, MOST_ROWS):
            count = min(MOST_ROWS, at.rows - first)
            a = at.a + first * at.a_row
            _multiply_panels(zero, count, a, at.a_row, panel, at.b_row, _ONE, at.terms, tile, _ROW, _NEW)
            for i in range(count):
                row, own = numbers_at(zero, out + (first + i) * at.out_row), numbers_at(zero, tile + i * PANEL_ROW)
                for j in range(left):
                    row[j] = row[j] + own[j] if add else own[j]


@plain
def _multiply_panels(zero, rows, a, a_row, panel, size, panels, terms, out, out_row, add):
    """Of whole panels, whose columns follow each other in out.

    Sums of CHAIN terms are added up, in the same order whatever the number of rows and panels.
    """
    for start in range(0, max(1, terms), CHAIN):
        chain, adds = min(CHAIN, terms - start), add or start > 0
        own_a, own_panel = a + start * bytes_of(zero), panel + start * PANEL_ROW
        if 0 < rows <= FEW_ROWS:
            multiply_few_rows(zero, rows, own_a, a_row, own_panel, size, _ROW, panels, chain, out, out_row, adds)
        else:
            for p in range(panels):
                at, into = own_panel + p * size, out + p * PANEL_ROW
                _multiply_panel(zero, rows, own_a, a_row, at, size, chain, into, out_row, adds)


@plain
def multiply_few_rows(zero, rows, a, a_row, panel, size, term_bytes, panels, terms, out, out_row, add):
    """At most FEW_ROWS rows: several panels at once where that takes no more sums than there are registers, as one
    panel's are too few to keep both multipliers busy."""
    p = 0
    while p < panels:
        at, into, left = panel + p * size, out + p * PANEL_ROW, panels - p
        if rows == 1 and left >= 4:
            _one_by_4(zero, a, a_row, at, size, term_bytes, 0, 0, terms, into, out_row, add)
            p += 4
        elif rows == 1:
            _one(zero, a, a_row, at, 0, term_bytes, at + size, term_bytes, terms, into, out_row, add)
            p += 1
        elif rows == 2 and left >= 2:
            _two_by_2(zero, a, a_row, at, size, term_bytes, 0, 0, terms, into, out_row, add)
            p += 2
        elif rows == 2:
            _two(zero, a, a_row, at, 0, term_bytes, at + size, term_bytes, terms, into, out_row, add)
            p += 1
        else:
            _three(zero, a, a_row, at, 0, term_bytes, at + size, term_bytes, terms, into, out_row, add)
            p += 1


@plain
def _multiply_panel(zero, rows, a, a_row, panel, ahead, terms, out, out_row, add):
    """More than FEW_ROWS rows and one whole panel, in tiles of at most MOST_ROWS rows, all of nearly the same height:
    low ones are slow."""
    tiles = (rows + MOST_ROWS - 1) // MOST_ROWS
    step = PANEL_ROW // max(1, tiles)  # each tile fetches a part of the next panel
    for tile in range(tiles):
        first, last = rows * tile // tiles, rows * (tile + 1) // tiles
        own_a, own_out, n = a + first * a_row, out + first * out_row, last - first
        next_part = panel + ahead + tile * terms * step
        if n == 6:
            _six(zero, own_a, a_row, panel, 0, PANEL_ROW, next_part, step, terms, own_out, out_row, add)
        elif n == 5:
            _five(zero, own_a, a_row, panel, 0, PANEL_ROW, next_part, step, terms, own_out, out_row, add)
        elif n == 4:
            _four(zero, own_a, a_row, panel, 0, PANEL_ROW, next_part, step, terms, own_out, out_row, add)
        else:  # one row or two are no tile of FEW_ROWS and more
            _three(zero, own_a, a_row, panel, 0, PANEL_ROW, next_part, step, terms, own_out, out_row, add)

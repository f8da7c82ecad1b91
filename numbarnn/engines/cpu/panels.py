"""A step's products with its weights, and panels, which hold packed weights in the order in which products read them.

A panel holds `width` columns of weights: `width` numbers for each term of the sum. Zero columns fill the last panel. A
normal panel is two vectors wide. A product of few rows takes as long as reading the panels. With two vectors, a row has
only two independent sums, too few to keep up with the L2 cache; so a GEMV panel is eight vectors wide.
"""

import numpy as np

from numbarnn.compile.plain import plain
from numbarnn.engines.cpu.records import by_address, product_at
from numbarnn.engines.cpu.sharing import ONE, ZERO, clear_units
from numbarnn.engines.cpu.vectors import (
    LINE,
    MOST_ROWS,
    UNROLLED,
    VECTOR_BYTES,
    bytes_of,
    dot_tiles,
    numbers_at,
    own_bytes,
    tile_product,
    transpose_square,
)

PANEL_ROW, GEMV_ROW = 2 * VECTOR_BYTES, 8 * VECTOR_BYTES  # bytes of a panel's columns
FEW_ROWS = 2  # most rows of a product with GEMV panels: of three the sums would not stay in 16 registers
# Terms of an accumulation block; twice as many in products of more than 2 KC, which then err as PyTorch's do.
KC = 128
# A block of rows is copied to the stack, which some programs limit to 256 KB: its rows no longer lie a power of two
# apart, and stay in the L2 cache beside the panels' stream.
BLOCK_ROWS, BLOCK_BYTES = 64, 1 << 17  # fewer rows have more terms
ROWS_OF_B = 4  # multiplied together
# Most rows of a multiplied together: with ROWS_OF_B rows of b 24 sums of AVX-512's 32 registers, or 12 of 16.
MOST_TOGETHER = 6 if VECTOR_BYTES == 64 else 3
PANEL = np.intp(PANEL_ROW)
_dots, _last_dots = dot_tiles(MOST_TOGETHER, ROWS_OF_B), dot_tiles(MOST_TOGETHER, 1)
tile, few_tile, gemv_tile = tile_product(MOST_ROWS, 2), tile_product(FEW_ROWS, 4), tile_product(1, 8)


# ------------------------------------------------------------------------------------------ packing
@by_address
def pack_rows(zero, address):
    """Pack rows of weights as columns of panels: `out` of a `records.Product` from b, `units` rows for each gate.

    The gates lie `b_next` bytes apart in b, and `out_next` columns in the panels. Panels of columns from `first_column`
    to `columns` are packed.
    """
    at, item = product_at(address), bytes_of(zero)
    width = at.panel_row // item
    for p in range(at.first_column // width, (at.columns + width - 1) // width):
        panel = at.out + p * at.terms * at.panel_row
        column, end = p * width, min(at.columns, (p + 1) * width)
        if column + width > end or at.out_next != at.units:
            clear_units(zero, panel, ONE, at.terms * width, ZERO, at.terms * width)
        while column < end:
            gate, unit = column // at.out_next, column % at.out_next
            count = min(at.units - unit, end - column)
            if count > 0:
                b = at.b + gate * at.b_next + unit * at.b_row
                _pack_columns_of(zero, at, b, count, panel + (column - p * width) * item)
            column += count if count > 0 else at.out_next - unit


@plain
def _pack_columns_of(zero, at, b, columns, out):
    """Pack consecutive rows of weights as columns of a panel: whole squares first, then single rows."""
    item = bytes_of(zero)
    square = VECTOR_BYTES // item
    terms, whole = at.terms // square * square, columns // square * square
    for k in range(0, terms, square):
        for first in range(0, whole, square):
            start, into = b + first * at.b_row + k * item, out + k * at.panel_row + first * item
            transpose_square(zero, start, at.b_row, into, at.panel_row)
    for i in range(columns):
        row = numbers_at(zero, b + i * at.b_row)
        for k in range(terms if i < whole else 0, at.terms):
            numbers_at(zero, out + k * at.panel_row)[i] = row[k]


@by_address
def pack_columns(zero, address):
    """Pack columns of weights as columns of panels: `out` of a `records.Product` from b (terms, columns)."""
    at, item = product_at(address), bytes_of(zero)
    width = at.panel_row // item
    for p in range((at.columns + width - 1) // width):
        columns = min(width, at.columns - p * width)
        for k in range(at.terms):
            row = numbers_at(zero, at.b + k * at.b_row + p * at.panel_row)
            panel = numbers_at(zero, at.out + (p * at.terms + k) * at.panel_row)
            for i in range(columns):
                panel[i] = row[i]
            for i in range(columns, width):
                panel[i] = zero


# ------------------------------------------------------------------------------------------ products
@by_address
def panel_product(zero, address):
    """Compute a `records.Product` whose b is in panels.

    Accumulation blocks of KC or 2 KC terms are added up in the same order for any number of rows and panels.
    """
    own_a, own_out = own_bytes(BLOCK_BYTES + BLOCK_ROWS * LINE), own_bytes(BLOCK_ROWS * GEMV_ROW)
    at, item = product_at(address), bytes_of(zero)
    blocks = (at.rows + BLOCK_ROWS - 1) // BLOCK_ROWS
    for block in range(blocks):
        first, last = at.rows * block // blocks, at.rows * (block + 1) // blocks
        most = BLOCK_BYTES // ((last - first) * item * 2 * KC) * 2 * KC
        for start in range(0, max(1, at.terms), most):
            terms = min(most, at.terms - start)
            a = at.a + first * at.a_row + start * item, at.a_row
            _copy(zero, (last - first, terms), a, (own_a, terms * item + LINE))
            _multiply_block(zero, at, (first, last - first), (start, terms), own_a, own_out)


@plain
def _multiply_block(zero, at, rows, terms, own_a, own_out):
    """Multiply some terms of some rows, copied to `own_a`; rows, terms: (the first, how many)."""
    (first, rows), (start, terms), item = rows, terms, bytes_of(zero)
    width, a_row = at.panel_row // item, terms * item + LINE
    kc = KC if at.terms <= 2 * KC else 2 * KC
    for p in range((at.columns + width - 1) // width):
        columns, panel = min(width, at.columns - p * width), at.b + p * at.b_row + start * at.panel_row
        out, adds = (at.out + first * at.out_row + p * at.panel_row, at.out_row), at.add != 0 or start > 0
        into = (own_out, np.intp(GEMV_ROW)) if columns < width else out  # of the last panel some columns are wanted
        if columns < width and adds:
            _copy(zero, (rows, columns), out, into)
        ahead = panel + at.b_row
        for k in range(0, max(1, terms), kc):
            block = panel + k * at.panel_row, min(kc, terms - k)
            _multiply_panel(
                zero, at, rows, (own_a + k * item, a_row), block, ahead + k * at.panel_row, into, adds or k > 0
            )
        if columns < width:
            _copy(zero, (rows, columns), into, out)


@plain
def _multiply_panel(zero, at, rows, a, panel, ahead, out, add):
    """Multiply rows by a block of a panel, tile by tile.

    Args:
        a, out: (address, bytes between rows). panel: (address, terms). ahead: address of the next panel's block.
    """
    (panel, terms), few = panel, at.panel_row != PANEL_ROW
    most = FEW_ROWS if few else MOST_ROWS
    tiles = (rows + most - 1) // most  # of nearly equal height, as low ones are slow
    for number in range(tiles):
        first, last = rows * number // tiles, rows * (number + 1) // tiles
        own_a, own_out = a[0] + first * a[1], out[0] + first * out[1]
        if few:
            few_product(zero, last - first, own_a, a[1], panel, at.panel_row, terms, own_out, out[1], add)
        else:
            tile(zero, last - first, own_a, a[1], panel, PANEL, ahead, terms, own_out, out[1], add)
        ahead += terms // UNROLLED * LINE  # each tile prefetches a part of the next panel


@plain
def few_product(zero, rows, a, a_row, panel, term_bytes, terms, out, out_row, add):
    """Multiply at most FEW_ROWS rows by some terms of a GEMV panel."""
    if rows == 1:
        gemv_tile(zero, rows, a, a_row, panel, term_bytes, panel, terms, out, out_row, add)
    else:
        for half in range(0, GEMV_ROW, GEMV_ROW // 2):
            few_tile(zero, rows, a, a_row, panel + half, term_bytes, panel, terms, out + half, out_row, add)


@plain
def _copy(zero, shape, source, out):
    """Copy a block of rows and columns; source and out are given as (address, bytes between rows)."""
    for i in range(shape[0]):
        row, other = numbers_at(zero, out[0] + i * out[1]), numbers_at(zero, source[0] + i * source[1])
        for j in range(shape[1]):
            row[j] = other[j]


# ------------------------------------------------------------------------------------------ weights that are not packed
# A product of few rows, in few steps, uses each weight only a few times: reading the weights takes most of its time,
# and packing them takes as long as a few steps.
@by_address
def multiply_by_rows(zero, address):
    """Compute a `records.Product` a bᵀ whose a (rows, terms) and b (columns, terms) are row-major."""
    at, item = product_at(address), bytes_of(zero)
    width = at.columns if at.rows <= MOST_TOGETHER else ROWS_OF_B  # b is read once, by all rows
    parts, add = (at.rows + MOST_TOGETHER - 1) // MOST_TOGETHER, at.add != 0  # parts of nearly equal numbers of rows
    for j in range(0, at.columns, max(1, width)):
        b, columns = at.b + j * at.b_row, min(width, at.columns - j)
        tiles, left = columns // ROWS_OF_B, columns % ROWS_OF_B
        last_b, done = b + tiles * ROWS_OF_B * at.b_row, tiles * ROWS_OF_B * item
        for part in range(parts):
            i, end = at.rows * part // parts, at.rows * (part + 1) // parts
            a, rows, out = at.a + i * at.a_row, end - i, at.out + i * at.out_row + j * item
            _dots(zero, rows, a, at.a_row, b, at.b_row, tiles, at.terms, out, at.out_row, add)
            _last_dots(zero, rows, a, at.a_row, last_b, at.b_row, left, at.terms, out + done, at.out_row, add)


@by_address
def multiply_by_columns(zero, address):
    """Compute a `records.Product` a b, b (terms, columns): four vectors of each of its rows are a panel, or two."""
    at, item = product_at(address), bytes_of(zero)
    for i in range(0, at.rows, FEW_ROWS):
        a, out, rows = at.a + i * at.a_row, at.out + i * at.out_row, min(FEW_ROWS, at.rows - i)
        for start in range(0, max(1, at.terms), KC):
            b, kc, adds = at.b + start * at.b_row, min(KC, at.terms - start), at.add != 0 or start > 0
            own_a, done = a + start * item, ZERO
            while (at.columns - done // item) * item >= 4 * VECTOR_BYTES:
                few_tile(zero, rows, own_a, at.a_row, b + done, at.b_row, b, kc, out + done, at.out_row, adds)
                done += 4 * VECTOR_BYTES
            if (at.columns - done // item) * item >= 2 * VECTOR_BYTES:
                tile(zero, rows, own_a, at.a_row, b + done, at.b_row, b, kc, out + done, at.out_row, adds)
                done += 2 * VECTOR_BYTES
            for k in range(rows):
                row, left = own_a + k * at.a_row, at.columns - done // item
                _add_columns(zero, row, b + done, at.b_row, kc, left, out + k * at.out_row + done, adds)


@plain
def _add_columns(zero, a, b, b_row, terms, columns, out, add):
    """Compute out (columns,) = a b, or += with `add`, for the last columns, fewer than a panel has."""
    a, sums = numbers_at(zero, a), numbers_at(zero, out)
    for j in range(columns):
        total = zero
        for k in range(terms):
            total += a[k] * numbers_at(zero, b + k * b_row)[j]
        sums[j] = sums[j] + total if add else total

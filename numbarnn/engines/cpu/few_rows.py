"""Multiply few rows, such as one sequence's, by unpacked weights.

Such a product uses each weight only a few times, so reading the weights takes most of its time. Packed weights
are not read faster, and packing takes as long as a few steps. Unpacked weights also need no check for changes.
"""

import numpy as np

from numbarnn.compile.plain import plain
from numbarnn.engines.cpu.panels import FEW_ROWS, KC, PANEL_ROW, multiply_few_rows
from numbarnn.engines.cpu.records import by_address, product_at
from numbarnn.engines.cpu.vectors import VECTOR_BYTES, bytes_of, dot_tiles, numbers_at

COLUMNS = 4  # rows of b multiplied together
# Most rows of a multiplied together: with COLUMNS rows of b 24 sums of AVX-512's 32 registers, or 12 of 16.
MOST_TOGETHER = 6 if VECTOR_BYTES == 64 else 3
MANY_BYTES = 1 << 18  # a thread's bytes of b from which b, with all gates, lies in the L3 cache
_PANEL, ZERO = np.intp(PANEL_ROW), np.intp(0)


_multiply, _multiply_last = dot_tiles(MOST_TOGETHER, COLUMNS), dot_tiles(MOST_TOGETHER, 1)
_one_of_many = dot_tiles(1, COLUMNS, fetches=True)


@plain
def _multiply_tiles(zero, rows, a, a_row, b, b_row, count, terms, out, out_row, add):
    """Multiply at most MOST_TOGETHER rows of a by `count` tiles of COLUMNS rows of b."""
    if rows == 1 and count * COLUMNS * b_row > MANY_BYTES:
        _one_of_many(zero, rows, a, a_row, b, b_row, count, terms, out, out_row, add)
    else:
        _multiply(zero, rows, a, a_row, b, b_row, count, terms, out, out_row, add)


@by_address
def multiply_by_rows(zero, address):
    """Compute a `records.Product` a bᵀ whose a (rows, terms) and b (columns, terms) are row-major."""
    at, item = product_at(address), bytes_of(zero)
    all_columns, more, add = at.columns, at.more, at.add != 0
    if at.b_next == at.columns * at.b_row and at.out_next == at.columns * item:  # consecutive matrices are one matrix
        all_columns, more = at.columns * (more + 1), ZERO
    width = all_columns if at.rows <= MOST_TOGETHER else COLUMNS  # b is read once, by all rows
    parts = (at.rows + MOST_TOGETHER - 1) // MOST_TOGETHER  # of nearly equal numbers of rows
    for number in range(more + 1):
        for j in range(0, all_columns, max(1, width)):
            b, columns = at.b + number * at.b_next + j * at.b_row, min(width, all_columns - j)
            tiles, left = columns // COLUMNS, columns % COLUMNS
            last_b, done = b + tiles * COLUMNS * at.b_row, tiles * COLUMNS * item
            for part in range(parts):
                i, end = at.rows * part // parts, at.rows * (part + 1) // parts
                a, rows = at.a + i * at.a_row, end - i
                out = at.out + number * at.out_next + i * at.out_row + j * item
                _multiply_tiles(zero, rows, a, at.a_row, b, at.b_row, tiles, at.terms, out, at.out_row, add)
                _multiply_last(zero, rows, a, at.a_row, last_b, at.b_row, left, at.terms, out + done, at.out_row, add)


@by_address
def multiply_by_columns(zero, address):
    """Compute a `records.Product` a b, b (terms, columns).
    Each PANEL_ROW bytes of a row of b are treated as one panel."""
    at, item = product_at(address), bytes_of(zero)
    width, add = PANEL_ROW // item, at.add != 0
    whole = at.columns // width
    for i in range(0, at.rows, FEW_ROWS):
        a, out, rows = at.a + i * at.a_row, at.out + i * at.out_row, min(FEW_ROWS, at.rows - i)
        for start in range(0, max(1, at.terms), KC):
            b, kc = at.b + start * at.b_row, min(KC, at.terms - start)
            own_a, adds = a + start * item, add or start > 0
            multiply_few_rows(zero, rows, own_a, at.a_row, b, _PANEL, at.b_row, whole, kc, out, at.out_row, adds)
            for k in range(rows):
                row, first = own_a + k * at.a_row, whole * width
                _add_columns(zero, row, b + first * item, at.b_row, kc, at.columns - first, out + k * at.out_row
                             + first * item, adds)  # fmt: skip


@plain
def _add_columns(zero, a, b, b_row, terms, columns, out, add):
    """Compute out (columns,) = a b, or += with `add`, for the last columns, fewer than a panel has."""
    a, sums = numbers_at(zero, a), numbers_at(zero, out)
    for j in range(columns):
        total = zero
        for k in range(terms):
            total += a[k] * numbers_at(zero, b + k * b_row)[j]
        sums[j] = sums[j] + total if add else total

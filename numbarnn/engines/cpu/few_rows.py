"""Multiply few rows, such as one sequence's, by unpacked weights.

Such a product uses each weight only a few times, so reading the weights takes most of its time. Packed weights
are not read faster, and packing takes as long as a few steps. Unpacked weights also need no check for changes.
"""

import numpy as np

from numbarnn.compile.plain import plain
from numbarnn.engines.cpu.panels import FEW_ROWS, KC, few_tile, tile
from numbarnn.engines.cpu.records import by_address, product_at
from numbarnn.engines.cpu.vectors import VECTOR_BYTES, bytes_of, dot_tiles, numbers_at

COLUMNS = 4  # rows of b multiplied together
# Most rows of a multiplied together: with COLUMNS rows of b 24 sums of AVX-512's 32 registers, or 12 of 16.
MOST_TOGETHER = 6 if VECTOR_BYTES == 64 else 3


_multiply, _multiply_last = dot_tiles(MOST_TOGETHER, COLUMNS), dot_tiles(MOST_TOGETHER, 1)


@by_address
def multiply_by_rows(zero, address):
    """Compute a `records.Product` a bᵀ whose a (rows, terms) and b (columns, terms) are row-major."""
    at, item = product_at(address), bytes_of(zero)
    width = at.columns if at.rows <= MOST_TOGETHER else COLUMNS  # b is read once, by all rows
    parts, add = (at.rows + MOST_TOGETHER - 1) // MOST_TOGETHER, at.add != 0  # parts of nearly equal numbers of rows
    for j in range(0, at.columns, max(1, width)):
        b, columns = at.b + j * at.b_row, min(width, at.columns - j)
        tiles, left = columns // COLUMNS, columns % COLUMNS
        last_b, done = b + tiles * COLUMNS * at.b_row, tiles * COLUMNS * item
        for part in range(parts):
            i, end = at.rows * part // parts, at.rows * (part + 1) // parts
            a, rows, out = at.a + i * at.a_row, end - i, at.out + i * at.out_row + j * item
            _multiply(zero, rows, a, at.a_row, b, at.b_row, tiles, at.terms, out, at.out_row, add)
            _multiply_last(zero, rows, a, at.a_row, last_b, at.b_row, left, at.terms, out + done, at.out_row, add)


@by_address
def multiply_by_columns(zero, address):
    """Compute a `records.Product` a b, b (terms, columns): four vectors of each of its rows are a panel, or two."""
    at, item = product_at(address), bytes_of(zero)
    for i in range(0, at.rows, FEW_ROWS):
        a, out, rows = at.a + i * at.a_row, at.out + i * at.out_row, min(FEW_ROWS, at.rows - i)
        for start in range(0, max(1, at.terms), KC):
            b, kc, adds = at.b + start * at.b_row, min(KC, at.terms - start), at.add != 0 or start > 0
            own_a, done = a + start * item, np.intp(0)
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

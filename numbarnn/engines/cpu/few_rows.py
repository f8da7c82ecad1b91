"""Products of few rows, such as one sequence's, with weights as they lie.

Such a product multiplies each weight that it reads only a few times, so it takes as long as reading them does. Packed
weights are not read faster, and packing takes as long as a few steps. So does reading them to see whether they are
those that were packed: what multiplies weights as they lie need not know that they have changed.
"""

import numpy as np

from numbarnn.compile.plain import plain
from numbarnn.engines.cpu.panels import CHAIN, FEW_ROWS, PANEL_ROW, multiply_few_rows
from numbarnn.engines.cpu.records import by_address, product_at
from numbarnn.engines.cpu.vectors import VECTOR_BYTES, bytes_of, dot_tiles, numbers_at

COLUMNS = 4  # rows of b multiplied together
# Rows of a multiplied together, at most: with COLUMNS rows of b 24 sums of AVX-512's 32 registers, or 12 of 16.
MOST_BESIDE = 6 if VECTOR_BYTES == 64 else 3
MANY_BYTES = 1 << 18  # of a thread's part of b, from which all of it, of further gates too, is in the third cache
_PANEL, ZERO = np.intp(PANEL_ROW), np.intp(0)


_multiply, _multiply_last = dot_tiles(MOST_BESIDE, COLUMNS), dot_tiles(MOST_BESIDE, 1)
_one_of_many = dot_tiles(1, COLUMNS, fetches=True)


@plain
def _multiply_tiles(zero, rows, a, a_row, b, b_row, count, terms, out, out_row, add):
    """At most MOST_BESIDE rows of a, and so many times COLUMNS rows of b."""
    if rows == 1 and count * COLUMNS * b_row > MANY_BYTES:
        _one_of_many(zero, rows, a, a_row, b, b_row, count, terms, out, out_row, add)
    else:
        _multiply(zero, rows, a, a_row, b, b_row, count, terms, out, out_row, add)


@by_address
def multiply_by_rows(zero, address):
    """A `records.Product` a bᵀ: terms of a and of b (columns, terms) are side by side."""
    at, item = product_at(address), bytes_of(zero)
    all_columns, more, add = at.columns, at.more, at.add != 0
    if at.b_next == at.columns * at.b_row and at.out_next == at.columns * item:  # one matrix, in fact
        all_columns, more = at.columns * (more + 1), ZERO
    width = all_columns if at.rows <= MOST_BESIDE else COLUMNS  # b is read once, by all rows
    parts = (at.rows + MOST_BESIDE - 1) // MOST_BESIDE  # of nearly the same number of rows
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
    """A `records.Product` a b, b (terms, columns).

    The first PANEL_ROW bytes of each row of b are a panel as they lie, the next PANEL_ROW bytes the next panel.
    """
    at, item = product_at(address), bytes_of(zero)
    width, add = PANEL_ROW // item, at.add != 0
    whole = at.columns // width
    for i in range(0, at.rows, FEW_ROWS):
        a, out, rows = at.a + i * at.a_row, at.out + i * at.out_row, min(FEW_ROWS, at.rows - i)
        for start in range(0, max(1, at.terms), CHAIN):
            b, chain = at.b + start * at.b_row, min(CHAIN, at.terms - start)
            own_a, adds = a + start * item, add or start > 0
            multiply_few_rows(zero, rows, own_a, at.a_row, b, _PANEL, at.b_row, whole, chain, out, at.out_row, adds)
            for k in range(rows):
                row, first = own_a + k * at.a_row, whole * width
                _add_columns(zero, row, b + first * item, at.b_row, chain, at.columns - first, out + k * at.out_row
                             + first * item, adds)  # fmt: skip


@plain
def _add_columns(zero, a, b, b_row, terms, columns, out, add):
    """out (columns,) = a b, or += with `add`, for the last columns, which are fewer than a panel has."""
    a, sums = numbers_at(zero, a), numbers_at(zero, out)
    for j in range(columns):
        total = zero
        for k in range(terms):
            total += a[k] * numbers_at(zero, b + k * b_row)[j]
        sums[j] = sums[j] + total if add else total

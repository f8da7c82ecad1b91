"""Products of few rows, such as one sequence's, with weights as they lie.

Such a product multiplies each weight that it reads only a few times, so it takes as long as reading them does. Packed
weights are not read faster, and packing takes as long as a few steps.
"""

import numpy as np

from numbarnn.compile.plain import plain
from numbarnn.engines.cpu.panels import CHAIN, FEW_ROWS, PANEL_ROW, multiply_few_rows
from numbarnn.engines.cpu.records import by_address, product_at
from numbarnn.engines.cpu.vectors import bytes_of, dot_tiles, numbers_at

COLUMNS = 4  # rows of b multiplied together
MANY_BYTES = 1 << 18  # of a thread's part of b, from which all of it, of further gates too, is in the third cache
_PANEL, ZERO = np.intp(PANEL_ROW), np.intp(0)


def _by_rows_of_b(columns):
    """A product of at most FEW_ROWS rows of a and `count` times so many of b."""
    one, two, three = (dot_tiles(rows, columns) for rows in range(1, FEW_ROWS + 1))
    one_of_many = dot_tiles(1, columns, fetches=columns > 1)

    @plain
    def multiply(zero, rows, a, a_row, b, b_row, count, terms, out, out_row, add):
        if rows == 1 and count * columns * b_row > MANY_BYTES:
            one_of_many(zero, a, a_row, b, b_row, count, terms, out, out_row, add)
        elif rows == 1:
            one(zero, a, a_row, b, b_row, count, terms, out, out_row, add)
        elif rows == 2:
            two(zero, a, a_row, b, b_row, count, terms, out, out_row, add)
        else:
            three(zero, a, a_row, b, b_row, count, terms, out, out_row, add)

    return multiply


_multiply, _multiply_last = _by_rows_of_b(COLUMNS), _by_rows_of_b(1)


@by_address
def multiply_by_rows(zero, address):
    """A `records.Product` a bᵀ: terms of a and of b (columns, terms) are side by side."""
    at, item = product_at(address), bytes_of(zero)
    all_columns, more, add = at.columns, at.more, at.add != 0
    if at.b_next == at.columns * at.b_row and at.out_next == at.columns * item:  # one matrix, in fact
        all_columns, more = at.columns * (more + 1), ZERO
    width = all_columns if at.rows <= FEW_ROWS else COLUMNS  # b is read once, by all rows
    for number in range(more + 1):
        for j in range(0, all_columns, max(1, width)):
            b, columns = at.b + number * at.b_next + j * at.b_row, min(width, all_columns - j)
            tiles, left = columns // COLUMNS, columns % COLUMNS
            last_b, done = b + tiles * COLUMNS * at.b_row, tiles * COLUMNS * item
            for i in range(0, at.rows, FEW_ROWS):
                a, rows = at.a + i * at.a_row, min(FEW_ROWS, at.rows - i)
                out = at.out + number * at.out_next + i * at.out_row + j * item
                _multiply(zero, rows, a, at.a_row, b, at.b_row, tiles, at.terms, out, at.out_row, add)
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

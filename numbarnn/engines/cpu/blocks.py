"""Products of large matrices as they are, in the panels' tiles: OpenBLAS's work, where these are faster.

Some terms of b at a time are packed in panels, which multiply all rows of a; the more terms, the fewer times are sums
written. Sums of CHAIN terms, or fewer, are added up, as in `products.blas_product`.
"""

from numbarnn.compile.plain import plain
from numbarnn.engines.cpu.moves import copy_panel_term
from numbarnn.engines.cpu.panels import BLOCK_ROW, PANEL_ROW
from numbarnn.engines.cpu.products import CHAIN
from numbarnn.engines.cpu.records import by_address, new_product, product_at, run
from numbarnn.engines.cpu.vectors import VECTOR_BYTES, bytes_of, numbers_at

WINS = VECTOR_BYTES == 64  # by 2 to 7 %; with AVX2 OpenBLAS is as much faster
# Of at most so many terms, sums of as few are added up: PyTorch's GRU adds up the terms of a step, then the steps, and
# erred up to 4 times less than sums of CHAIN terms. Of more terms these err no more than it, and take less time.
FEW, SHORT_CHAIN = 2 * CHAIN, 32
PACKED_BYTES = 1 << 21  # of b at a time: the third cache has them


@plain
def _pack_columns(zero, b, b_row, terms, columns, out):
    """Panels of b (terms, columns): each row is read once, from its beginning to its end."""
    item = bytes_of(zero)
    width = PANEL_ROW // item
    whole, size = columns // width, terms * PANEL_ROW
    left = columns - whole * width
    for k in range(terms):
        row, panel = b + k * b_row, out + k * PANEL_ROW
        for p in range(whole):
            copy_panel_term(zero, row + p * PANEL_ROW, panel + p * size)
        if left:
            last, into = numbers_at(zero, row + whole * PANEL_ROW), numbers_at(zero, panel + whole * size)
            for i in range(width):
                into[i] = last[i] if i < left else zero


@plain
def _pack(zero, at, columns, terms, part):
    """Panels of some columns and terms of b, into `at.scratch`.

    Args:
        at: the `records.Product`. columns, terms: (the first, how many). part: address of another one, for one panel.
    """
    (first, columns), (start, terms), item = columns, terms, bytes_of(zero)
    if at.transpose_b == 0:
        _pack_columns(zero, at.b + start * at.b_row + first * item, at.b_row, terms, columns, at.scratch)
        return
    panel, width = product_at(part), PANEL_ROW // item
    panel.terms, panel.b_row, panel.out_row = terms, at.b_row, PANEL_ROW
    for i in range(0, columns, width):
        panel.columns, panel.out = min(width, columns - i), at.scratch + i * terms * item
        panel.b = at.b + (first + i) * at.b_row + start * item
        run(zero, at.pack_rows, part)


@by_address
def block_product(zero, address):
    """A `records.Product` of matrices as they are; of more rows than `panels.FEW_ROWS`."""
    at, place, panel, item = product_at(address), new_product(), new_product(), bytes_of(zero)
    part, width = product_at(place), PANEL_ROW // item
    terms = min(at.terms, BLOCK_ROW // item)
    most = PACKED_BYTES // (terms * PANEL_ROW) * width  # columns
    part.rows, part.a_row, part.out_row, part.transpose_a = at.rows, at.a_row, at.out_row, at.transpose_a
    part.b, part.panel_row = at.scratch, PANEL_ROW
    part.chain = SHORT_CHAIN if at.terms <= FEW else CHAIN
    for first in range(0, at.columns, most):
        part.columns, part.out = min(most, at.columns - first), at.out + first * item
        for start in range(0, at.terms, terms):
            part.terms, part.add = min(terms, at.terms - start), at.add != 0 or start > 0
            _pack(zero, at, (first, part.columns), (start, part.terms), panel)
            part.a, part.b_row = at.a + start * (at.a_row if at.transpose_a else item), part.terms * PANEL_ROW
            run(zero, at.panel_product, place)

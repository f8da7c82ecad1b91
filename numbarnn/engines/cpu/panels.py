"""Products with packed weights: panels hold them in the order in which they are read.

A panel has all terms of `width` columns (two vectors of the machine), one term after another. Each gate's columns
begin a new panel; columns of all gates that fill no whole panel share further panels. GEMV panels, as wide as several
of these, are for products of few rows. `packing` makes panels.
"""

import numpy as np

from numbarnn.compile.plain import inlined, plain
from numbarnn.engines.cpu.moves import fetch, transpose_half, transpose_square
from numbarnn.engines.cpu.packed_tile import UNROLLED, packed_tile
from numbarnn.engines.cpu.records import by_address, product_at
from numbarnn.engines.cpu.vectors import LINE, MOST_ROWS, VECTOR_BYTES, bytes_of, numbers_at, own_bytes, tile_product

PANEL_ROW = 2 * VECTOR_BYTES  # bytes of a panel's columns
# Bytes of a GEMV panel's columns. A product of few rows takes as long as reading the panels. One panel has too few
# sums to read at the L2 cache's speed, and several that lie apart read little more than half as fast.
GEMV_ROW = PANEL_ROW * (2 if VECTOR_BYTES == 64 else 4)
# Terms of an accumulation block, for few terms or few rows; others have twice as many, see `kc_of`.
KC = 128
# Bytes of each row of a block of rows: the block stays in the L2 cache beside the panels' stream. More terms write
# sums less often, more rows read panels less often. The block lies on the stack, which some programs limit to 256 KB.
BLOCK_ROWS, BLOCK_ROW = 64, 1 << 11
BLOCK_BYTES = BLOCK_ROWS * BLOCK_ROW  # fewer rows have more terms
FEW_ROWS = 3  # most rows of `multiply_few_rows`, which use GEMV panels
_one, _two, _three = (tile_product(rows, 1) for rows in range(1, 4))
_LOWEST = min(MOST_ROWS // 2, FEW_ROWS + 1)  # `tile_of` makes no lower tiles
_packed, _packed_half = (packed_tile(_LOWEST, MOST_ROWS, vectors) for vectors in (2, 1))
_ROW, _WIDE = np.intp(PANEL_ROW), np.intp(GEMV_ROW)
ZERO, NO, YES = np.intp(0), np.bool_(False), np.bool_(True)
_one_by_4, _one_by_2, _two_by_2 = tile_product(1, 4), tile_product(1, 2), tile_product(2, 2)
_three_by_2 = tile_product(3, 2)
_MANY_REGISTERS = VECTOR_BYTES == 64  # 32, elsewhere 16
# Accumulators for each number of a product with GEMV panels: shorter sums round less, and reading the panels takes
# longer than the sums while these are in registers. Four take 2 % more time for one row.
ACCUMULATORS = 2 if _MANY_REGISTERS else 1
_one_row, _two_rows, _three_rows = (tile_product(rows, 2, ACCUMULATORS) for rows in range(1, 4))


@plain
def kc_of(terms):
    """Return the terms of an accumulation block for a product of that many terms.
    PyTorch cuts 256 terms in two, and errs 1.4 times less than one sum there; elsewhere it errs as sums of 256 do, or
    up to a fifth less. Shorter blocks would take 0.7 % more time."""
    return KC if terms <= 2 * KC else 2 * KC


@plain
def has_accumulators(panel_row, batch):
    """Return whether a step's products use several accumulators; it must not depend on the number of threads."""
    return panel_row == GEMV_ROW and batch <= FEW_ROWS


# ------------------------------------------------------------------------------------------ products
@by_address
def panel_product(zero, address):
    """Compute a `records.Product` whose b is in panels.

    Accumulation blocks of `kc` terms are added up in the same order for any number of rows and panels. Few rows with
    `accumulators` use ACCUMULATORS accumulators over KC terms. With GEMV panels, all rows are read FEW_ROWS at once.
    """
    at, scratch, own_out = product_at(address), own_bytes(BLOCK_BYTES + VECTOR_BYTES), own_bytes(BLOCK_ROWS * GEMV_ROW)
    if at.rows <= FEW_ROWS or at.panel_row == GEMV_ROW:
        _multiply_few_at_a_time(zero, at, own_out)
        return
    tiles, of_block = (at.rows + MOST_ROWS - 1) // MOST_ROWS, BLOCK_ROWS // MOST_ROWS
    blocks = (tiles + of_block - 1) // of_block  # all but the last are whole tiles
    for block in range(blocks):
        first, last = tiles * block // blocks * MOST_ROWS, min(at.rows, tiles * (block + 1) // blocks * MOST_ROWS)
        most = BLOCK_BYTES // (max(1, last - first) * bytes_of(zero) * at.kc) * at.kc
        for start in range(0, max(1, at.terms), most):
            _multiply_block(zero, at, (first, last - first), (start, min(most, at.terms - start)), (scratch, own_out))


@plain
def _multiply_few_at_a_time(zero, at, own_out):
    """Multiply rows, FEW_ROWS at once. GEMV panels may meet more rows if one thread does the work of several."""
    rows, a, out = at.rows, at.a, at.out
    for first in range(0, rows, FEW_ROWS):
        at.rows, at.a, at.out = min(FEW_ROWS, rows - first), a + first * at.a_row, out + first * at.out_row
        _multiply_few(zero, at, own_out)
    at.rows, at.a, at.out = rows, a, out


@plain
def _multiply_few(zero, at, own_out):
    """Multiply at most FEW_ROWS rows.

    All of a panel is read before the next one, in the order in which they lie in memory: reading blocks that lie apart
    halves the L2 cache's speed.

    Args:
        at: the `records.Product`. own_out: memory for the product with one panel.
    """
    row, item, panels = at.panel_row, bytes_of(zero), at.panel_row // PANEL_ROW
    width = row // item
    for p in range(at.columns // width):
        for number in range(at.more + 1):
            panel, out = at.b + p * at.b_row + number * at.b_next, at.out + p * row + number * at.out_next
            _multiply_all_terms(zero, at, panel, panels, (out, at.out_row))
    if at.columns % width == 0:
        return
    first, end = _rest_of(at, width)
    for p in range(first // width, (end + width - 1) // width):
        if at.add:
            _move_rest(zero, at, (p, width), (ZERO, at.rows), (own_out, _WIDE), YES)
        panels = (min(width, end - p * width) * item + PANEL_ROW - 1) // PANEL_ROW
        _multiply_all_terms(zero, at, _rest_panel(at, p, width), panels, (own_out, _WIDE))
        _move_rest(zero, at, (p, width), (ZERO, at.rows), (own_out, _WIDE), NO)


@inlined
def _multiply_all_terms(zero, at, panel, panels, out):
    """Multiply at most FEW_ROWS rows by a GEMV panel of `panels` panels; out: (address, bytes between rows)."""
    rows, item, row, kc = at.rows, bytes_of(zero), at.panel_row, at.kc
    if at.accumulators:
        kc = KC * ACCUMULATORS
    for start in range(0, max(1, at.terms), kc):
        a, adds = (at.a + start * item, at.a_row), at.add != 0 or start > 0
        terms = panel + start * row, min(kc, at.terms - start)
        if at.accumulators and ACCUMULATORS > 1:
            _multiply_gemv(zero, rows, a, terms, row, out, adds)
        else:
            multiply_few_rows(zero, rows, *a, terms[0], _ROW, row, panels, terms[1], *out, adds)


@plain
def _multiply_gemv(zero, rows, a, panel, row, out, add):
    """Multiply some terms by a GEMV panel, two panels at once, with several accumulators.

    Args:
        panel: (address, terms).
        row: bytes of its columns. a, out: (address, bytes between rows).
    """
    (a, a_row), (panel, terms), (out, out_row) = a, panel, out
    if rows == 1:
        _one_row(zero, a, a_row, panel, _ROW, row, terms, out, out_row, add)
    elif rows == 2:
        _two_rows(zero, a, a_row, panel, _ROW, row, terms, out, out_row, add)
    else:
        _three_rows(zero, a, a_row, panel, _ROW, row, terms, out, out_row, add)


@plain
def _multiply_block(zero, at, rows, terms, scratch):
    """Multiply some terms of some rows, which are first copied into packed tiles.

    Args:
        at: the `records.Product`. rows, terms: (the first, how many).
        scratch: addresses of memory for a block of rows, and for its product with one panel.
    """
    (first, rows), (start, terms), (tiles, own_out), item = rows, terms, scratch, bytes_of(zero)
    width, adds = PANEL_ROW // item, at.add != 0 or start > 0
    whole, a = at.columns // width, at.a + first * at.a_row + start * item
    _pack_tiles(zero, rows, a, at.a_row, terms, tiles)
    next_rows, next_start = first, start + terms
    if next_start >= at.terms:
        next_rows, next_start = first + rows, 0
    for p in range(whole):
        block = at.b + start * PANEL_ROW + p * at.b_row
        if rows < at.rows:  # else a is small, and in the cache already
            _fetch_block(zero, at, (next_rows, rows), (next_start, terms), (p, whole))
        for number in range(at.more + 1):
            panel, out = block + number * at.b_next, at.out + first * at.out_row + p * PANEL_ROW + number * at.out_next
            ahead = panel + at.b_next if number < at.more else block + at.b_row
            _multiply_panel(zero, at, (rows, width), tiles, (panel, ahead), terms, (out, at.out_row), adds)
    rest, end = _rest_of(at, width)
    for p in range(rest // width, (end + width - 1) // width):
        panel, scratch = _rest_panel(at, p, width) + start * PANEL_ROW, (own_out, _WIDE)
        shape = rows, min(width, end - p * width)
        if adds:
            _move_rest(zero, at, (p, width), (first, rows), scratch, YES)
        _multiply_panel(zero, at, shape, tiles, (panel, panel + at.b_next), terms, scratch, adds)
        _move_rest(zero, at, (p, width), (first, rows), scratch, NO)


@plain
def _rest_of(at, width):
    """Return [first, end) of the columns of a `records.Product` in shared panels, among all columns of these."""
    rest = at.columns % width
    return at.rest_first * rest, (at.rest_first + at.more + 1) * rest


@plain
def _rest_panel(at, p, width):
    """Return the address of shared panel p."""
    return (at.rest_panels if at.rest_panels else at.b + at.columns // width * at.b_row) + p * at.b_next


@plain
def _move_rest(zero, at, panel, rows, scratch, back):
    """Copy the columns of a shared panel from its memory `scratch` to their places in out, or `back`.

    Args:
        panel: (its number, columns of one).
        rows: (the first, how many). scratch: (address, bytes between rows).
    """
    (p, width), (first_row, count), (scratch, own_row), item = panel, rows, scratch, bytes_of(zero)
    first, end = _rest_of(at, width)
    out = at.out + first_row * at.out_row + at.columns // width * width * item
    column, end, rest = max(first, p * width), min(end, (p + 1) * width), at.columns % width
    while column < end:
        b, place = column // rest, column % rest
        columns = min(rest - place, end - column)
        of_out = out + (b - at.rest_first) * at.out_next + place * item, at.out_row
        of_own = scratch + (column - p * width) * item, own_row
        if back:
            _copy_columns(zero, (count, columns), of_out, of_own)
        else:
            _copy_columns(zero, (count, columns), of_own, of_out)
        column += columns


@plain
def _fetch_block(zero, at, rows, terms, part):
    """Prefetch one part of the next block of a into the L2 cache; the block's rows lie apart in memory.

    Args:
        rows, terms: (the first, how many), of which there may be fewer. part: (its number, number of parts).
    """
    (first, rows), (start, terms), (number, parts), item = rows, terms, part, bytes_of(zero)
    rows, size = min(rows, at.rows - first), min(terms, at.terms - start) * item
    for row in range(rows * number // parts, rows * (number + 1) // parts):
        for line in range(0, size, LINE):
            fetch(zero, at.a + (first + row) * at.a_row + start * item + line)


@plain
def _copy_columns(zero, shape, source, out):
    """Copy a block of rows and columns; source and out are given as (address, bytes between rows)."""
    for i in range(shape[0]):
        row, other = numbers_at(zero, out[0] + i * out[1]), numbers_at(zero, source[0] + i * source[1])
        for j in range(shape[1]):
            row[j] = other[j]


@plain
def tile_of(rows, tile):
    """Return [first, last) of a tile of at most MOST_ROWS rows; all tiles have nearly equal height, as low ones are
    slow.
    """
    tiles = (rows + MOST_ROWS - 1) // MOST_ROWS
    return rows * tile // tiles, rows * (tile + 1) // tiles


@plain
def _pack_tiles(zero, rows, a, a_row, terms, tiles):
    """Pack rows into tiles, each (terms, rows). Overwrites VECTOR_BYTES after them."""
    item = bytes_of(zero)
    square = VECTOR_BYTES // item
    whole = terms // square * square
    for tile in range((rows + MOST_ROWS - 1) // MOST_ROWS):
        first, last = tile_of(rows, tile)
        count, source, out = last - first, a + first * a_row, tiles + first * terms * item
        for k in range(0, whole, square):
            if 2 * count == square:
                transpose_half(zero, source + k * item, a_row, out + k * count * item)
                continue
            for part in range((count - 1) // square, -1, -1):  # the next one overwrites what lies beyond
                i = part * square
                at, into = source + i * a_row + k * item, out + (k * count + i) * item
                transpose_square(zero, at, a_row, count - i, into, count * item)
        packed = numbers_at(zero, out)
        for i in range(count):
            row = numbers_at(zero, source + i * a_row)
            for k in range(whole, terms):
                packed[k * count + i] = row[k]


@plain
def multiply_few_rows(zero, rows, a, a_row, panel, size, term_bytes, panels, terms, out, out_row, add):
    """Multiply at most FEW_ROWS rows by several panels at once, as many as registers hold sums for.
    One panel has too few sums to keep both multipliers busy."""
    p = 0
    while p < panels:
        at, into, left = panel + p * size, out + p * PANEL_ROW, panels - p
        if rows == 1 and left >= 4:
            _one_by_4(zero, a, a_row, at, size, term_bytes, terms, into, out_row, add)
            p += 4
        elif rows == 1 and left >= 2:
            _one_by_2(zero, a, a_row, at, size, term_bytes, terms, into, out_row, add)
            p += 2
        elif rows == 1:
            _one(zero, a, a_row, at, size, term_bytes, terms, into, out_row, add)
            p += 1
        elif rows == 2 and left >= 2:
            _two_by_2(zero, a, a_row, at, size, term_bytes, terms, into, out_row, add)
            p += 2
        elif rows == 2:
            _two(zero, a, a_row, at, size, term_bytes, terms, into, out_row, add)
            p += 1
        elif _MANY_REGISTERS and left >= 2:
            _three_by_2(zero, a, a_row, at, size, term_bytes, terms, into, out_row, add)
            p += 2
        else:
            _three(zero, a, a_row, at, size, term_bytes, terms, into, out_row, add)
            p += 1


@plain
def _multiply_panel(zero, at, shape, packed, panel, terms, out, add):
    """Multiply more than FEW_ROWS rows, packed in tiles, by one panel.

    Args:
        at: the `records.Product`. shape: (rows, columns that are wanted).
        packed: address of the tiles. panel: (address, address of the next).
        out: (address, bytes between rows), for all of the panel's columns.
    """
    (rows, columns), (out, out_row), (panel, fetched) = shape, out, panel
    for tile in range((rows + MOST_ROWS - 1) // MOST_ROWS):
        first, last = tile_of(rows, tile)
        rows_of_tile, own_out = packed + first * terms * bytes_of(zero), out + first * out_row
        if columns * bytes_of(zero) > VECTOR_BYTES:
            _packed(zero, last - first, rows_of_tile, panel, fetched, terms, at.kc, own_out, out_row, add)
        else:
            _packed_half(zero, last - first, rows_of_tile, panel, fetched, terms, at.kc, own_out, out_row, add)
        fetched += terms // UNROLLED * LINE  # each tile prefetches a part of the next panel

"""Load weights from memory to where a persistent kernel keeps them, by loads that do not wait for each other.

A lane loads 16 bytes at once if it can (`Tile.loads_pieces`): forward along the columns of a row, backward along the
units of a column, where units are neighbors in memory. For a place outside the warp's part of the matrix it loads
the part's first weight, since an unconditional load needs no branch. Other columns are set to zero.
"""

import numpy as np

from numbarnn.common.precision import is_half
from numbarnn.cuda import ptx
from numbarnn.kernels.device import device_function

LOADED_AT_ONCE = 4  # loads that a lane has on their way to shared memory; to registers all at once


@device_function
def _make_place(tile):
    """Make place(warp, row, column) -> (a weight's index, whether the column is the warp's). For other rows and columns
    the index is the first weight's; nothing reads the products of other rows. Row and column must be visibly
    non-negative to the compiler, which then divides with fewer instructions."""
    units_per_block, whole = tile.units, tile.whole
    if tile.backward:

        def place(warp, row, column):
            inside = whole or column < warp.columns
            there = inside and row < warp.units
            return warp.weights + (row + column * warp.column_stride if there else 0), inside

    else:

        def place(warp, row, column):
            gate, unit = row // units_per_block, row % units_per_block
            inside = whole or column < warp.columns
            there = inside and gate < warp.rows_per_unit and unit < warp.units
            skipped = gate * warp.gate_stride + unit * warp.unit_stride + column
            return warp.weights + (skipped if there else 0), inside

    return place


@device_function
def _make_element(tile):
    """Make element(weights, warp, row, column) -> the weight as stored; zero outside the warp's columns."""
    place, load = _make_place(tile), ptx.load_weight
    zero = np.uint16(0) if is_half(tile.dtype) else np.dtype(tile.dtype).type(0)

    def element(weights, warp, row, column):
        index, inside = place(warp, row, column)
        value = load(weights, index)
        return value if inside else zero

    return element


@device_function
def _make_elements(tile, count):
    """Make elements(weights, warp, row, column) -> `count` weights of a row (backward a column), loaded one by one."""
    if count == 0:
        return lambda weights, warp, row, column: ()
    element, rest = _make_element(tile), _make_elements(tile, count - 1)
    rows, columns = (1, 0) if tile.backward else (0, 1)

    def elements(weights, warp, row, column):
        return (element(weights, warp, row, column), *rest(weights, warp, row + rows, column + columns))

    return elements


@device_function
def make_numbers(tile, count):
    """Make numbers(weights, warp, row, column) -> `count` float32 weights, neighbors in a row (backward: in a column).
    count is a power of 2, and the index of the first weight is a multiple of it."""
    if not tile.loads_pieces or count == 1:
        return _make_elements(tile, count)
    place, pair, words, as_float32 = _make_place(tile), ptx.load_weight_pair, ptx.load_weight_words, ptx.as_float32
    zero = np.float32(0)

    def two_numbers(weights, warp, row, column):
        index, inside = place(warp, row, column)
        first, second = pair(weights, index)
        return first if inside else zero, second if inside else zero

    def four_numbers(weights, warp, row, column):
        index, inside = place(warp, row, column)
        a, b, c, d = words(weights, index)
        mask = np.uint32(0xFFFFFFFF) if inside else np.uint32(0)
        return as_float32(a & mask), as_float32(b & mask), as_float32(c & mask), as_float32(d & mask)

    return two_numbers if count == 2 else four_numbers


@device_function
def make_pieces_of_two_rows(tile):
    """Make pieces(weights, warp, first, second, column) -> eight words, 16 bytes of each of two rows, as `mma` takes
    them. A word holds two neighboring 16-bit columns, or one float32. Backward the second row follows the first, an
    even one."""
    if not tile.loads_pieces or not tile.backward:
        one = _make_piece(tile) if tile.loads_pieces else _make_piece_by_elements(tile)

        def pieces(weights, warp, first, second, column):
            return (*one(weights, warp, first, column), *one(weights, warp, second, column))

    elif is_half(tile.dtype):
        two = _make_two_columns(tile)

        def pieces(weights, warp, first, second, column):
            (a, e), (b, f) = two(weights, warp, first, column), two(weights, warp, first, column + 2)
            (c, g), (d, h) = two(weights, warp, first, column + 4), two(weights, warp, first, column + 6)
            return a, b, c, d, e, f, g, h

    else:
        numbers, word = make_numbers(tile, 2), ptx.as_word

        def pieces(weights, warp, first, second, column):
            a, e = numbers(weights, warp, first, column)
            b, f = numbers(weights, warp, first, column + 1)
            c, g = numbers(weights, warp, first, column + 2)
            d, h = numbers(weights, warp, first, column + 3)
            return word(a), word(b), word(c), word(d), word(e), word(f), word(g), word(h)

    return pieces


@device_function
def _make_piece(tile):
    """Make piece(weights, warp, row, column) -> 16 bytes of a row as four words, loaded at once."""
    place, words = _make_place(tile), ptx.load_weight_words

    def piece(weights, warp, row, column):
        index, inside = place(warp, row, column)
        a, b, c, d = words(weights, index)
        mask = np.uint32(0xFFFFFFFF) if inside else np.uint32(0)
        return a & mask, b & mask, c & mask, d & mask

    return piece


@device_function
def _make_two_columns(tile):
    """Make two_columns(weights, warp, row, column) -> a word of this row and one of the next, with 16-bit numbers of
    two columns."""
    place, pair, lower, upper = _make_place(tile), ptx.load_weight_pair, ptx.lower_halves, ptx.upper_halves

    def two_columns(weights, warp, row, column):
        index, inside = place(warp, row, column)
        a, b = pair(weights, index), pair(weights, index + warp.column_stride)  # there are two columns at least
        mask = np.uint32(0xFFFFFFFF) if inside else np.uint32(0)
        return lower(a, b) & mask, upper(a, b) & mask

    return two_columns


@device_function
def _make_piece_by_elements(tile):
    """Make piece(weights, warp, row, column) -> 16 bytes of an unaligned row as four words, loaded by elements."""
    word = _make_word(tile)

    def piece(weights, warp, row, column):
        return (
            word(weights, warp, row, column, 0), word(weights, warp, row, column, 1),
            word(weights, warp, row, column, 2), word(weights, warp, row, column, 3),
        )  # fmt: skip

    return piece


@device_function
def _make_word(tile):
    """Make word(weights, warp, row, column, number) -> the `number`-th word of 16 bytes."""
    element, pack, as_word = _make_element(tile), ptx.pack_halves, ptx.as_word
    if not is_half(tile.dtype):
        return lambda weights, warp, row, column, number: as_word(element(weights, warp, row, column + number))

    def word(weights, warp, row, column, number):
        low = element(weights, warp, row, column + 2 * number)
        return pack(low, element(weights, warp, row, column + 2 * number + 1))

    return word

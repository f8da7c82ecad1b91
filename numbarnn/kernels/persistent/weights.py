"""How weights come from memory to where a persistent kernel keeps them: all loads independent, none waits for another.

A lane loads 16 bytes at once where it can (`Tile.loads_pieces`): forward along the columns of a row; backward, where
units are neighbours in memory, along the units of a column. Where a load would be outside of the warp's part of the
matrix, the lane loads the part's first weight instead, and columns that are not the part's are set to zero: a load that
is always made needs no branch.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from numbarnn.common.precision import is_half
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit
from numbarnn.cuda import ptx
from numbarnn.kernels.persistent.columns import WARP

LOADED_AT_ONCE = 4  # loads that a lane has on their way to shared memory; to registers all of them are


class Matrix(NamedTuple):
    """A warp's part of its block's tile, where it stands in the flat buffer of all weights.

    Attributes:
        at: where the weight of its first row and column stands.
        units: of the block's units, or outputs, those that have `rows_per_unit` rows here.
        rows_per_unit: at most as many as `Tile.rows_per_unit`.
        gate_stride, unit_stride: forward, where columns are neighbours: elements from a unit's row to its next one, and
            from unit to unit.
        column_stride: backward, where units are neighbours: elements from column to column.
        columns: how many.

    All but `at` are int32: what is multiplied then takes one instruction.
    """

    at: Any
    units: Any
    rows_per_unit: Any
    gate_stride: Any
    unit_stride: Any
    column_stride: Any
    columns: Any


class Fragments(NamedTuple):
    """A lane's weights: those in registers, and where all of its warp's come from.

    Attributes:
        registers: local (fragment_words,), see `Tile`.
        weights: the flat buffer of all weights.
        matrix: the warp's `Matrix`.
    """

    registers: Any
    weights: Any
    matrix: Any


@cache
def make_matrix():
    """A device function matrix_of(part): the `Matrix` of a row of `warps` (`columns.Warp`)."""

    def matrix_of(part):
        return Matrix(
            part[WARP.weights], np.int32(part[WARP.units]), np.int32(part[WARP.rows_per_unit]),
            np.int32(part[WARP.gate_stride]), np.int32(part[WARP.unit_stride]), np.int32(part[WARP.column_stride]),
            np.int32(part[WARP.columns]),
        )  # fmt: skip

    return jit(matrix_of, BACKEND)


@cache
def _make_place(tile):
    """A device function place(matrix, row, column) -> (index, inside): where a weight of the `Matrix` stands, and
    whether the column is one of its columns.

    Of other rows and columns the index is that of the first weight. What is multiplied with other rows nobody reads.
    row, column: not negative, and known to be so by the compiler: divisions are then short.
    """
    units_per_block, whole = tile.units, tile.whole
    if tile.backward:

        def place(matrix, row, column):
            inside = whole or column < matrix.columns
            there = inside and row < matrix.units
            return matrix.at + (row + column * matrix.column_stride if there else 0), inside

    else:

        def place(matrix, row, column):
            gate, unit = row // units_per_block, row % units_per_block
            inside = whole or column < matrix.columns
            there = inside and gate < matrix.rows_per_unit and unit < matrix.units
            skipped = gate * matrix.gate_stride + unit * matrix.unit_stride + column
            return matrix.at + (skipped if there else 0), inside

    return jit(place, BACKEND)


@cache
def _make_element(tile):
    """A device function element(weights, matrix, row, column): the weight, as stored; zero outside."""
    place, load = _make_place(tile), ptx.load_weight
    zero = np.uint16(0) if is_half(tile.dtype) else np.dtype(tile.dtype).type(0)

    def element(weights, matrix, row, column):
        index, inside = place(matrix, row, column)
        value = load(weights, index)
        return value if inside else zero

    return jit(element, BACKEND)


@cache
def _make_elements(tile, count):
    """A device function: a tuple of `count` weights, one by one: forward of a row, backward of a column."""
    if count == 0:
        return jit(lambda weights, matrix, row, column: (), BACKEND)
    element, rest = _make_element(tile), _make_elements(tile, count - 1)
    rows, columns = (1, 0) if tile.backward else (0, 1)

    def elements(weights, matrix, row, column):
        return (element(weights, matrix, row, column), *rest(weights, matrix, row + rows, column + columns))

    return jit(elements, BACKEND)


@cache
def make_numbers(tile, count):
    """A device function numbers(weights, matrix, row, column): `count` float32 weights, a power of 2 of them.

    Forward they are neighbours in a row, backward in a column; the first one's number is a multiple of `count`.
    """
    place, pair, words, as_float32 = _make_place(tile), ptx.load_weight_pair, ptx.load_weight_words, ptx.as_float32
    if not tile.loads_pieces or count == 1:
        return _make_elements(tile, count)
    zero = np.dtype(tile.dtype).type(0)
    if count == 2:

        def numbers(weights, matrix, row, column):
            index, inside = place(matrix, row, column)
            first, second = pair(weights, index)
            return first if inside else zero, second if inside else zero

    else:

        def numbers(weights, matrix, row, column):
            index, inside = place(matrix, row, column)
            a, b, c, d = words(weights, index)
            mask = np.uint32(0xFFFFFFFF) if inside else np.uint32(0)
            return as_float32(a & mask), as_float32(b & mask), as_float32(c & mask), as_float32(d & mask)

    return jit(numbers, BACKEND)


@cache
def make_pieces_of_two_rows(tile):
    """A device function pieces(weights, matrix, first, second, column) -> eight words: 16 bytes of two rows each, from
    that column on, as `mma` takes them: halves of neighbouring columns, or a float32 each. Backward the second row is
    the one after the first, which is even.
    """
    if not tile.loads_pieces:
        return _make_pieces_by_elements(tile)
    place, words, pair = _make_place(tile), ptx.load_weight_words, ptx.load_weight_pair
    all_bits, none = np.uint32(0xFFFFFFFF), np.uint32(0)
    if not tile.backward:

        def piece(weights, matrix, row, column):
            index, inside = place(matrix, row, column)
            a, b, c, d = words(weights, index)
            mask = all_bits if inside else none
            return a & mask, b & mask, c & mask, d & mask

        one = jit(piece, BACKEND)

        def pieces(weights, matrix, first, second, column):
            return (*one(weights, matrix, first, column), *one(weights, matrix, second, column))

    elif is_half(tile.dtype):
        lower, upper = ptx.lower_halves, ptx.upper_halves

        def two_columns(weights, matrix, row, column):
            """A word of the row and one of the next row, of this column and the next."""
            index, inside = place(matrix, row, column)
            a, b = pair(weights, index), pair(weights, index + matrix.column_stride)  # there are two columns at least
            mask = all_bits if inside else none
            return lower(a, b) & mask, upper(a, b) & mask

        two = jit(two_columns, BACKEND)

        def pieces(weights, matrix, first, second, column):
            (a, e), (b, f) = two(weights, matrix, first, column), two(weights, matrix, first, column + 2)
            (c, g), (d, h) = two(weights, matrix, first, column + 4), two(weights, matrix, first, column + 6)
            return a, b, c, d, e, f, g, h

    else:
        numbers, as_word = make_numbers(tile, 2), ptx.as_word

        def pieces(weights, matrix, first, second, column):
            a, e = numbers(weights, matrix, first, column)
            b, f = numbers(weights, matrix, first, column + 1)
            c, g = numbers(weights, matrix, first, column + 2)
            d, h = numbers(weights, matrix, first, column + 3)
            return (
                as_word(a), as_word(b), as_word(c), as_word(d), as_word(e), as_word(f), as_word(g), as_word(h),
            )  # fmt: skip

    return jit(pieces, BACKEND)


@cache
def _make_pieces_by_elements(tile):
    """What `make_pieces_of_two_rows` makes, of rows that do not begin at multiples of 16 bytes."""
    element, pack, as_word = _make_element(tile), ptx.pack_halves, ptx.as_word
    if is_half(tile.dtype):

        def word_of(weights, matrix, row, column, number):
            low = element(weights, matrix, row, column + 2 * number)
            return pack(low, element(weights, matrix, row, column + 2 * number + 1))

    else:

        def word_of(weights, matrix, row, column, number):
            return as_word(element(weights, matrix, row, column + number))

    word = jit(word_of, BACKEND)

    def row_of(weights, matrix, row, column):
        return (
            word(weights, matrix, row, column, 0), word(weights, matrix, row, column, 1),
            word(weights, matrix, row, column, 2), word(weights, matrix, row, column, 3),
        )  # fmt: skip

    row = jit(row_of, BACKEND)

    def pieces(weights, matrix, first, second, column):
        return (*row(weights, matrix, first, column), *row(weights, matrix, second, column))

    return jit(pieces, BACKEND)

"""What products by tensor cores and by FMA share: chains of functions, weights on their way to the chip."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from numbarnn.common.precision import is_half
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit
from numbarnn.cuda import ptx
from numbarnn.kernels.trouble import make_report, make_unnamed


class Matrix(NamedTuple):
    """A warp's part of its block's tile, where it stands in the flat buffer of all weights.

    Attributes:
        at: where the weight of its first row and column stands.
        units: the block's units, each of which has `rows_per_unit` rows here.
        rows_per_unit: at most as many as `Tile.rows_per_unit`.
        gate_stride, unit_stride, column_stride: elements from a unit's row to its next one, from unit to unit, from
            column to column.
        columns: how many.
    """

    at: Any
    units: Any
    rows_per_unit: Any
    gate_stride: Any
    unit_stride: Any
    column_stride: Any
    columns: Any


@cache
def in_turn(functions):
    """A device function that calls all of these with its arguments; whether all returned True.

    Loops over what stays in registers must disappear in compiling, as registers have no addresses; the compiler leaves
    long loops as they are. A chain of functions made for each number of the loop is none.
    """
    if len(functions) == 1:
        return functions[0]
    first, rest = functions[0], in_turn(functions[1:])

    def both(*arguments):
        done = first(*arguments)
        return rest(*arguments) and done

    return jit(both, BACKEND)


@cache
def make_weight_at(tile):
    """A device function weight_at(weights, matrix, row, column): the weight, as stored; zero outside of the
    `Matrix`."""
    units_per_block = tile.units
    zero = np.uint16(0) if is_half(tile.dtype) else np.dtype(tile.dtype).type(0)

    def weight_at(weights, matrix, row, column):
        gate, unit = row // units_per_block, row % units_per_block
        if gate >= matrix.rows_per_unit or unit >= matrix.units or column >= matrix.columns:
            return zero
        return weights[
            matrix.at + gate * matrix.gate_stride + unit * matrix.unit_stride + column * matrix.column_stride
        ]

    return jit(weight_at, BACKEND)


@cache
def make_fragment_load(number):
    """A device function that takes one fragment from shared memory to registers."""
    get, first, offset = ptx.load_shared_words, number * 4, number * 128

    def fragment_load(fragments, shared, at):
        four = get(shared, at + offset)
        for k in range(4):
            fragments[first + k] = four[k]
        return True

    return jit(fragment_load, BACKEND)


@cache
def make_group(gather, multiply):
    """A device function that gathers a group of chunks and multiplies it.

    If it has not come in time, this is reported before the next group is waited for: nobody waits for long then.
    """
    report, unnamed = make_report(), make_unnamed()

    def gather_and_multiply(fragments, sums, loaded, shared, operand, patience):
        done = gather(loaded, operand, patience)
        if not done:
            report(patience.trouble, unnamed())  # the kernel says where
        multiply(fragments, sums, loaded, shared)
        return done

    return jit(gather_and_multiply, BACKEND)

"""What products by tensor cores and by FMA share: chains of functions, weights on their way to the chip."""

from functools import cache

import numpy as np

from numbarnn.common.precision import is_half
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit
from numbarnn.cuda import ptx
from numbarnn.kernels.trouble import make_report, make_unnamed


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
def make_weight_at(cut):
    """A device function: the weight of a row and column, as stored; zero outside of the slice."""
    units_per_block = cut.units
    zero = np.uint16(0) if is_half(cut.dtype) else np.dtype(cut.dtype).type(0)

    def weight_at(weights, at, row, column, units, groups, group_stride, unit_stride, column_stride, count):
        group, unit = row // units_per_block, row % units_per_block
        if group >= groups or unit >= units or column >= count:
            return zero
        return weights[at + group * group_stride + unit * unit_stride + column * column_stride]

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

    def group(fragments, sums, words, shared, where):
        done = gather(words, *where)
        if not done:
            report(where[-1], unnamed())  # the kernel says where
        multiply(fragments, sums, words, shared)
        return done

    return jit(group, BACKEND)

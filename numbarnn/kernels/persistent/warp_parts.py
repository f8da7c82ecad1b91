"""What products by tensor cores and by FMA share: chains of functions."""

from functools import cache

import numpy as np

from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit
from numbarnn.kernels.persistent.exchange import Operand, make_gather
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


@cache
def make_streamed_groups(tile, multiply):
    """A device function that gathers and multiplies the groups of streamed chunks, as `make_group` does one.

    It is a loop: where the weights of a group stand needs not be known when the kernel is made, and code for each of
    many groups would itself have to be read at every step.

    multiply: of (fragments, sums, loaded, shared, group), the number of the group among those that are streamed.
    """
    gather, report, unnamed = make_gather(tile, 0), make_report(), make_unnamed()
    first, between = np.int32(tile.kept_chunks * tile.chunk_elements), np.int32(tile.gathered * tile.chunk_elements)
    groups = tile.streamed_chunks // tile.gathered

    def beyond(operand, skipped):
        """The operand without its first columns; where none is left, all come as zeros."""
        column = operand.column + (skipped if skipped < operand.columns else 0)  # an index that can be read
        return Operand(
            operand.array, operand.slot, operand.b0, operand.end, operand.batch, operand.width, column,
            operand.columns - skipped,
        )  # fmt: skip

    rest = jit(beyond, BACKEND)

    def streamed_groups(fragments, sums, loaded, shared, operand, patience):
        all_came = True
        for number in range(groups):
            group = np.int32(number)
            if not gather(loaded, rest(operand, first + group * between), patience):
                report(patience.trouble, unnamed())
                all_came = False
            multiply(fragments, sums, loaded, shared, group)
        return all_came

    return jit(streamed_groups, BACKEND)

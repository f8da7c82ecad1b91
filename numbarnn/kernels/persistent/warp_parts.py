"""What products by tensor cores and by FMA share: chains of functions."""

from functools import cache

from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit
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

"""Device functions one after another: loops that must disappear in compiling."""

from functools import cache

from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit


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

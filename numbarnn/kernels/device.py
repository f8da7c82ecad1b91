"""Make device functions by factories, once per set of arguments, and chain device functions."""

from functools import wraps
from types import FunctionType

from numbarnn.compile.specialise import jit
from numbarnn.cuda.backend import backend, per_backend


def device_function(factory):
    """Decorate a factory, to compile the function that it returns as a device function, once per set of arguments."""

    @per_backend
    @wraps(factory)
    def made(*arguments, **named):
        function = factory(*arguments, **named)
        return jit(function, backend()) if isinstance(function, FunctionType) else function

    return made


@device_function
def in_turn(functions):
    """Make run(*arguments), which calls all of these functions in order. Arrays stay in registers only in loops that
    the compiler unrolls, as registers have no addresses, and it does not unroll long loops. A chain of functions,
    one per iteration, needs no unrolling."""
    if len(functions) == 1:
        return functions[0]
    first, rest = functions[0], in_turn(functions[1:])

    def both(*arguments):
        first(*arguments)
        rest(*arguments)

    return both

"""Device functions: made by factories, once for each set of arguments, and called one after another."""

from functools import wraps
from types import FunctionType

from numbarnn.compile.specialise import jit
from numbarnn.cuda.backend import backend, per_backend


def device_function(factory):
    """Decorate a factory: what it returns, a Python function or a device function, is compiled for kernels to call,
    once for each set of the factory's arguments."""

    @per_backend
    @wraps(factory)
    def made(*arguments, **named):
        function = factory(*arguments, **named)
        return jit(function, backend()) if isinstance(function, FunctionType) else function

    return made


@device_function
def in_turn(functions):
    """Make run(*arguments), which calls all of these.

    Loops over what stays in registers must disappear in compiling, as registers have no addresses; the compiler leaves
    long loops as they are. A chain of functions made for each number of the loop is none.
    """
    if len(functions) == 1:
        return functions[0]
    first, rest = functions[0], in_turn(functions[1:])

    def both(*arguments):
        first(*arguments)
        rest(*arguments)

    return both

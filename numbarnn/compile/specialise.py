"""How scalar functions become functions of a backend: compiled for a dtype, for the CPU or a GPU, or left as Python."""

import types
from functools import cache

import numpy as np

from numbarnn.cells import scalar
from numbarnn.compile.scalar import functions_of

# Rewrites that keep NaN and infinity and the order of sums: contraction to FMA, reciprocals, no signed zeros.
FAST_MATH = {"contract", "nsz", "arcp", "afn"}
ON_CPU = {"fastmath": FAST_MATH, "error_model": "numpy"}
# Without the ways into a function from Python and from C, which take as long to compile as a small function itself.
INSIDE = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


@cache
def forward_function(cell, dtype, backend):
    """The cell's forward for a dtype and backend, with a general cell's signature."""
    forward = specialise(cell.forward, dtype, backend)
    return (
        forward if cell.general else jit(lambda ax, ah, state, per_unit, sums, noise: forward(ax, ah, state), backend)
    )


@cache
def backward_function(cell, dtype, backend):
    """The cell's backward for a dtype and backend, with a general cell's signature."""
    backward = specialise(cell.backward, dtype, backend)
    if cell.general:
        return backward

    def wider(saved, state, new_state, d_state, d_v, per_unit, sums, d_sums, noise):
        d_ax, d_ah, d_before = backward(saved, state, new_state, d_state)
        return d_ax, d_ah, d_before, ()

    return jit(wider, backend)


def jit(function, backend):
    """`function` compiled as a device function of a backend ("cpu", "cuda", or "python": as it is)."""
    if backend == "cpu":
        import numba

        from numbarnn.compile import pipeline

        options = dict(forceinline=True, pipeline_class=pipeline.ForParts, **INSIDE, **ON_CPU)
        return only_for_compiled_code(numba.njit(**options)(function))
    if backend == "cuda":
        from numba import cuda

        return cuda.jit(function, device=True)
    return function


def inline(function):
    """`function` compiled for the CPU as a part of the compiled functions that call it."""
    return jit(function, "cpu")


def only_for_compiled_code(dispatcher):
    """A dispatcher of `numba.njit(..., **INSIDE)` that other compiled functions call, and Python must not: Numba would
    not notice, and crash.

    It gets no machine code of its own (`pipeline.ForParts`): it becomes a part of the function that calls it.
    """
    add_to_overloads = dispatcher.overloads.__setitem__

    def add_overload(compiled):
        compiled = compiled._replace(entry_point=object())  # by which callers ask Numba for it
        add_to_overloads(tuple(compiled.signature.args), compiled)  # and not where calls from Python look
        # With the parts that it calls: none has machine code of its own.
        parts = [compiled.library, *getattr(compiled.library, "_linking_libraries", ())]
        dispatcher.targetctx.insert_user_function(compiled.entry_point, compiled.fndesc, parts)

    def refuse(*arguments, **named):
        raise TypeError(f"{dispatcher.py_func.__name__} is for compiled code: call it in a function of numba.njit")

    dispatcher.add_overload, dispatcher._compile_for_args = add_overload, refuse
    return dispatcher


@cache
def specialise(function, dtype, backend):
    """`function` compiled for one dtype and backend: constants get the dtype, scalar functions become the backend's.

    Args:
        function: a plain Python function of scalars; the module-level names it uses may be floats, functions of
            `numbarnn.cells.scalar`, other such functions, or modules and types (left as they are).
        dtype: "float32" or "float64".
        backend: "cpu" (numba.njit), "cuda" (cuda.jit(device=True)) or "python" (not compiled: for the simulator).
    """
    replacements = functions_of(backend, dtype)
    namespace = dict(function.__globals__)
    for name in namespace.keys() & set(function.__code__.co_names):
        value = namespace[name]
        known_as = value.__name__ if getattr(value, "__module__", None) == scalar.__name__ else name
        value = replacements.get(known_as, value)
        if isinstance(value, float):
            value = np.dtype(dtype).type(value)
        elif isinstance(value, types.FunctionType) and not value.__module__.startswith("numba."):
            value = specialise(value, dtype, backend)
        namespace[name] = value
    # Numba's files name the module of each function, which who reads them must be able to import.
    namespace["__name__"] = __name__
    copy = types.FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__qualname__, copy.__doc__ = function.__qualname__, function.__doc__
    return jit(copy, backend)

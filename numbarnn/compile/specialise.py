"""Turn scalar functions into functions of a dtype and backend: compiled for the CPU or a GPU, or plain Python."""

import types
from functools import cache

import numpy as np

from numbarnn.cells import scalar
from numbarnn.common.precision import compute_type
from numbarnn.compile.scalar import functions_of


@cache
def forward_function(cell, dtype, backend):
    """Return a cell's forward for a dtype and backend (see `specialise`), with the signature of a general cell."""
    forward = specialise(cell.forward, dtype, backend)
    if cell.general:
        return forward

    def wider(ax, ah, state, given):
        return forward(ax, ah, state)

    return jit(wider, backend)


@cache
def backward_function(cell, dtype, backend):
    """Return a cell's backward for a dtype and backend (see `specialise`), with the signature of a general cell."""
    backward = specialise(cell.backward, dtype, backend)
    if cell.general:
        return backward

    def wider(saved, state, new_state, d_state, d_v, d_sums, given):
        d_ax, d_ah, d_before = backward(saved, state, new_state, d_state)
        return d_ax, d_ah, d_before, ()

    return jit(wider, backend)


def jit(function, backend):
    """Compile a function as a device function of the backend "cpu" or "cuda"; for "python" return it unchanged."""
    if backend == "cpu":
        from numbarnn.compile.plain import inlined

        return inlined(function)
    if backend == "cuda":
        from numbarnn.cuda.language import cuda

        return cuda.jit(function, device=True)
    return function


@cache
def specialise(function, dtype, backend):
    """Compile a function for one dtype and backend: constants get the dtype, and scalar functions become the backend's.

    Args:
        function: a plain Python function of scalars. The module-level names it uses may be floats, functions of
            `numbarnn.cells.scalar`, other such functions, and modules and types, which stay as they are.
        dtype: the dtype of stored results. For float16 and bfloat16, constants and arithmetic are float32.
        backend: "cpu" (a plain function, see `numbarnn.compile.plain`), "cuda" (cuda.jit(device=True)) or "python" (for
            the simulator).
    """
    replacements, number = functions_of(backend, dtype), compute_type(dtype)
    namespace = dict(function.__globals__)
    for name in namespace.keys() & set(function.__code__.co_names):
        value = namespace[name]
        known_as = value.__name__ if getattr(value, "__module__", None) == scalar.__name__ else name
        value = replacements.get(known_as, value)
        if isinstance(value, float):
            with np.errstate(over="ignore"):  # a bound beyond the dtype's range becomes infinite
                value = number(value)
        elif isinstance(value, types.FunctionType) and not value.__module__.startswith("numba."):
            value = specialise(value, dtype, backend)
        namespace[name] = value
    copy = types.FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__qualname__, copy.__doc__ = function.__qualname__, function.__doc__
    return jit(copy, backend)

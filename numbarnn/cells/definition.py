"""What a cell is, and how its equations become device functions."""

import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from numbarnn.cells import scalar

# Rewrites that keep NaN and infinity and the order of sums: contraction to FMA, reciprocals, no signed zeros.
FAST_MATH = {"contract", "nsz", "arcp", "afn"}


@dataclass(frozen=True, eq=False)
class Inner:
    """What a step does between two products, where its last gates multiply not h' but a vector v made from it:

        forward(ax, ah, state)         -> v               of the gates that multiply h' itself
        backward(kept, dv, state)      -> d_ax, d_h       of the same gates

    `kept` is what the cell's backward left in those gates' places of d_ax, `d_h` what reaches h' through v.

    Attributes:
        gates: how many gates multiply h' itself: the first ones.
    """

    gates: int
    forward: Callable
    backward: Callable


@dataclass(frozen=True, eq=False)
class Cell:
    """One recurrent cell: the equations of one unit at one step, forward and backward, as scalar functions.

    A cell sees its unit's pre-activations ax = W x + b_w and ah = R h' + b_r (h' the previous h), one number per
    gate, and its unit's state (h, ...), one number per state:

        forward(ax, ah, state)                       -> new_state, saved
        backward(saved, state, new_state, d_state)   -> d_ax, d_ah, d_state_before

    All arguments and results are tuples of scalars. `saved` is what backward needs beyond the states; `d_state` is the
    gradient of `new_state`; `d_state_before` is the part of the previous state's gradient that does not go through R.

    Attributes:
        name: such as "lstm"; one of `numbarnn.cells.CELLS`, or a variant's own.
        gates: gate names in the order of the rows of W and R.
        states: state names; the first is h, which is the output.
        saved: names of the values kept per step and unit for backward.
        same_gradient: d_ah equals d_ax for every gate, so that it is stored once.
        inner: of a step with two products, else None; then d_ah equals d_ax.
    """

    name: str
    gates: tuple[str, ...]
    states: tuple[str, ...]
    saved: tuple[str, ...]
    forward: Callable
    backward: Callable
    same_gradient: bool = True
    inner: Inner | None = None

    @cached_property
    def num_gates(self):
        """G."""
        return len(self.gates)

    @cached_property
    def num_outer(self):
        """Gates that multiply h' itself."""
        return self.inner.gates if self.inner else self.num_gates

    @cached_property
    def num_states(self):
        """Number of states, h among them."""
        return len(self.states)

    @cached_property
    def num_private(self):
        """Number of states besides h (LSTM: 1, c)."""
        return len(self.states) - 1

    @cached_property
    def num_saved(self):
        """Values saved per step and unit for backward."""
        return len(self.saved)


def with_names(function, **values):
    """A copy of a plain function whose module-level names stand for these values: a variant of a cell's equations."""
    namespace = {**function.__globals__, **values}
    copy = types.FunctionType(function.__code__, namespace, function.__name__)
    copy.__qualname__, copy.__doc__ = function.__qualname__, function.__doc__
    return copy


def jit(function, target):
    """`function` compiled as a device function of a target ("cpu", "cuda", or "python": as it is)."""
    if target == "cpu":
        import numba

        return numba.njit(function, fastmath=FAST_MATH, error_model="numpy", forceinline=True)
    if target == "cuda":
        from numba import cuda

        return cuda.jit(function, device=True)
    return function


@cache
def specialise(function, dtype, target):
    """`function` compiled for one dtype and target: constants get the dtype, scalar functions become the target's.

    Args:
        function: a plain Python function of scalars; the module-level names it uses may be floats, functions of
            `numbarnn.cells.scalar`, other such functions, or modules and types (left as they are).
        dtype: "float32" or "float64".
        target: "cpu" (numba.njit), "cuda" (cuda.jit(device=True)) or "python" (not compiled: for the simulator).
    """
    replacements = scalar.functions_of(target, dtype)
    namespace = dict(function.__globals__)
    for name in namespace.keys() & set(function.__code__.co_names):
        value = namespace[name]
        known_as = value.__name__ if getattr(value, "__module__", None) == scalar.__name__ else name
        value = replacements.get(known_as, value)
        if isinstance(value, float):
            value = np.dtype(dtype).type(value)
        elif isinstance(value, types.FunctionType) and not value.__module__.startswith("numba."):
            value = specialise(value, dtype, target)
        namespace[name] = value
    copy = types.FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__qualname__, copy.__doc__ = function.__qualname__, function.__doc__
    return jit(copy, target)

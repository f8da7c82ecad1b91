"""Prepare small calls on the CPU: bind a program to arrays once, then run it again and again.

Binding operations to a call's arrays (views, addresses, records) takes Python a tenth of a millisecond. A small call's
computation takes less. A prepared call has its own arrays: it copies the arguments into them, calls the functions that
the operations became, and copies the results out.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from weakref import ref

import numpy as np

from numbarnn.engines.runs import Prepared
from numbarnn.layers.calls import ForwardCall
from numbarnn.programs.backward import ResultGrads, backward, backward_spec
from numbarnn.programs.states import named_arrays, with_each

SMALL = 1 << 20  # bytes of a call's largest arrays up to which it is prepared: larger calls bind in 5 % of their time
SMALL_WEIGHTS = 5 << 17  # up to which backward is prepared, though it copies dW out: (100,1,256) training takes .92
COPIED = 1 << 22  # bytes of weights up to which a training call is prepared: it keeps a copy of them
KEPT = 32  # prepared calls that a stack of layers keeps while nobody uses them


class CallersArrays(NamedTuple):
    """A kind of arrays that callers pass. PyTorch's modules set another one than `NUMPY`.

    Attributes:
        array: function that makes a NumPy array of one. into: function that takes a NumPy array and returns the
            function that copies a caller's array into it.
    """

    array: Callable
    into: Callable


NUMPY = CallersArrays(lambda array: array, lambda own: partial(np.copyto, own))


def kind_of_call(shape, training, batch_major, from_zero, hx, cx, engine):
    """Return a hashable key that distinguishes a `PreparedForward` from others of its stack."""
    return shape, training, batch_major, from_zero, type(hx), type(cx), engine.num_threads


class PreparedCalls(list):
    """The prepared calls of a stack that are not in use, the most recently used last. They refer to this list weakly,
    so that they are freed together with their stack, before a garbage collection."""

    __slots__ = ("__weakref__",)
    __hash__ = object.__hash__  # engines keep it in a weak set

    def find(self, kind, weights):
        """Take out and return a `PreparedForward` of this kind for these weights, or None."""
        for prepared in reversed(self):
            if prepared.weights is weights and prepared.kind == kind:
                try:
                    self.remove(prepared)
                except ValueError:  # another thread has it
                    continue
                return prepared
        return None


class PreparedForward:
    """A forward call with its own arrays.

    Args:
        call: the `Call`. plan: of the pass. state: (hx, cx) in the form of later calls. arrays: the `CallersArrays`.
        pool: the `PreparedCalls` to return it to. kind: its `kind_of_call`.

    Attributes:
        tape: the `ForwardCall`. weights: the flat buffer that it reads, or copies in each run if the call keeps
            weights.
    """

    def __init__(self, call, plan, state, arrays=NUMPY, pool=None, kind=None):
        self._own = np.empty(call.problem.x_shape, call.problem.dtype), *_like(state, arrays)
        self._into = [_into(one, arrays.into) for one in self._own]
        self.weights, self._arrays, self._kept, read = call.weights.parameters, arrays, None, call.weights
        if call.keeps:
            self._kept = np.empty_like(self.weights)
            read = read.of_copy(self._kept)
        built = call.built(plan, *state)
        prepared = Prepared(call.engine, built.program, read.arrays() | _named(("x", "hx", "cx"), self._own))
        self.tape = ForwardCall(call, built, read, prepared.arrays)
        self._functions, self._backward = prepared.functions, {}
        self.kind, self._pool = kind, None if pool is None else ref(pool)
        self._results = [with_each(result, prepared.at) for result in built.results]
        self._copiers = [_copier(result) for result in self._results]
        if call.problem.training:
            self._into_reserve = arrays.into(prepared.arrays["reserve"])

    def run(self, *arrays):
        """Compute (y, hy, cy) of x, hx and cx."""
        if self._kept is not None:
            np.copyto(self._kept, self.weights)
        _fill(self._into, arrays)
        self._run()
        return [copy() for copy in self._copiers]

    def takes(self, x, hx, cx):
        """Return whether x, of the right shape, and the states have the form that this call was prepared for."""
        for one, like in ((hx, self._own[1]), (cx, self._own[2])):
            if one is not None and not (
                type(one) is type(like) is np.ndarray and one.shape == like.shape and one.dtype == like.dtype
            ):
                return False
        return x.dtype == self._own[0].dtype

    def _run(self):
        self.tape.read.derive()
        for function in self._functions:
            function()

    def step(self, x):
        """Compute y (B, D*H) of one step for x (B, I), from the state after the previous step. The next step overwrites
        y."""
        y, *new_state = self._results
        np.copyto(self._own[0][0], x)
        self._run()
        _fill(self._into[1:], new_state)
        return y[0]

    @property
    def state(self):
        """Return a copy of h and c after the last `step`."""
        return with_each(self._own[1:], np.ndarray.copy)

    @state.setter
    def state(self, state):
        for array, copy, value in zip(self._own[1:], self._into[1:], state, strict=True):
            if value is not None:
                copy(value)
            else:
                with_each(array, lambda part: part.fill(0))

    def give_back(self):
        """Return this call to its pool, if its stack still exists."""
        pool = self._pool()
        if pool is not None:
            pool.append(self)
            del pool[:-KEPT]

    def remake(self, x, reserve):
        """Copy an earlier call's x and reserve into our arrays, so that `run_backward` goes back through that call. x
        may be None as in `ForwardCall.of_reserve`."""
        if x is not None:
            self._into[0](x)
        self._into_reserve(reserve)

    def run_backward(self, plan, need, gradients):
        """Compute (dx, dhx, dcx, dw) from `ResultGrads`, by a plan."""
        form = plan, need, *map(type, gradients)
        prepared = self._backward.get(form)
        if prepared is None:
            prepared = self._backward[form] = PreparedBackward(self.tape, plan, need, gradients, self._arrays)
        return prepared.run(gradients)


class PreparedBackward:
    """The backward call of a `PreparedForward`, also with its own arrays; arrays: their `CallersArrays`."""

    def __init__(self, tape, plan, need, gradients, arrays):
        inputs = _like(gradients, arrays)
        self._into = [_into(one, arrays.into) for one in inputs]
        built = backward(backward_spec(tape.built.spec, plan, need, ResultGrads(*inputs)))
        inputs = _named(("dy", "dhy", "dcy", "d_states"), inputs)
        self._read, self._d_derived = tape.read, None
        if built.d_derived is not None:
            inputs["d_derived"] = self._d_derived = np.zeros(built.d_derived.shape, built.d_derived.dtype)
        prepared = Prepared(tape.engine, built.program, tape.arrays | inputs)
        self._functions, self._dw = prepared.functions, prepared.arrays.get("dw")
        none_read = self._dw is None and self._d_derived is not None  # kernels read no parameter as it is
        if none_read and built.has_weights:
            self._dw = np.empty(built.dw.shape, built.dw.dtype)
        results = [with_each(result, prepared.at) for result in built.results]
        self._copiers = [_copier(result) for result in (*results, self._dw)]

    def run(self, gradients):
        _fill(self._into, gradients)
        self._read.derive()
        for function in self._functions:
            function()
        if self._d_derived is not None and self._dw is not None:
            self._read.pull_back(self._dw, self._d_derived, False)
        return [copy() for copy in self._copiers]


def _like(callers, arrays):
    """Make arrays of the shapes and dtypes of a caller's arrays, states or None."""

    def own(one):
        array = one if type(one) is np.ndarray else arrays.array(one)
        return np.empty(array.shape, array.dtype)

    return with_each(tuple(callers), own)


def _named(names, arrays):
    return {buffer: part for pair in zip(names, arrays, strict=True) for buffer, part in named_arrays(*pair)}


def _copier(result):
    """Return a function without arguments that copies a result: an array, a state, or None."""
    return result.copy if type(result) is np.ndarray else partial(with_each, result, np.ndarray.copy)


def _into(own, into):
    """Return the function that copies a caller's array or state into ours; None for None."""
    if not isinstance(own, list):
        return None if own is None else into(own)
    return partial(_fill, [into(part) for part in own])


def _fill(into, sources):
    """Copy each of the caller's arrays by its function; skip functions that are None."""
    for copy, source in zip(into, sources):  # noqa: B905 - strict takes a microsecond
        if copy is not None:
            copy(source)


def is_small(problem):
    """Return whether calls of a problem are prepared: they are short, and only the callers' arrays change between
    calls."""
    cell, rows = problem.cell, problem.steps * problem.batch
    values = max(cell.num_gates, cell.num_saved) + cell.num_private + 2  # per unit; h, and what it is made of
    widths = problem.input_size + problem.directions * values * sum(problem.hidden_sizes)
    draws = problem.training and (problem.dropping or bool(cell.noise) or any(cell.drop_connect))
    small = rows * widths * np.dtype(problem.dtype).itemsize <= SMALL
    return small and not (problem.masked or problem.keeps_states or draws)

"""Prepared calls: small calls on the CPU, whose programs are bound to arrays once and run again and again.

Python needs a tenth of a millisecond to bind operations to a call's arrays (views, addresses, records). A small call's
computation takes less time than that. A prepared call has arrays of its own: it copies its arguments into them, calls
the functions that the operations became, and copies the results out. `PreparedCalls` keeps those that nobody uses now.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from weakref import ref

import numpy as np

from numbarnn.engines.runs import Prepared
from numbarnn.layers.calls import ForwardCall
from numbarnn.programs.backward import Given, backward, backward_spec
from numbarnn.programs.states import named_arrays, state_arrays, with_each

SMALL = 1 << 20  # bytes of a call's largest arrays up to which it is prepared: of larger ones binding is below 5 %
SMALL_WEIGHTS = 1 << 17  # weights up to which backward is prepared: it copies their gradients out
COPIED = 1 << 22  # bytes of weights up to which a training call is prepared: it keeps a copy of them
KINDS = 32  # of calls that are kept
KEPT = 4  # calls of a kind that are kept: as many run at the same time, or wait for their backward


class CallersArrays(NamedTuple):
    """The kind of arrays that callers pass.

    Attributes:
        array: one of them -> it as NumPy's array.
        into: an array of NumPy -> the function that copies one of them into it.
    """

    array: Callable
    into: Callable


NUMPY = CallersArrays(lambda array: array, lambda own: partial(np.copyto, own))


def _like(given, arrays):
    """Arrays of our own of the shapes and dtypes of what a caller gives: arrays, states of them, or None."""

    def own(one):
        array = one if type(one) is np.ndarray else arrays.array(one)
        return np.empty(array.shape, array.dtype)

    return tuple(with_each(one, own) for one in given)


def _alike(one, other):
    both = type(one) is np.ndarray and type(other) is np.ndarray
    return both and one.shape == other.shape and one.dtype == other.dtype


def _copier(result):
    """A function without arguments: a copy of an array or a state; None of None."""
    if result is None:
        return lambda: None
    return result.copy if type(result) is np.ndarray else partial(with_each, result, np.ndarray.copy)


def _into(own, into):
    """The function that copies what a caller gives into an array or a state; None of None."""
    if not isinstance(own, list):
        return None if own is None else into(own)
    copies = [into(part) for part in own]

    def copy_parts(parts):
        for copy, part in zip(copies, parts, strict=True):
            copy(part)

    return copy_parts


def _fill(into, given):
    """Copy what the caller gave into arrays of our own."""
    for copy, other in zip(into, given):  # noqa: B905 - strict takes a microsecond
        if copy is not None:
            copy(other)


class PreparedForward:
    """A forward call with arrays of its own.

    Args:
        call: the `Call`. plan: of the pass. hx, cx: states like those that it will get.
        free: the list to give it back to; None if nobody will. arrays: the `CallersArrays` that x, hx and cx are.

    Attributes:
        tape: the `ForwardCall`.
        weights: the flat buffer of parameters that it reads; where the call keeps them, a copy made by each run.
    """

    def __init__(self, call, plan, hx, cx, free=None, arrays=NUMPY):
        x = np.empty(call.problem.x_shape, call.problem.dtype)
        self._own = x, *_like((hx, cx), arrays)
        self._into = [_into(one, arrays.into) for one in self._own]
        self.weights, self._arrays, self._kept, read = call.weights.parameters, arrays, None, call.weights
        if call.keeps:
            self._kept = np.empty_like(self.weights)
            read = read.of_copy(self._kept)
        self._derived = read.derived
        program = call.program(plan, hx, cx)
        own = dict(
            pair for name, one in zip(("x", "hx", "cx"), self._own, strict=True) for pair in named_arrays(name, one)
        )
        prepared = Prepared(call.engine, program.program, read.arrays() | own)
        self.tape = ForwardCall(call, program, read, prepared.arrays)
        self._functions, self._backward = prepared.functions, {}
        self._free = None if free is None else ref(free)
        self._results = [with_each(result, prepared.at) for result in program.results]
        self._copiers = [_copier(result) for result in self._results]
        if call.problem.training:
            self._into_reserve = arrays.into(prepared.arrays["reserve"])

    def run(self, *arrays):
        """(y, hy, cy) of x, hx and cx."""
        if self._kept is not None:
            np.copyto(self._kept, self.weights)
        _fill(self._into, arrays)
        self._run()
        return [copy() for copy in self._copiers]

    def takes(self, x, hx, cx):
        """Whether an x of the right shape, and states, are what it gets: NumPy arrays of its dtype, or None."""
        own_x, *own = self._own
        states = ((hx, own[0]), (cx, own[1])) if hx is not None or cx is not None else ()
        return x.dtype == own_x.dtype and all(one is None or _alike(one, like) for one, like in states)

    def _run(self):
        if self._derived is not None:
            self._derived.derive()
        for function in self._functions:
            function()

    def step(self, x):
        """y (B, D*H) of one step with x (B, I), from the state that the last one left."""
        y, *new_state = self._results
        np.copyto(self._own[0][0], x)
        self._run()
        for copy, part in zip(self._into[1:], new_state, strict=True):
            if copy is not None:
                copy(part)
        return y[0].copy()

    @property
    def state(self):
        """A copy of h and c of `step`."""
        return tuple(with_each(one, np.ndarray.copy) for one in self._own[1:])

    @state.setter
    def state(self, state):
        for own, copy, given in zip(self._own[1:], self._into[1:], state, strict=True):
            if given is not None:
                copy(given)
            else:
                for part in state_arrays(own):
                    part[...] = 0

    def give_back(self):
        """Let others use it, if there is still a stack of layers that can."""
        free = self._free()
        if free is not None:
            free.append(self)
            del free[:-KEPT]  # those that nobody has used for long, such as those of other weights

    def remake(self, x, reserve):
        """Be the tape of a call with this x, which may be None as in `ForwardCall.of_reserve`, and this reserve."""
        if x is not None:
            self._into[0](x)
        self._into_reserve(reserve)

    def run_backward(self, plan, need, given):
        """(dx, dhx, dcx, dw) of what is `Given`, by a plan."""
        form = plan, need, *map(type, given)
        prepared = self._backward.get(form)
        if prepared is None:
            prepared = self._backward[form] = PreparedBackward(self.tape, plan, need, given, self._arrays)
        return prepared.run(given)


class PreparedBackward:
    """The backward call of a `PreparedForward`, with arrays of its own too.

    Args:
        tape: the `ForwardCall`. plan, need, given: as `BackwardCall` takes them. arrays: the `CallersArrays` that are
            given.
    """

    def __init__(self, tape, plan, need, given, arrays):
        own = _like(given, arrays)
        self._into = [_into(one, arrays.into) for one in own]
        program = backward(backward_spec(tape.program.spec, plan, need, Given(*own)))
        own = dict(pair for name, one in zip(("dy", "dhy", "dcy", "d_states"), own, strict=True)
                   for pair in named_arrays(name, one))  # fmt: skip
        self._read, self._d_derived = tape.read, None
        if program.d_derived is not None:
            own["d_derived"] = self._d_derived = np.zeros(program.d_derived.shape, program.d_derived.dtype)
        prepared = Prepared(tape.engine, program.program, tape.arrays | own)
        self._functions, self._dw = prepared.functions, prepared.arrays.get("dw")
        none_read = self._dw is None and self._d_derived is not None  # kernels read no parameter as it is
        if none_read and program.has_weights:
            self._dw = np.empty(program.dw.shape, program.dw.dtype)
        results = [with_each(result, prepared.at) for result in program.results]
        self._copiers = [_copier(result) for result in (*results, self._dw)]

    def run(self, given):
        """(dx, dhx, dcx, dw)."""
        _fill(self._into, given)
        self._read.derive()
        for function in self._functions:
            function()
        if self._d_derived is not None and self._dw is not None:
            self._read.pull_back(self._dw, self._d_derived, False)
        return [copy() for copy in self._copiers]


class _Free(list):
    """The prepared calls of a kind that nobody uses now. They refer to it weakly, so that they are freed with their
    stack of layers, and not only when Python's collector comes."""

    __slots__ = ("__weakref__",)


class PreparedCalls:
    """The prepared calls of a stack of layers.

    The caller passes a hashable `kind`. It identifies everything that distinguishes a call from the stack's other
    calls, except the arrays' contents. Try `find` first; if it returns None, use `make`.

    Args:
        engine: of the stack.
    """

    def __init__(self, engine):
        self._engine = engine
        self._free = OrderedDict()  # (kind, threads) -> `_Free`
        if engine.prepares_calls:
            engine.keepers.add(self)

    def clear(self):
        """Forget all calls that nobody uses."""
        for free in tuple(self._free.values()):
            free.clear()

    def find(self, kind, weights):
        """A `PreparedForward` with these weights that was given back after a call of this kind, or None."""
        if not self._engine.prepares_calls:
            return None
        free = self._free.get((kind, self._engine.num_threads), ())
        for prepared in reversed(free):
            if prepared.weights is weights:
                try:
                    free.remove(prepared)
                except ValueError:  # another thread has it
                    continue
                return prepared
        return None

    def make(self, kind, call, plan, states, arrays=NUMPY):
        """A new `PreparedForward` for a call of a kind, to be given back; None if such calls are not prepared.

        Args:
            states: (hx, cx), like those that it will get.
            arrays: the `CallersArrays` that they are, and x.
        """
        if not self._engine.prepares_calls or plan.concurrent or not is_small(call.problem):
            return None
        if call.keeps and call.weights.parameters.nbytes > COPIED:
            return None
        free = self._free.setdefault((kind, self._engine.num_threads), _Free())
        if len(self._free) > KINDS:
            self._free.popitem(last=False)
        return PreparedForward(call, plan, *states, free, arrays)


def is_small(problem):
    """Whether calls of a problem are prepared: they are short, and nothing in them changes from call to call but the
    callers' arrays."""
    cell, rows = problem.cell, problem.steps * problem.batch
    values = max(cell.num_gates, cell.num_saved) + cell.num_private + 2  # per unit; h, and what it is made of
    widths = problem.input_size + problem.directions * values * sum(problem.hidden_sizes)
    draws = problem.training and (problem.dropping or bool(cell.noise) or any(cell.drop_connect))
    small = rows * widths * np.dtype(problem.dtype).itemsize <= SMALL
    return small and not (problem.masked or problem.keeps_states or draws)

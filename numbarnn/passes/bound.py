"""Small calls on the CPU: passes that are bound once and run again and again.

A pass binds its tasks to the arrays of its call: views, addresses, records. That takes Python a tenth of a millisecond,
more than a small call computes. A bound pass has arrays of its own; a call copies its arguments into them, calls the
functions that the tasks became, and copies the results out.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from weakref import ref

import numpy as np

from numbarnn.passes.backward import BackwardPass, Given
from numbarnn.passes.executor import state_arrays, with_each
from numbarnn.passes.forward import ForwardPass

SMALL = 1 << 20  # bytes of a call's largest arrays, of all steps and layers, up to which it is bound
LARGE = 1 << 24  # the same for inference, where x and y, the largest arrays of callers, need not be copied
LARGE_KINDS = 4  # of such calls that are kept bound, as their buffers are large too
NEVER = ()  # in place of passes: such calls cannot be bound
SMALL_WEIGHTS = 1 << 17  # numbers of weights whose gradients are copied out, too
LARGE_WEIGHTS = 1 << 22  # the same, up to which backward is bound at all: their gradients get a new array in each call
KINDS = 32  # of calls that are kept bound
KEPT = 4  # bound passes of one kind that are kept: as many calls run at the same time, or wait for their backward


def is_small(problem):
    """Whether calls of a problem may be bound: they are short, and nothing in them changes from call to call but the
    callers' arrays."""
    return _largest_arrays(problem) <= SMALL and not _differs(problem)


def is_moderate(problem):
    """The same of larger calls, whose x and y stay where they are (`BoundForward`)."""
    size = _largest_arrays(problem)
    return SMALL < size <= LARGE and not (problem.training or problem.batch_major or _differs(problem))


def _largest_arrays(problem):
    """Bytes of a call's largest arrays, of all steps and layers."""
    cell, rows = problem.cell, problem.steps * problem.batch
    values = max(cell.num_gates, cell.num_saved) + cell.num_private + 2  # per unit; h, and what it is made of
    widths = problem.input_size + problem.directions * values * sum(problem.hidden_sizes)
    return rows * widths * np.dtype(problem.dtype).itemsize


def _differs(problem):
    """Whether something else than callers' arrays changes from call to call."""
    cell = problem.cell
    draws = problem.training and (problem.dropping or bool(cell.noise) or any(cell.drop_connect))
    return problem.masked or problem.keeps_states or draws


class CallersArrays(NamedTuple):
    """What kind of arrays callers give.

    Attributes:
        array: one of them -> it as NumPy's array.
        into: an array of NumPy -> the function that copies one of them into it.
    """

    array: Callable
    into: Callable


NUMPY = CallersArrays(lambda array: array, lambda own: partial(np.copyto, own))


class _Bound:
    """A pass with arrays of its own.

    Args:
        own: these, states of them, or None: what every call will give is copied into them.
        arrays: the `CallersArrays` that callers give. formed: the call's `forward.Call.formed`.
    """

    def __init__(self, own, arrays, formed):
        self._arrays, self._own = arrays, own
        self._into = [_into(own, arrays.into) for own in self._own]
        self._has_formed = formed is not None

    def _bind(self, plan, without=None):
        """Let `self.work` become functions; `without` as `Pass.bound` has it."""
        self._functions = self.work.bound(plan, without)
        self._return(*self.work.results())

    def _return(self, *results):
        """Let copies of these be what callers get."""
        self._results, self._copiers = results, list(map(_copier, results))

    def _fill(self, given):
        """Copy what the caller gave into its own arrays."""
        for copy, other in zip(self._into, given, strict=True):
            if copy is not None:
                copy(other)

    def _run(self):
        if self._has_formed:
            self.work.form_weights()
        for function in self._functions:
            function()

    def _copies(self):
        """Copies of the results."""
        return tuple([copy() for copy in self._copiers])


def _like(given, arrays):
    """Arrays of our own of the shapes and dtypes of what a caller gives: arrays, states of them, or None."""

    def own(one):
        array = one if type(one) is np.ndarray else arrays.array(one)
        return np.empty(array.shape, array.dtype)

    return tuple(with_each(one, own) for one in given)


def _copier(result):
    """A function without arguments: a copy of an array or a state; None of None."""
    if result is None:
        return _none
    return result.copy if type(result) is np.ndarray else partial(with_each, result, np.ndarray.copy)


def _none():
    return None


def _into(own, into):
    """The function that copies what a caller gives into an array or a state; None of None."""
    if not isinstance(own, list):
        return None if own is None else into(own)
    copies = [into(part) for part in own]

    def copy_parts(parts):
        for copy, part in zip(copies, parts, strict=True):
            copy(part)

    return copy_parts


class BoundForward(_Bound):
    """A forward pass with arrays of its own.

    Args:
        call: the `forward.Call`. plan: of the pass. hx, cx: states like those that it will get.
        free: the `Free` to give it back to; None if nobody will. arrays: the `CallersArrays` that x, hx and cx are.
        in_place: for inference: read the caller's x itself, and write y to an array that is the caller's, with no copy
            of either; where the engine can.

    Attributes:
        work: the `ForwardPass`.
        in_place: whether x and y are not copied.
    """

    def __init__(self, call, plan, hx, cx, free=None, arrays=NUMPY, in_place=False):
        x = np.empty(call.problem.x_shape, call.problem.dtype)
        super().__init__((x, *_like((hx, cx), arrays)), arrays, call.formed)
        self.work, self._backward = ForwardPass(call, *self._own), {}
        self._free = None if free is None else ref(free)
        self._bind(plan)
        self._taken = False  # what the functions read are not its own arrays, but those of the last call
        self._take = None
        if arrays is NUMPY and not call.problem.training and not any(isinstance(one, list) for one in self._own):
            self._take = call.engine.taker(self._functions, self._own, self._into)
        if in_place:
            self._last = self.work.h[self.work.problem.layers - 1]
            self._movers = [call.engine.mover(self._functions, array) for array in (self._own[0], self._last)]
            in_place = None not in self._movers
        self.in_place = in_place
        if call.reserves:
            self._return(*self._results, self.work.reserve)
            self._into_reserve = arrays.into(self.work.reserve)
            self.work.remade = True  # for backward: it gets the reserve of any call

    def run(self, number, *arrays):
        """(y, hy, cy) of x, hx and cx, and the reserve if the call has one; `number` is that of a training call."""
        self.work.call = number
        if self._taken:
            self._take(*self._own)
            self._taken = False
        if self.in_place:
            return self._run_in_place(*arrays)
        self._fill(arrays)
        self._run()
        return self._copies()

    def _run_in_place(self, x, *state):
        """The same, y in an array that is the caller's from now on."""
        for copy, other in zip(self._into[1:], state, strict=True):
            if copy is not None:
                copy(other)
        self._movers[0](x)
        return self._run_into_new()

    def _run_into_new(self):
        """(y, hy, cy) of what the functions read now, y in such an array."""
        h = self.work.engine.empty(self._last.shape, self._last.dtype)
        self._movers[1](h)
        self._run()
        return h[1:-1], *[copy() for copy in self._copiers[1:]]

    @property
    def repeats(self):
        """Whether there is `repeat`."""
        return self._take is not None

    def repeat(self, x, h, c):
        """The same as `run` of an inference call, if these arrays are like its own; else None. It asks, and tells the
        functions where they are, in less time than Python takes for one such question."""
        if not self._take(x, h, c):
            return None
        self._taken = True
        if self.in_place:
            return self._run_into_new()
        self._run()
        copy_y, copy_h, copy_c = self._copiers
        return copy_y(), copy_h(), copy_c()

    def step(self, x):
        """y (B, D*H) of one step with x (B, I), from the state that the last one left."""
        y, *new_state = self._results
        np.copyto(self._own[0][0], x)
        self._run()
        for copy, after in zip(self._into[1:], new_state, strict=True):
            if copy is not None:
                copy(after)
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
            free.put(self)

    def remake(self, x, reserve):
        """Be the tape of a call with this x, which may be None as in `ForwardPass.of_reserve`, and this reserve."""
        if x is not None:
            self._into[0](x)
        self._into_reserve(reserve)

    def run_backward(self, how, space, given):
        """(dx, dhx, dcx, dw) of what is `Given`; `how` as `BoundBackward` has it."""
        form = how, *map(type, given)
        bound = self._backward.get(form)
        if bound is None:
            bound = self._backward[form] = BoundBackward(self.work, how, space, given, self._arrays)
        return bound.run(given)


class BoundBackward(_Bound):
    """The backward pass of a `BoundForward`, with arrays of its own too. The tasks in `_late` are bound in each call,
    after all others.

    Args:
        tape: the `ForwardPass`. how: (plan, `Need`, whether gradients would accumulate if they were asked for).
        space, given: as `BackwardPass` takes them. arrays: the `CallersArrays` that are given.
    """

    _late = ()

    def __init__(self, tape, how, space, given, arrays):
        plan, need, accumulate = how
        super().__init__(_like(given, arrays), arrays, tape.formed)
        self.work = BackwardPass(tape, Given(*self._own), space, accumulate=accumulate, need=need)
        if self.work.dw is not None and space.size > SMALL_WEIGHTS:
            self._late = [task for task in plan.tasks if task.kind == "weights"]
        self._bind(plan, "weights" if self._late else None)
        if not self._late:
            self._return(*self._results, self.work.dw)

    def run(self, given):
        """(dx, dhx, dcx, dw)."""
        self._fill(given)
        if not self._late:
            self._run()
            return self._copies()
        self.work.allocate("dw")
        self._run()
        return *self._copies(), self.work.take_dw()

    def _run(self):
        super()._run()
        for task in self._late:
            self.work.bind(task)()
        if self._has_formed:
            self.work.pull_back()


class Free(list):
    """The bound passes of a kind that nobody uses now. They refer to it weakly: there is no circle, so that a layer's
    bound passes are freed with it, and not only when Python's collector comes."""

    __slots__ = ("__weakref__",)

    def take(self, weights):
        """One with these weights, or None; at once, so that two threads do not get the same."""
        try:
            bound = self.pop()
        except IndexError:
            return None
        return bound if bound.work.flat is weights else None

    def put(self, bound):
        """Give one back."""
        if len(self) < KEPT:
            self.append(bound)


class BoundPasses:
    """The bound passes of a stack of layers that nobody uses now.

    Whoever makes calls names their `kind`, anything hashable that says what tells them from the stack's other calls but
    the arrays' contents: `find` first, which needs no more, then `make`.

    Args:
        engine: of the stack.
    """

    def __init__(self, engine):
        self._engine, self._free = engine, {}  # (kind, threads) -> passes, or None where such calls are not bound
        self._large = {}  # likewise of moderate calls, None before the second of a kind, or NEVER

    def find(self, kind, weights):
        """A `BoundForward` with these weights that was given back after a call of this kind, or None."""
        free = self.free(kind)
        return free.take(weights) if free else None

    def free(self, kind):
        """The `Free` of calls of this kind with as many threads as the engine has now; None if such are not bound, or
        NEVER."""
        if not self._engine.binds_calls:
            return None
        key = kind, self._engine.num_threads
        return self._free.get(key) or self._large.get(key)

    def make(self, kind, call, plan, states, arrays=NUMPY):
        """A new `BoundForward` for a call of a kind, to be given back; None if such calls are not bound.

        Args:
            states: (hx, cx), like those that it will get.
            arrays: the `CallersArrays` that they are, and x.
        """
        if not self._engine.binds_calls:
            return None
        kind, problem = (kind, self._engine.num_threads), call.problem
        if arrays is NUMPY and is_moderate(problem) and not plan.concurrent:
            return self._make_large(kind, call, plan, states)
        if kind not in self._free:
            if len(self._free) >= KINDS:
                self._free = {}
            self._free[kind] = None if plan.concurrent or not is_small(problem) else Free()
        free = self._free.get(kind)  # None too if another thread has just cleared them
        if free is None:
            return None
        return BoundForward(call, plan, *states, free, arrays)

    def _make_large(self, kind, call, plan, states):
        """A new `BoundForward` for moderate calls; None for the first of a kind, as many come but once."""
        if kind not in self._large:
            if len(self._large) >= LARGE_KINDS:
                self._large = {}
            self._large[kind] = None
            return None
        free = self._large.get(kind)
        if free is None:
            free = self._large[kind] = Free()
        if free is NEVER:
            return None
        bound = BoundForward(call, plan, *states, free, in_place=True)
        if not bound.in_place:
            self._large[kind] = NEVER
        return bound if bound.in_place else None

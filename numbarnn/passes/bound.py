"""Small calls on the CPU: passes that are bound once and run again and again.

A pass binds its tasks to the arrays of its call: views, addresses, records. That takes Python a tenth of a millisecond,
more than a small call computes. A bound pass has arrays of its own; a call copies its arguments into them, calls the
functions that the tasks became, and copies the results out. Of larger calls the largest arrays are not copied: the
functions are told where the caller's are.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from weakref import ref

import numpy as np

from numbarnn.passes.backward import BackwardPass, Given
from numbarnn.passes.executor import state_arrays, with_each
from numbarnn.passes.forward import ForwardPass

SMALL_WEIGHTS = 1 << 17  # numbers of weights whose gradients are copied out, too
LARGE_WEIGHTS = 1 << 22  # the same, up to which backward is bound at all: their gradients get a new array in each call


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

    def _bind(self, plan, without=()):
        """Let `self.work` become functions; `without` as `Pass.bound` has it."""
        self._functions = self.work.bound(plan, without)
        alone = len(self._functions) == 1 and not self._has_formed
        self._only = self._functions[0] if alone else None  # which does what `_run` does
        self._return(*self.work.results())

    def _return(self, *results):
        """Let copies of these be what callers get."""
        self._results, self._copiers = results, list(map(_copier, results))

    def _fill(self, given, first=0):
        """Copy what the caller gave, from number `first` on, into its own arrays."""
        for copy, other in zip(self._into[first:], given[first:], strict=True):
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


def _none(*_):
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
        in_place: read the caller's x itself, and write y to an array that is the caller's, with no copy of either;
            likewise dy and dx in backward; where the engine can.

    Attributes:
        work: the `ForwardPass`.
        in_place: whether x and y are not copied.
        watch: the engine's of its weights and an x, once a tape has asked for it (`layers.tape`); None before.
    """

    def __init__(self, call, plan, hx, cx, free=None, arrays=NUMPY, in_place=False):
        x = np.empty(call.problem.x_shape, call.problem.dtype)
        super().__init__((x, *_like((hx, cx), arrays)), arrays, call.formed)
        self.work, self._backward = ForwardPass(call, *self._own), {}
        self._free, self.watch = None if free is None else ref(free), None
        self._bind(plan)
        self._taken = False  # what the functions read are not its own arrays, but those of the last call
        self._take = None
        if arrays is NUMPY and not call.problem.training and not any(isinstance(one, list) for one in self._own):
            self._take = call.engine.taker(self._functions, self._own, self._into)
        if in_place:
            self._last_h = self.work.last_h
            self._movers = [call.engine.mover(self._functions, array) for array in (self._own[0], self._last_h)]
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
        self._fill((x, *state), 1)
        self._movers[0](x)
        if self.work.problem.training:  # backward reads it again
            self.work.x = x
        return self._run_into_new()

    def _run_into_new(self):
        """(y, hy, cy) of what the functions read now, y in such an array."""
        h = self.work.engine.empty(self._last_h.shape, self._last_h.dtype)
        self._movers[1](h)
        if self.work.problem.training:
            self.work.last_h = h
        (self._only or self._run)()
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
        (self._only or self._run)()
        copy_y, copy_h, copy_c = self._copiers
        return copy_y(), copy_h(), copy_c()

    def step(self, x):
        """y (B, D*H) of one step with x (B, I), from the state that the last one left."""
        y, *new_state = self._results
        np.copyto(self._own[0][0], x)
        self._run()
        self._fill((x, *new_state), 1)
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
        """Let others use it, if there is still a stack of layers that can; callers' arrays are theirs alone again."""
        if self.in_place:
            self.work.x, self.work.last_h = self._own[0], self._last_h
        free = self._free()
        if free is not None:
            free.put(self)

    def remake(self, x, reserve):
        """Be the tape of a call with this x, which may be None as in `ForwardPass.of_reserve`, and this reserve."""
        if x is not None:
            self._into[0](x)
        self._into_reserve(reserve)

    def run_backward(self, how, space, given):
        """(dx, dhx, dcx, dw) of what is `Given`, or None if its arrays would have to be copied; `how` as
        `BoundBackward` has it."""
        form = how, *map(type, given)
        try:
            bound = self._backward[form]  # once: a plan's hash takes as long as a short step
        except KeyError:
            bound = self._backward[form] = self._bind_backward(how, space, given)
        return None if bound is None else bound.run(given)

    def _bind_backward(self, how, space, given):
        """A `BoundBackward` like that, which keeps no array of this call's caller; or None."""
        work = self.work
        h, x = work.last_h, work.x
        try:
            if self.in_place:
                work.last_h, work.x = self._last_h, self._own[0]
            bound = BoundBackward(work, how, space, given, self._arrays, self.in_place)
        finally:
            if self.in_place:
                work.last_h, work.x = h, x
        return bound if bound.in_place == self.in_place else None


class BoundBackward(_Bound):
    """The backward pass of a `BoundForward`, with arrays of its own too. Gradients that callers get in a new array each
    time are written there; where the engine cannot, the tasks in `_late` are bound in each call, after all others.

    Args:
        tape: the `ForwardPass`. how: (plan, `Need`, whether gradients would accumulate if they were asked for).
        space, given: as `BackwardPass` takes them. arrays: the `CallersArrays` that are given.
        in_place: as of the `BoundForward`.
    """

    def __init__(self, tape, how, space, given, arrays, in_place):
        plan, need, accumulate = how
        super().__init__(_like(given, arrays), arrays, tape.formed)
        work = self.work = BackwardPass(tape, Given(*self._own), space, accumulate=accumulate, need=need)
        self._new_dw = work.dw is not None and (in_place or space.size > SMALL_WEIGHTS)
        self._new_dx = [task for task in plan.tasks if task.kind == "input" and task.layer == 0] if in_place else []
        self._late, self._moves = [], ()
        self._bind(plan)
        if not self._make_movers(in_place):
            self._late = [*self._new_dx, *(task for task in plan.tasks if task.kind == "weights" and self._new_dw)]
            self._bind(plan, self._late)
            self._make_movers(in_place)
        self._copiers.append(work.take_dw if self._new_dw else _copier(work.dw))
        if in_place:
            self._copiers[0] = work.take_dx if need.x else _none
        self.in_place = in_place and None not in self._moves[:3]

    def _make_movers(self, in_place):
        """Make the functions that tell where dy, h and x are, and the new arrays for dw and dx; returns whether each of
        them can."""
        work, engine = self.work, self.work.engine
        given = [self._own[0], work.tape.last_h, work.tape.x] if in_place else [None] * 3
        new = [work.dw if self._new_dw else None, work.dx_of(0) if self._new_dx else None]
        if self._late:  # which find x, and make these, themselves
            given[2], new = None, [None, None]
        self._moves = [_none if array is None else engine.mover(self._functions, array) for array in (*given, *new)]
        return None not in self._moves

    def run(self, given):
        """(dx, dhx, dcx, dw)."""
        work, (move_dy, move_h, move_x, move_dw, move_dx) = self.work, self._moves
        if self.in_place:
            move_dy(given.y)
            move_h(work.tape.last_h)
            move_x(work.tape.x)
        self._fill(given, self.in_place)
        for task in self._new_dx:
            work.allocate_for(task)
            move_dx(work.dx_of(0))
        if self._new_dw:
            work.allocate("dw")
            move_dw(work.dw)
        self._run()
        return self._copies()

    def _run(self):
        super()._run()
        for task in self._late:
            self.work.bind(task)()
        if self._has_formed:
            self.work.pull_back()

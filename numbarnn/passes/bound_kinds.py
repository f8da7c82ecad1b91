"""Which calls are bound once for many (`bound`), and the bound passes that nobody uses now."""

import numpy as np

from numbarnn.passes.bound import NUMPY, BoundForward

SMALL = 1 << 20  # bytes of a call's largest arrays, of all steps and layers, up to which it is bound
LARGE = 1 << 26  # the same of calls with NumPy's arrays, of which x, y, dx and dy are not copied
LARGE_KINDS = 4  # of such calls that are kept bound, as their buffers are large too
NEVER = ()  # in place of passes: such calls cannot be bound
KINDS = 32  # of calls that are kept bound
KEPT = 4  # bound passes of one kind that are kept: as many calls run at the same time, or wait for their backward
LARGE_KEPT = 1  # the same of larger calls


def is_small(problem):
    """Whether calls of a problem may be bound: they are short, and nothing in them changes from call to call but the
    callers' arrays."""
    return _largest_arrays(problem) <= SMALL and not _differs(problem)


def is_moderate(problem):
    """The same of larger calls, whose x and y stay where they are (`BoundForward`)."""
    return SMALL < _largest_arrays(problem) <= LARGE and not (problem.batch_major or _differs(problem))


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


class Free(list):
    """The bound passes of a kind that nobody uses now. They refer to it weakly: there is no circle, so that a layer's
    bound passes are freed with it, and not only when Python's collector comes.

    Args:
        most: how many are kept.
    """

    __slots__ = ("__weakref__", "_most")

    def __init__(self, most):
        self._most = most

    def take(self, weights):
        """One with these weights, or None; at once, so that two threads do not get the same."""
        try:
            bound = self.pop()
        except IndexError:
            return None
        return bound if bound.work.flat is weights else None

    def repeat(self, weights, x, h, c):
        """`BoundForward.repeat` of one with these weights; None, too, if there is none. `take` and `put` in one
        function, as short calls notice the time of two more."""
        try:
            bound = self.pop()
        except IndexError:
            return None
        if bound.work.flat is not weights:
            return None
        results = bound.repeat(x, h, c)
        if len(self) < self._most:
            self.append(bound)
        return results

    def put(self, bound):
        """Give one back."""
        if len(self) < self._most:
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
        if engine.binds_calls:
            engine.keepers.add(self)

    def clear(self):
        """Forget all passes that nobody uses."""
        for free in (*self._free.values(), *self._large.values()):
            if free:
                free.clear()

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
        if arrays is NUMPY and is_moderate(problem) and not (plan.concurrent or call.reserves):
            return self._make_large(kind, call, plan, states)
        if kind not in self._free:
            if len(self._free) >= KINDS:
                self._free = {}
            self._free[kind] = None if plan.concurrent or not is_small(problem) else Free(KEPT)
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
            free = self._large[kind] = Free(LARGE_KEPT)
        if free is NEVER:
            return None
        bound = BoundForward(call, plan, *states, free, in_place=True)
        if not bound.in_place:
            self._large[kind] = NEVER
        return bound if bound.in_place else None

"""Executors: they walk a plan and call the engine. No cell maths here.

`ForwardPass` and `BackwardPass` (in modules of their own) hold the arrays of one call; `run` does a plan's tasks, in
order or, if the plan is concurrent or the engine records what it does, as jobs of the engine. For each task there are
two things to do: `make_room` for what it writes (the arrays come from the caller's stream), and `bind` it to its
arrays, which gives the function that does it. Copies of states in and out of their slots come before and after the
tasks.

A call that the engine replays makes its arrays and their list, and nothing else: whatever costs host time, such as
views, belongs into `bind`.
"""

from abc import ABC, abstractmethod
from functools import partial

from numbarnn.engines import Job


class Pass(ABC):
    """What both passes do alike: run a plan.

    Attributes:
        trouble: (1,) int64 of the engine, the call's word (`numbarnn.kernels.trouble`); None if it cannot fail.
        caller: who called, as text.
    """

    trouble = None
    _clears_trouble = False  # the word is this pass's own: the tape's backward pass shares it with the forward pass

    def may_fail(self):
        """Give the call a word in which its kernels may say that it failed; before its jobs are made."""
        if self.trouble is None:
            self.trouble, self._clears_trouble = self._room("trouble", (1,), "int64"), True

    def run(self, plan):
        """Do the plan's tasks; those with steps between the pass's first and last copies."""
        if plan.concurrent or self.engine.records_jobs:
            self._run_as_jobs(plan)
        else:
            self._run_in_order(plan)
        self.finish()

    def _run_in_order(self, plan):
        if plan.walks:
            one_after_another(self._begin())
        for task in plan.tasks:
            self.make_room(task)
            self.bind(task)()
            self.forget(task)
        if plan.walks:
            one_after_another(self.last_copies())
        one_after_another(self._end())

    def _run_as_jobs(self, plan):
        for task in plan.last_of_each:  # an array is for all tasks of its kind, layer and direction
            self.make_room(task)
        self.engine.run_jobs(lambda: self._jobs(plan), (plan, *self.facts()), self.arrays())
        for task in plan.last_of_each:
            self.forget(task)

    def _jobs(self, plan):
        jobs, walks = [], []
        for number, (task, needs) in enumerate(zip(plan.tasks, plan.needs, strict=True)):
            jobs.append(Job(task.lane if plan.concurrent else "", needs, partial(self.bind, task)))
            if task.kind == "steps":
                walks.append(number)
        return self.between_copies(jobs, walks)

    def between_copies(self, jobs, walks):
        """The jobs and two more, for the first copies and the last; not these two if there are no steps. If the call
        can fail, a last one, that makes its results NaN if it did.

        Args:
            walks: positions of the jobs that run steps. Those that need none of the others wait for the first copies,
                for those that none of the others needs the last copies wait. Where x and y are copied too (`rewrites`)
                that is so for all jobs.
        """
        if not walks:
            return self._with_end(jobs)
        walks = set(range(len(jobs)) if self.rewrites else walks)
        starts = {number for number in walks if walks.isdisjoint(jobs[number].needs)}
        ends = sorted(walks.difference(*(jobs[number].needs for number in walks)))
        before = [Job("copies", (), lambda: partial(one_after_another, [*self._begin()]))]
        for number, job in enumerate(jobs):
            needs = tuple(need + 1 for need in job.needs) + ((0,) if number in starts else ())
            before.append(job._replace(needs=needs))
        needs = tuple(number + 1 for number in ends)
        after = Job("copies", needs, lambda: partial(one_after_another, [*self.last_copies()]))
        return self._with_end([*before, after])

    def _begin(self):
        """What comes before all steps: `first_copies`, and nothing is wrong yet."""
        if self._clears_trouble:
            yield partial(self.engine.zero, self.trouble)
        yield from self.first_copies()

    def _end(self):
        """What comes after everything else."""
        if self.trouble is not None:
            yield partial(self.engine.spoil, self.result_arrays(), self.trouble, self.caller)

    def _with_end(self, jobs):
        """The jobs and, if there is something to do in the end, one more that waits for all of them."""
        if self.trouble is None:
            return jobs
        awaited = {need for job in jobs for need in job.needs}
        needs = tuple(number for number in range(len(jobs)) if number not in awaited)
        return [*jobs, Job("copies", needs, lambda: partial(one_after_another, [*self._end()]))]

    def settled(self, name, array, own=False):
        """The caller's array, or a copy of it where recordings expect it; see `Engine.settled`."""
        return self.engine.settled(self._room, name, array, own)

    def settled_state(self, name, state):
        """Likewise, a state or None."""
        return _map_state(self.settled, name, state)

    def handed_over_state(self, name, state):
        """A state as callers get it, see `Engine.handed_over`; None stays None."""
        return _map_state(partial(self.engine.handed_over, self._room), name, state)

    def put(self, out, value):
        """The function that makes `out` what `value` is; None is zero."""
        return partial(self.engine.zero, out) if value is None else partial(self.engine.copy, out, value)

    def put_state(self, out, value):
        """The functions that make the state `out` what `value` is; None is zero."""
        return [self.put(part, other) for part, other in state_parts(self.problem, out, value)]

    @property
    @abstractmethod
    def rewrites(self):
        """Whether the first and last copies are of x and y too, not of states alone."""

    @abstractmethod
    def first_copies(self):
        """The functions, without arguments, that are called before the first step."""

    @abstractmethod
    def last_copies(self):
        """Those that are called after the last step."""

    @abstractmethod
    def make_room(self, task):
        """Make the arrays that the task and all of its kind, layer and direction write, where they do not exist."""

    @abstractmethod
    def bind(self, task):
        """A function without arguments that does the task; makes no arrays."""

    @abstractmethod
    def forget(self, task):
        """Let go of what no task needs once the last of its kind, layer and direction is done."""

    @abstractmethod
    def results(self):
        """What callers get; to be asked for once, after the plan was run."""

    @abstractmethod
    def finish(self):
        """Let go of what this plan's tasks needed and later ones make again."""

    @abstractmethod
    def arrays(self):
        """Every array that the pass reads or writes."""

    @abstractmethod
    def result_arrays(self):
        """The arrays that the caller gets, of the problem's dtype, contiguous."""

    @abstractmethod
    def facts(self):
        """A hashable tuple of what its tasks depend on besides the plan and the arrays."""

    @abstractmethod
    def make_walk(self, task):
        """The engine's function that runs steps [first, last) of the task's layer and direction."""

    def _bind_steps(self, task):
        key = (task.layer, task.direction)
        if key not in self._walks:
            self._walks[key] = self.make_walk(task)
        return partial(self._walks[key], task.first, task.last)


# ------------------------------------------------------------------------------------------------------------ states
def new_state(make, name, shapes, dtype):
    """A state as callers see it, with unspecified contents: an array (L * D, B, H), or if sizes differ a list with one
    (D, B, H) per layer; `make` as `Engine.rooms` gives it, `shapes` as `Problem.h_shapes`."""
    if not isinstance(shapes, list):
        return make(name, shapes, dtype)
    return [make((name, layer), shape, dtype) for layer, shape in enumerate(shapes)]


def _map_state(function, name, state):
    """function(name, array) of the arrays of a state, in its form; None stays None."""
    if not isinstance(state, list):
        return None if state is None else function(name, state)
    return [function((name, layer), array) for layer, array in enumerate(state)]


def arrays_of_state(state):
    """The arrays of a state: none, one, or one per layer."""
    if state is None:
        return ()
    return state if isinstance(state, list) else (state,)


def part_of_state(problem, state, layer):
    """(D, B, H) of a state, one layer's part."""
    return state[layer] if isinstance(state, list) else state[layer * problem.directions :][: problem.directions]


def state_parts(problem, out, value):
    """Pairs of arrays of two states, the second of which may be None."""
    if value is None:
        return [(array, None) for array in arrays_of_state(out)]
    if not isinstance(out, list) and not isinstance(value, list):
        return [(out, value)]
    return [(part_of_state(problem, out, n), part_of_state(problem, value, n)) for n in range(problem.layers)]


def form_of_state(state):
    """Whether a state is given, and in what form."""
    return None if state is None else type(state) is list


def rows(array):
    """(T, B, N) as (T * B, N): a view, as all arrays here are contiguous."""
    steps, batch, width = array.shape
    return array.reshape(steps * batch, width)


def one_after_another(functions):
    """Call each of them."""
    for function in functions:
        function()

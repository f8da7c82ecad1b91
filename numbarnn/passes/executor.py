"""Runs plans: goes through a plan's tasks and calls the engine. No cell maths here.

`ForwardPass` and `BackwardPass` (in modules of their own) know what a task is on the arrays of one call. Their buffers
come from a table (`buffers`); `run` allocates those of each task and `bind`s the task to them, which gives the function
that does it: in the plan's order or, if the plan is concurrent or the engine records what it does, as jobs of the
engine. Copies of states in and out of their slots come before and after the tasks.

A call that the engine replays makes its arrays and their list, and nothing else: whatever costs host time, such as
views, belongs into `bind`.
"""

from abc import ABC, abstractmethod
from functools import partial
from typing import Any

from numbarnn.engines import Job
from numbarnn.passes.buffers import Buffers


class Pass(Buffers, ABC):
    """What both passes do alike: run a plan.

    Attributes:
        trouble: (1,) int64 of the engine, the call's error flag (`numbarnn.kernels.error_flag`); None: it cannot fail.
        final_launch: the last launch, which tells the host that the call has failed; launches fill what they leave with
            NaN then. None without launches.
        exits: (1,) int64, in which a launch's blocks count how many of them have left.
        caller: who called, as text.
        rewrites: whether the first and last copies are of x and y too, not of states alone.
        recurrent: a `RecurrentWeights` that its first copies fill, where steps multiply with another R than the
            parameter; else None.
    """

    caller: str
    rewrites: bool
    recurrent: Any
    final_launch = exits = None
    launched = frozenset()  # layers whose steps launches run, and with them copies of their states
    _clears_trouble = False  # the word is this pass's own: the tape's backward pass shares it with the forward pass

    def may_fail(self):
        """Give the call a word in which its kernels may say that it failed; before its jobs are made."""
        if self.trouble is None:
            self.allocate("trouble")
            self._clears_trouble = True

    def run(self, plan):
        """Do the plan's tasks; those with steps between the pass's first and last copies."""
        self._steps = {}  # (layer, direction) -> the engine's function that runs steps [first, last)
        self.launched = plan.launched_layers
        self.form_weights()
        if plan.has_launches:
            self.final_launch = plan.final_launch
            flag, exits = self.engine.launch_words()
            self.borrow("exits", exits)
            if self.trouble is None and not self.problem.training:
                self.borrow("trouble", flag)  # which the last launch clears
            self.may_fail()
            if self.recurrent is not None:
                self.recurrent.join()
        if plan.concurrent or self.engine.records_jobs:
            for task in plan.last_of_each:  # an array is for all tasks of its kind, layer and direction
                self.allocate_for(task)
            self.engine.run_jobs(partial(self._jobs, plan), (plan, *self.facts()), self.arrays())
            for task in plan.last_of_each:
                self.release_after(task)
        else:
            if plan.has_steps:
                one_after_another(self._begin())
            for task in plan.tasks:
                self.allocate_for(task)
                self.bind(task)()
                self.release_after(task)
            if plan.has_steps:
                one_after_another(self.last_copies())
            one_after_another(self._end())
        self.pull_back()
        self.finish()

    def bound(self, plan):
        """The plan as functions without arguments, for `numbarnn.passes.prepared`: called one after another, between
        `form_weights` and `pull_back`, they do the plan on this pass's arrays, as often as one likes."""
        self._steps, tasks, spare, new = {}, [], [], self._new
        self._new = partial(self._spare_or_new, spare, new)
        for task in plan.tasks:
            self.allocate_for(task)
            tasks += parts_of(self.bind(task))
            spare += self.release_after(task)
        self._new = new
        return self.engine.fused([*self._begin(), *tasks, *self.last_copies()] if plan.has_steps else tasks)

    def _spare_or_new(self, spare, new, name, shape, dtype):
        """An array for a buffer; scratch is in the memory of earlier tasks' scratch, with which these are done."""
        if type(name) is tuple and name[0] in self.table.scratch:
            for number, array in enumerate(spare):
                if array.shape == shape and array.dtype == dtype:
                    return spare.pop(number)
        return new(name, shape, dtype)

    def _jobs(self, plan):
        """The plan's tasks as jobs, between two jobs of copies. If the call can fail, a last job follows, which then
        makes its results NaN.

        All steps come after the first copies and before the last ones; where x and y are copied too (`rewrites`), all
        tasks do. Only those that need no such task before them are told to wait for the first copies, and the last
        copies wait only for those that no such task needs. The plan orders the rest.
        """

        def copies(needs, functions):
            return Job("copies", tuple(needs), lambda: partial(one_after_another, [*functions()]))

        jobs = [copies((), self._begin)] if plan.has_steps else []
        before, tasks = len(jobs), [*zip(plan.tasks, plan.needs, strict=True)]
        steps = {n for n, (task, _) in enumerate(tasks) if plan.has_steps and (self.rewrites or task.has_steps)}
        for number, (task, needs) in enumerate(tasks):
            first = (0,) if number in steps and steps.isdisjoint(needs) else ()
            needs = (*(need + before for need in needs), *first)
            jobs.append(Job(task.lane if plan.concurrent else "", needs, partial(self.bind, task)))
        if steps:
            ends = sorted(steps.difference(*(plan.needs[number] for number in steps)))
            jobs.append(copies((number + before for number in ends), self.last_copies))
        if self.trouble is not None:
            awaited = {need for job in jobs for need in job.needs}
            jobs.append(copies((number for number in range(len(jobs)) if number not in awaited), self._end))
        return jobs

    def _begin(self):
        """What comes before all steps: `first_copies`, and nothing is wrong yet."""
        if self._clears_trouble:
            yield partial(self.engine.zero, self.trouble)
        yield from self.first_copies()

    def _end(self):
        """What comes after everything else."""
        if self.trouble is not None and self.final_launch is None:
            yield partial(self.engine.spoil, self.result_arrays(), self.trouble, self.caller)

    def allocate_for(self, task):
        """Make the buffers of the task and of all of its kind, layer and direction, where they do not exist."""
        for place in task.places:
            self.allocate(task.kind, *place)

    def release_after(self, task):
        """After the last steps of a layer and direction, let go of what only its steps needed; returns its arrays."""
        arrays = []
        if task.has_steps and task.last == self.problem.steps:
            for place in task.places:
                self._steps.pop(place, None)
                arrays += self.release(*place)
        return arrays

    def bind(self, task):
        """A function without arguments that does the task; makes no arrays."""
        if task.kind != "steps":
            return getattr(self, f"bind_{task.kind}")(task)
        key = (task.layer, task.direction)
        if key not in self._steps:
            self._steps[key] = self.steps_function(*key)
        return partial(self._steps[key], task.first, task.last)

    @abstractmethod
    def form_weights(self):
        """Before the plan, make what kernels read in place of parameters (`numbarnn.weights.formed`). The host's array
        code does it, on the caller's stream, and not a job."""

    def pull_back(self):
        """After the plan, turn the gradients of what `form_weights` made into those of the parameters."""

    def put(self, out, value):
        """The function that makes `out` what `value` is; None is zero."""
        return partial(self.engine.zero, out) if value is None else partial(self.engine.copy, out, value)

    def put_state(self, out, value):
        """The functions that make the state `out` what `value` is; None is zero."""
        return [self.put(part, other) for part, other in state_parts(self.problem, out, value)]

    @abstractmethod
    def steps_function(self, layer, direction):
        """The engine's function that runs steps [first, last) of a layer and direction."""

    @abstractmethod
    def first_copies(self):
        """The functions, without arguments, that are called before the first step."""

    @abstractmethod
    def last_copies(self):
        """Those that are called after the last step."""

    @abstractmethod
    def results(self):
        """What callers get; to be asked for once, after the plan was run."""

    @abstractmethod
    def finish(self):
        """Let go of what neither a later pass nor the caller needs; a further plan allocates it anew."""

    @abstractmethod
    def result_arrays(self):
        """The arrays that the caller gets, of the problem's dtype, contiguous."""

    @abstractmethod
    def facts(self):
        """A hashable tuple of what its tasks depend on besides the plan and the arrays."""


# ------------------------------------------------------------------------------------------------------------ states
def state_arrays(state):
    """The arrays of a state: none, one, or one per layer."""
    if state is None:
        return ()
    return state if isinstance(state, list) else (state,)


def with_each(state, function):
    """An array, a state, or a tuple or list of them, with a function applied to each array; None stays None."""
    if isinstance(state, (list, tuple)):
        return type(state)([with_each(part, function) for part in state])
    return None if state is None else function(state)


def part_of_state(problem, state, layer):
    """(D, B, H) of a state, one layer's part."""
    return state[layer] if isinstance(state, list) else state[layer * problem.directions :][: problem.directions]


def state_parts(problem, out, value):
    """Pairs of arrays of two states, the second of which may be None."""
    if value is None:
        return [(array, None) for array in state_arrays(out)]
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


def parts_of(function):
    """The functions that a function of no arguments calls one after another: itself, or those of a list."""
    if isinstance(function, partial) and function.func is one_after_another:
        return function.args[0]
    return [function]

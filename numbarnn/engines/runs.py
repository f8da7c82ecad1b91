"""Run programs: give their buffers memory, turn their views into arrays, and let an engine do the operations.

A `Run` is one call. It does a program's jobs one after another, each buffer from its first job to its last; or lets an
engine that records (`Engine.records_jobs`) do all of them, on memory that it finds again. A `Prepared` program has
arrays of its own and has become functions, which are called again and again.
"""

from functools import partial

from numbarnn.engines.base import BINDS, Job
from numbarnn.programs.program import Operation
from numbarnn.programs.states import named_arrays, with_each
from numbarnn.programs.views import with_views


class Arrays:
    """A program's buffers by name, and its operations on them.

    Args:
        engine, program: of the call. arrays: name -> array, of buffers that there are already.

    Attributes:
        arrays: name -> array.
    """

    def __init__(self, engine, program, arrays=()):
        self.engine, self.program, self.arrays = engine, program, dict(arrays)
        self._groups = {}  # id of a group of views -> the function that steps on its arrays
        for name, value in program.constants.items():
            self.arrays[name] = engine.constant(value) if engine.records_jobs else value
        if "exits" in program.inputs:
            self.arrays["flag"], self.arrays["exits"] = engine.launch_words()

    def at(self, view):
        """A view's array."""
        array = self.arrays[view.name]
        return array if view.is_whole else self.engine.array_at(view, array)

    def on_arrays(self, operation):
        """An operation with arrays in place of views; steps and launches with the function that is bound to them."""
        kind, operands, options = operation
        if kind not in BINDS:
            return Operation(kind, with_views(operands, self.at), with_views(options, self.at))
        group, *arguments = operands
        run = self._groups.get(id(group))
        if run is None:
            run = self._groups[id(group)] = getattr(self.engine, kind)(with_views(group, self.at))
        return Operation("call", (run, *arguments), {})


class Run(Arrays):
    """One call of a program.

    Args:
        allocate: function (name, shape, dtype), see `Engine.allocate`. The others as those of `Arrays`.
    """

    def __init__(self, engine, program, allocate, arrays=()):
        super().__init__(engine, program, arrays)
        self._allocate = allocate

    def give(self, name, state, own=False):
        """Take an array or a state of the caller's for the buffers of that name, or a copy where recordings expect it.

        Args:
            own: copy it in any case, as it is read again when the caller may have written to it.
        """
        for full_name, array in named_arrays(name, state):
            if self.engine.records_jobs:
                array = self.engine.settled(self._allocate, full_name, array, own)
            elif own:
                copy = self._allocate(full_name, array.shape, array.dtype)
                copy[...] = array
                array = copy
            self.arrays[full_name] = array

    def give_from_host(self, name, array):
        """Take a NumPy array of numbers that the host has worked out."""
        self.arrays[name] = self.engine.from_host_into(self._allocate, name, array)

    def execute(self):
        """Do all jobs."""
        program, engine = self.program, self.engine
        if engine.records_jobs:
            self._make(program.made.values())
            names = (*program.inputs, *program.made, *program.constants)
            engine.run_jobs(self._jobs, program.spec, [self.arrays[name] for name in names])
        else:
            for job, first, last in zip(program.jobs, program.first_uses, program.last_uses, strict=True):
                self._make(first)
                for operation in job.operations:
                    self._do(operation)
                for name in last:
                    del self.arrays[name]
            engine.raise_if_failed()
        self._groups = {}

    def _do(self, operation):
        self.engine.function_of(*self.on_arrays(operation))()
        if operation.kind in BINDS and operation.operands[2:] in ((), (self.program.problem.steps,)):
            del self._groups[id(operation.operands[0])]  # its last steps: it holds arrays

    def _make(self, buffers):
        for buffer in buffers:
            self.arrays[buffer.name] = self._allocate(*buffer)

    def _jobs(self):
        return [Job(job.lane, job.needs, partial(self._bound, job.operations)) for job in self.program.jobs]

    def _bound(self, operations):
        functions = self.engine.compile([self.on_arrays(operation) for operation in operations])
        return functions[0] if len(functions) == 1 else partial(_one_after_another, functions)

    def result(self, state):
        """A result of views as callers get it, see `Engine.handed_over`; a state in its form, None stays None."""
        return with_each(state, self._result)

    def _result(self, view):
        array = self.at(view)
        return self.engine.handed_over(self._allocate, view.name, array) if self.engine.records_jobs else array


def _one_after_another(functions):
    for function in functions:
        function()


class Prepared(Arrays):
    """A program with arrays of its own, as functions that are called one after another.

    Args:
        as those of `Arrays`; arrays: with all of the program's inputs.
    """

    def __init__(self, engine, program, arrays):
        super().__init__(engine, program, arrays)
        spare, operations = [], []
        for job, first, last in zip(program.jobs, program.first_uses, program.last_uses, strict=True):
            for name, shape, dtype in first:  # in the memory of what earlier jobs are done with, as caches have that
                alike = (n for n, one in enumerate(spare) if one.shape == shape and one.dtype == dtype)
                number = next(alike, None)
                self.arrays[name] = engine.empty(shape, dtype) if number is None else spare.pop(number)
            operations += [self.on_arrays(operation) for operation in job.operations]
            spare += [self.arrays[name] for name in last]
        self.functions = engine.compile(operations)

"""Run programs: allocate their buffers, turn views into arrays, and let an engine do the operations.

A `Run` is one call. It runs the jobs in order and frees each buffer after its last use. If the engine records jobs
(`Engine.records_jobs`), it runs all of them at once on memory that later calls share. A `Prepared` program keeps its
own arrays and is called again and again.
"""

from functools import partial

from numbarnn.engines.base import BINDS, EngineJob
from numbarnn.programs.program import Operation
from numbarnn.programs.states import named_arrays, with_each
from numbarnn.programs.views import with_views


class Arrays:
    """A program's operations on arrays.

    Args:
        engine, program: of the call. arrays: name of a buffer -> array, for buffers that exist already.

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
        """Return a view's array."""
        array = self.arrays[view.name]
        return array if view.is_whole else self.engine.array_at(view, array)

    def on_arrays(self, operation):
        """Replace an operation's views with arrays. Steps and launches become calls of the function that the engine
        makes, once, for their group of arrays."""
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
        allocate: function (name, shape, dtype), see `Engine.allocate`. For the others see `Arrays`.
    """

    def __init__(self, engine, program, allocate, arrays=()):
        super().__init__(engine, program, arrays)
        self._allocate = allocate

    def give(self, name, state, own=False):
        """Use a caller's array or state for the buffers of that name, or a copy if jobs are recorded. own: copy it in
        any case, because it is read after the caller may write to it."""
        for full_name, array in named_arrays(name, state):
            if self.engine.records_jobs:
                array = self.engine.settled(self._allocate, full_name, array, own)
            elif own:
                copy = self._allocate(full_name, array.shape, array.dtype)
                copy[...] = array
                array = copy
            self.arrays[full_name] = array

    def give_from_host(self, name, array):
        """Copy a NumPy array of numbers that the host computed to the buffer of that name."""
        self.arrays[name] = self.engine.from_host_into(self._allocate, name, array)

    def execute(self):
        """Run all jobs."""
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
        last_step = operation.operands[2:]  # of (group, first, last); a launch has no such number
        if operation.kind in BINDS and last_step in ((), (self.program.problem.steps,)):
            del self._groups[id(operation.operands[0])]  # free the arrays that it holds

    def _make(self, buffers):
        for buffer in buffers:
            self.arrays[buffer.name] = self._allocate(*buffer)

    def _jobs(self):
        return [EngineJob(job.lane, job.needs, partial(self._bound, job.operations)) for job in self.program.jobs]

    def _bound(self, operations):
        functions = self.engine.compile([self.on_arrays(operation) for operation in operations])
        return functions[0] if len(functions) == 1 else partial(_one_after_another, functions)

    def result(self, state):
        """Return a result, a view or a state of views, as arrays for the caller; None stays None. See
        `Engine.handed_over`."""
        return with_each(state, self._result)

    def _result(self, view):
        array = self.at(view)
        return self.engine.handed_over(self._allocate, view.name, array) if self.engine.records_jobs else array


def _one_after_another(functions):
    for function in functions:
        function()


class Prepared(Arrays):
    """A program with its own arrays, as functions that are called one after another.

    Args: see `Arrays`; arrays must have all of the program's inputs.
    """

    def __init__(self, engine, program, arrays):
        super().__init__(engine, program, arrays)
        spare, operations = [], []
        for job, first, last in zip(program.jobs, program.first_uses, program.last_uses, strict=True):
            for name, shape, dtype in first:  # reuse the memory of finished jobs, which is in the caches
                alike = (n for n, one in enumerate(spare) if one.shape == shape and one.dtype == dtype)
                number = next(alike, None)
                self.arrays[name] = engine.empty(shape, dtype) if number is None else spare.pop(number)
            operations += [self.on_arrays(operation) for operation in job.operations]
            spare += [self.arrays[name] for name in last]
        self.functions = engine.compile(operations)

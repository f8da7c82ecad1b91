"""Describe a call as data: its buffers, and its operations in an order in which they may run.

A `Program` is built from a spec (`forward.ForwardSpec`, `backward.BackwardSpec`): a problem, a plan and the call's
other choices. Building it needs no engine and allocates no memory. `print(program)` shows it. An engine runs it, see
`numbarnn.engines.runs`.
"""

from functools import cached_property
from typing import Any, NamedTuple

from numbarnn.common.precision import known_dtype
from numbarnn.programs.states import state_parts
from numbarnn.programs.views import LINE, View, views_of


class Operation(NamedTuple):
    """One operation of an engine.

    Attributes:
        kind: the name of a method of the call's engine, see `numbarnn.engines.Engine`.
        operands, options: the method's arguments, with `View`s in place of arrays.
    """

    kind: str
    operands: tuple
    options: dict

    def __str__(self):
        parts = [_text(one) for one in self.operands]
        parts += [f"{name}={value}" for name, value in self.options.items() if value not in (False, None)]
        return f"{self.kind}({', '.join(parts)})"


def _text(operand):
    if hasattr(operand, "has_views"):
        return f"{type(operand).__name__} of direction {operand.direction}"
    return str(operand)


class Job(NamedTuple):
    """Operations that run one after another.

    Attributes:
        title: a description for people.
        lane: hashable; jobs with equal lanes run in the program's order.
        needs: positions in the program of the jobs that must finish first.
        operations: the `Operation`s.
    """

    title: str
    lane: Any
    needs: tuple[int, ...]
    operations: tuple[Operation, ...]


class Program:
    """The operations and buffers of one call.

    Args:
        spec: the `ForwardSpec` or `BackwardSpec` that it was built from.
        jobs: the `Job`s, in an order in which each comes after those that it needs.
        given: names of the buffers that the caller passes; all others are allocated for the call.
        kept: names of the buffers that are needed after the call.
        constants: name of a given buffer -> NumPy array, where all calls pass the same contents.

    Attributes:
        the arguments; problem, plan: of the call.
        inputs: names of the given buffers that operations use, without the constants.
        made: name -> `Buffer` of those that are allocated, in the order of their first use.
    """

    def __init__(self, spec, problem, jobs, given, kept, constants):
        self.spec, self.problem, self.plan, self.jobs = spec, problem, spec.plan, tuple(jobs)
        self.given, self.kept, self.constants = given, kept, constants
        self._uses, used = [], {}
        for job in self.jobs:
            self._uses.append({view.name: view.buffer for view in views_of(job.operations)})
            used |= self._uses[-1]
        self.inputs = tuple([name for name in used if name in given and name not in constants])
        self.made = {name: buffer for name, buffer in used.items() if name not in given}

    @cached_property
    def first_uses(self):
        """Return, for each job, the `Buffer`s to allocate before it."""
        return [[self.made[name] for name in names] for names in self._new_names(self._uses)]

    @cached_property
    def last_uses(self):
        """Return, for each job, the names of allocated buffers that nothing needs after it."""
        last_names = self._new_names(reversed(self._uses))
        return [[name for name in names if name not in self.kept] for names in reversed(last_names)]

    def _new_names(self, uses):
        """Return, for each job, the names of allocated buffers that no job earlier in `uses` has."""
        seen, new_names = set(self.given), []
        for one in uses:
            new_names.append([name for name in one if name not in seen])
            seen.update(one)
        return new_names

    def __str__(self):
        lines = [str(self.plan).splitlines()[0], "buffers:"]
        lines += [f"  {name}: given" for name in self.inputs]
        lines += [f"  {View(one, one.dtype, one.shape)} {one.dtype}" for one in self.made.values()]
        for number, job in enumerate(self.jobs):
            lines.append(f"{number}  {job.title}" + (f" (after {', '.join(map(str, job.needs))})" if job.needs else ""))
            lines += [f"     {operation}" for operation in job.operations]
        return "\n".join(lines)


def dtype_of(problem, name):
    """Return the dtype of x and weights for "storage", that of accumulating states for "state", else the named one."""
    return known_dtype({"storage": problem.dtype, "state": problem.state_dtype}.get(name, name))


class Builder:
    """The base of the builders of forward and backward programs.

    A builder has the call's arrays as attributes, which are `View`s. Its methods `emit` operations on them.

    Args:
        problem, plan: of the call.

    Attributes:
        given: name -> `View` of the buffers that the caller passes.
        constants: see `Program`.
        launched: whether persistent kernels run the steps. They also copy the states.
        exchanged: arrays through which a kernel's blocks pass numbers to each other. A job beside the first products
            marks their elements as unwritten, because each node of a CUDA graph takes .8 microseconds.
        final_launch: the last launch, which reports a failed call to the host; None without launches.
        error_flag: (1,) int64, see `numbarnn.kernels.error_flag`; None if the call cannot fail.
        clears_error_flag: whether the program first sets the flag to zero, which it does if the flag is the call's own.
    """

    error_flag, clears_error_flag = None, False

    def __init__(self, problem, plan):
        self.problem, self.plan = problem, plan
        self.given, self.constants, self._operations, self.exchanged = {}, {}, [], []
        self.launched, self.final_launch = plan.has_launches, plan.final_launch
        self._groups = {}  # (layer, direction) -> the group of arrays that its steps work on

    def new(self, name, shape, dtype="storage"):
        """Return a view of a whole new buffer, which is allocated for the call if an operation uses it."""
        return View.of(name, shape, dtype_of(self.problem, dtype))

    def input(self, name, shape, dtype="storage"):
        """Return a view of a whole new buffer, which the caller passes."""
        self.given[name] = view = View.of(name, shape, dtype_of(self.problem, dtype))
        return view

    def state(self, make, name, shapes, dtype="storage"):
        """Make a state with `make` (`new` or `input`); shapes: one shape, or a list with one per layer."""
        if isinstance(shapes, list):
            return [make((name, layer), shape, dtype) for layer, shape in enumerate(shapes)]
        return make(name, shapes, dtype)

    def emit(self, kind, *operands, **options):
        """Append an operation to the current job."""
        self._operations.append(Operation(kind, operands, options))

    def put(self, out, value):
        """Emit out = value; a value of None is zero."""
        self.emit(*(("zero", out) if value is None else ("copy", out, value)))

    def put_state(self, out, value):
        """Emit out = value for states; a value of None is zero."""
        for part, other in state_parts(self.problem, out, value):
            self.put(part, other)

    # ------------------------------------------------------------------------------------------------------------ jobs
    def build(self):
        """Make the `Program` of the plan: copies of states, the plan's tasks, copies of states.

        The first copies come before all steps, the last ones after them; if x and y are copied too (`rewrites`), this
        holds for all tasks. Only steps without an earlier step wait for the first copies themselves, and the last
        copies wait only for steps without a later one. The others follow through the plan's needs.
        """
        plan, jobs = self.plan, []
        if self.launched:  # its operations are known at the end
            jobs.append(None)
        if plan.has_steps:
            jobs.append(self._copies((), self._begin))
        before, tasks = len(jobs), [*zip(plan.tasks, plan.needs, strict=True)]
        rewrites = self.rewrites and plan.has_steps
        steps = {n for n, (task, _) in enumerate(tasks) if rewrites or task.has_steps}
        for number, (task, needs) in enumerate(tasks):
            first = (before - 1,) if number in steps and steps.isdisjoint(needs) else ()
            marks = (0,) if task.launch is not None else ()
            needs = (*[need + before for need in needs], *first, *marks)
            jobs.append(Job(str(task), task.lane if plan.concurrent else "", needs, self._done(self._do, task)))
        if steps:
            ends = sorted(steps.difference(*(plan.needs[number] for number in steps)))
            jobs.append(self._copies((number + before for number in ends), self.last_copies))
        if self.launched:
            marks = tuple(Operation("mark_unwritten", (array,), {}) for array in self.exchanged)
            jobs[0] = Job("mark what blocks exchange", "marks", (), marks)
        kept = frozenset(view.name for view in (*self.result_arrays(), *self.left_arrays()))
        return Program(self.spec, self.problem, jobs, frozenset(self.given), kept, self.constants)

    def _copies(self, needs, function):
        return Job("copies", "copies", tuple(needs), self._done(function))

    def _done(self, function, *arguments):
        """Return the operations that a function emits."""
        self._operations = []
        function(*arguments)
        return tuple(self._operations)

    def _begin(self):
        if self.clears_error_flag:
            self.emit("zero", self.error_flag)
        self.first_copies()

    def _do(self, task):
        if task.kind != "steps":
            getattr(self, f"do_{task.kind}")(task)
            return
        place = task.layer, task.direction
        if place not in self._groups:
            self._groups[place] = self.steps_group(*place)
        self.emit(self.steps_kind, self._groups[place], task.first, task.last)


class ReserveLayout:
    """Divide the reserve into buffers. The reserve is one array of bytes with all that backward reads besides x and the
    weights, like cuDNN's reserve space. Sizes may be symbolic (PyTorch's SymInt).

    Args:
        problem: of the call. buffers: (name, shape, dtype) of each; dtype as in `dtype_of`.

    Attributes:
        size: bytes of the reserve.
    """

    def __init__(self, problem, buffers):
        self.size, self._parts = 0, {}
        for name, shape, dtype in buffers:
            dtype = dtype_of(problem, dtype)
            count = dtype.itemsize
            for length in shape:
                count = count * length
            self._parts[name] = self.size, shape, dtype
            self.size = self.size + (count + LINE - 1) // LINE * LINE

    def views(self, reserve):
        """Return name -> `View` of the reserve."""
        return {name: View(reserve.buffer, dtype, shape, at) for name, (at, shape, dtype) in self._parts.items()}

"""A call as data: its buffers, and its operations in an order in which they may run.

A `Program` is built from a spec (`forward.ForwardSpec`, `backward.BackwardSpec`): a problem, a plan and all other
choices. Building it needs no engine and allocates no memory. `print(program)` shows one. An engine runs it:
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
        kind: the name of a method of `numbarnn.engines.Engine`.
        operands, options: its arguments; `View`s stand for arrays.
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
    """Operations one after another.

    Attributes:
        title: what it does, for people.
        lane: hashable; jobs of one lane run in the order of the program.
        needs: positions in the program of the jobs that must be done before.
        operations: its `Operation`s.
    """

    title: str
    lane: Any
    needs: tuple[int, ...]
    operations: tuple[Operation, ...]


class Program:
    """The operations and buffers of one call.

    Args:
        spec: what it was made of.
        jobs: its `Job`s, each after those that it needs.
        given: names of buffers that the call gets; all others that operations use are made for it.
        kept: names of buffers that are needed after the call.
        constants: name of a given buffer -> NumPy array, where it is the same in all calls.

    Attributes:
        the arguments; problem, plan: of the call.
        inputs: the names of buffers that operations use and that the call has to give.
        made: name -> `Buffer` of the others, in the order in which they are first used.
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
        """For each job the `Buffer`s to be made before it."""
        return [[self.made[name] for name in names] for names in self._new_names(self._uses)]

    @cached_property
    def last_uses(self):
        """For each job the names of the buffers, made for the call, that nobody needs after it."""
        found = self._new_names(reversed(self._uses))
        return [[name for name in names if name not in self.kept] for names in reversed(found)]

    def _new_names(self, uses):
        """For each of some jobs' uses the names of buffers, made for the call, that no use before it has."""
        seen, found = set(self.given), []
        for one in uses:
            found.append([name for name in one if name not in seen])
            seen.update(one)
        return found

    def __str__(self):
        lines = [str(self.plan).splitlines()[0], "buffers:"]
        lines += [f"  {name}: given" for name in self.inputs]
        lines += [f"  {View(one, one.dtype, one.shape)} {one.dtype}" for one in self.made.values()]
        for number, job in enumerate(self.jobs):
            lines.append(f"{number}  {job.title}" + (f" (after {', '.join(map(str, job.needs))})" if job.needs else ""))
            lines += [f"     {operation}" for operation in job.operations]
        return "\n".join(lines)


def dtype_of(problem, name):
    """The dtype "storage", of x and weights; "state", in which states accumulate; or one by its name."""
    return known_dtype({"storage": problem.dtype, "state": problem.state_dtype}.get(name, name))


class Builder:
    """The base of the builders of forward and backward programs.

    A builder has the call's arrays as attributes, `View`s; its methods `emit` operations on them.

    Args:
        problem, plan: of the call.

    Attributes:
        given: name -> `View`, of what the call gets.
        constants: see `Program`.
        launched: the layers whose steps run within launches. These launches also copy the layers' states.
        exchanged: arrays whose numbers the blocks of launches wait for. They are marked as unwritten before, beside the
            first products: a node of a graph takes a microsecond or two.
        final_launch: the last launch, which tells the host that the call has failed; None without launches.
        error_flag: (1,) int64, the call's error flag (`numbarnn.kernels.error_flag`); None: it cannot fail.
        clears_error_flag: whether the program sets the error flag to zero at its start, as the flag is the call's own.
    """

    error_flag, clears_error_flag = None, False

    def __init__(self, problem, plan):
        self.problem, self.plan = problem, plan
        self.given, self.constants, self._operations, self.exchanged = {}, {}, [], []
        self.launched, self.final_launch = plan.launched_layers, plan.final_launch
        self._groups = {}  # (layer, direction) -> the group of arrays that its steps work on

    def new(self, name, shape, dtype="storage"):
        """All of a buffer that is made for the call."""
        return View.of(name, shape, dtype_of(self.problem, dtype))

    def input(self, name, shape, dtype="storage"):
        """All of a buffer that the call gets."""
        self.given[name] = view = View.of(name, shape, dtype_of(self.problem, dtype))
        return view

    def state(self, make, name, shapes, dtype="storage"):
        """A state of buffers that `make` (`new` or `input`) makes; shapes: of one array, or a list of several."""
        if isinstance(shapes, list):
            return [make((name, layer), shape, dtype) for layer, shape in enumerate(shapes)]
        return make(name, shapes, dtype)

    def emit(self, kind, *operands, **options):
        """Do this next."""
        self._operations.append(Operation(kind, operands, options))

    def put(self, out, value):
        """Make `out` what `value` is; None is zero."""
        self.emit(*(("zero", out) if value is None else ("copy", out, value)))

    def put_state(self, out, value):
        """Make a state `out` what `value` is; None is zero."""
        for part, other in state_parts(self.problem, out, value):
            self.put(part, other)

    # ------------------------------------------------------------------------------------------------------------ jobs
    def build(self):
        """The `Program` of the plan.

        Copies of states come before and after its tasks. All steps come after the first copies and before the last
        ones; where x and y are copied too (`rewrites`), all tasks do. Only those that need no such task before them are
        told to wait for the first copies, and the last copies wait only for those that no such task needs. The plan
        orders the rest.
        """
        plan, jobs = self.plan, []
        if plan.has_launches:  # its operations are known at the end
            jobs.append(None)
        if plan.has_steps:
            jobs.append(self._copies((), self._begin))
        before, tasks = len(jobs), [*zip(plan.tasks, plan.needs, strict=True)]
        rewrites = self.rewrites and plan.has_steps
        steps = {n for n, (task, _) in enumerate(tasks) if rewrites or task.kind in ("steps", "launch")}
        for number, (task, needs) in enumerate(tasks):
            first = (before - 1,) if number in steps and steps.isdisjoint(needs) else ()
            marks = (0,) if task.launch is not None else ()
            needs = (*[need + before for need in needs], *first, *marks)
            jobs.append(Job(str(task), task.lane if plan.concurrent else "", needs, self._done(self._do, task)))
        if steps:
            ends = sorted(steps.difference(*(plan.needs[number] for number in steps)))
            jobs.append(self._copies((number + before for number in ends), self.last_copies))
        if plan.has_launches:
            marks = tuple(Operation("mark_unwritten", (array,), {}) for array in self.exchanged)
            jobs[0] = Job("mark what blocks exchange", "marks", (), marks)
        kept = frozenset(view.name for view in (*self.result_arrays(), *self.left_arrays()))
        return Program(self.spec, self.problem, jobs, frozenset(self.given), kept, self.constants)

    def _copies(self, needs, function):
        return Job("copies", "copies", tuple(needs), self._done(function))

    def _done(self, function, *arguments):
        """The operations that a function emits."""
        self._operations = []
        function(*arguments)
        return tuple(self._operations)

    def _begin(self):
        if self.clears_error_flag:
            self.emit("zero", self.error_flag)
        self.first_copies()

    def _do(self, task):
        """Emit what a task is."""
        if task.kind != "steps":
            getattr(self, f"do_{task.kind}")(task)
            return
        place = task.layer, task.direction
        if place not in self._groups:
            self._groups[place] = self.steps_group(*place)
        self.emit(self.steps_kind, self._groups[place], task.first, task.last)


class Places:
    """Hands out parts of one buffer of bytes, the reserve, for buffers of a call: what backward reads besides x and the
    weights in one array, as cuDNN's reserve space is. Sizes may be numbers that are not known yet (PyTorch's SymInt).

    Args:
        problem: of the call. buffers: (name, shape, dtype) of each, the dtype as `dtype_of` knows it.

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
        """Name -> the buffer as a `View` of the reserve."""
        return {name: View(reserve.buffer, dtype, shape, at) for name, (at, shape, dtype) in self._parts.items()}

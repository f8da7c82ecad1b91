"""Training calls of a stack whose tape is a flat buffer, the reserve: for those who keep what backward needs.

    calls = PlannedCalls(stack, Shape(steps, batch))
    call = calls.call(weights)
    y, hy, cy, reserve = calls.forward(call, x, (hx, cx))
    dx, dhx, dcx, dw = calls.backward(call, x, reserve, Given(dy, dhy, dcy))

No array is kept between the two calls, and nothing is compared: that x, the weights and the reserve are what they were
is the caller's to see to.
"""

from typing import NamedTuple

from numbarnn.common.precision import known_dtype
from numbarnn.layers import checkpointed
from numbarnn.layers.calls import BackwardCall, Call, ForwardCall, run_forward
from numbarnn.layers.checkpointed import CheckpointedBackward, CheckpointedForward
from numbarnn.layers.prepared import NUMPY, SMALL_WEIGHTS
from numbarnn.layers.sequences import EVERY_STEP
from numbarnn.programs.backward import ALL, Given, Need
from numbarnn.programs.forward import reserve_places
from numbarnn.programs.states import with_each


class Shape(NamedTuple):
    """What a backward call has to know of its forward call, besides arrays and the key of its random numbers.

    Attributes:
        steps, batch: T, B.
        padded, resets: whether there were lengths, and resets.
        batch_major: x, y, dy and dx are (B, T, ...).
        keeps_states: whether all private states were asked for.
        from_zero: there was no initial h, see `ForwardSpec`.
    """

    steps: int
    batch: int
    padded: bool = False
    resets: bool = False
    batch_major: bool = False
    keeps_states: bool = False
    from_zero: bool = False


def reserve_size(stack, shape, dtype):
    """Bytes of the reserve in calls of a dtype (a name); T and B may be numbers that are not known yet (PyTorch's)."""
    sizes = {name: getattr(shape, name) for name in ("steps", "batch", "padded", "resets", "batch_major")}
    problem = stack.problem_with(training=True, dtype=dtype, **sizes)
    places_of = checkpointed.reserve_places if problem.has_checkpoints else reserve_places
    return places_of(problem, dtypes_of(problem)).size


def dtypes_of(problem):
    """The function that knows the dtypes of a problem's buffers, see `numbarnn.programs.program.Builder.dtype`."""
    names = {"storage": problem.dtype, "state": problem.state_dtype}
    return lambda name: known_dtype(names.get(name, name))


class PlannedCalls:
    """Calls of a stack with one `Shape`, any number of them: problem and plans are looked up once.

    Args:
        stack, shape: of the calls.
        reserves: they are training calls with a reserve; else inference.
        arrays: the `CallersArrays` that x, states, reserves and gradients are.

    Attributes:
        The arguments.
        has_checkpoints: backward reads x in any case, and y is no part of the reserve.
    """

    def __init__(self, stack, shape, reserves=True, arrays=NUMPY):
        self.stack, self.shape, self.reserves, self.arrays = stack, shape, reserves, arrays
        sizes = shape.padded, shape.resets, shape.batch_major, shape.keeps_states
        self._problem = problem = stack.problem(shape.steps, shape.batch, reserves, *sizes)
        stack.require_trust(problem)
        self._schedule = stack.schedule.pick(problem)[0]
        self._plans = {}
        self.has_checkpoints = problem.has_checkpoints
        self._forward_plan = None if self.has_checkpoints else self._schedule.plan_forward(problem)
        self._kind = problem, reserves, shape.from_zero, arrays.into  # of calls, for `PreparedCalls`

    def call(self, weights, seed=0):
        """The `calls.Call` with these weights, a flat buffer, for `forward` and `backward`.

        Args:
            seed: key of what the call draws at random.
        """
        stack = self.stack
        options = {"seed": seed, "caller": stack.caller, "reserves": self.reserves, "from_zero": self.shape.from_zero}
        return Call(stack.engine, self._problem, stack.kernel_weights.of(weights), **options)

    def forward(self, call, x, state, sequences=EVERY_STEP):
        """y (T, B, D*H), hy, cy (None without private states), all private states if they were asked for, and with
        `reserves` the reserve (bytes,) uint8, of which y may be a part.

        Args:
            call: of `call`. The others are as those of `Stack.forward`, taken as checked; state: (hx, cx).
        """
        engine = call.engine
        engine.require_no_trouble()
        with engine.activate():
            engine.require_no_capture()
            prepared = None if self.has_checkpoints else self._prepared(call, *state)
            if prepared is not None:
                results = prepared.run(x, *state)
                prepared.give_back()
                return results
            x, state = with_each((x, state), self.arrays.array)
            if self.has_checkpoints:
                work = CheckpointedForward(call, self.stack.schedule)
                return *work.run(x, state, sequences), work.reserve
            ends = sequences.lengths, sequences.resets, sequences.padding_value
            results, work = run_forward(call, self._forward_plan, x, *state, *ends)
            return (*results, work.arrays["reserve"]) if self.reserves else results

    def backward(self, call, x, reserve, gradients, need=ALL):
        """dx, dhx, dcx and the flat dw; what is not needed is None, as is dcx without private states.

        Args:
            call: of `call`, with the weights and the seed of the forward call.
            x: None will do where no gradients of parameters are needed, or the reserve has a copy
                (`Problem.copies_x`), but never for calls with checkpoints.
            reserve: overwritten, unless it is needed again.
            gradients: a `Given`. need: a `Need`.
        """
        engine = call.engine
        engine.require_no_trouble()
        with engine.activate():
            engine.require_no_capture()
            plan = None if self.has_checkpoints else self._plan(need)
            if plan is not None and (not need.weights or self.stack.space.size <= SMALL_WEIGHTS):
                prepared = self._prepared(call, None, None)
                if prepared is not None:  # which may overwrite its tape, a copy of the reserve
                    prepared.remake(x, reserve)
                    results = prepared.run_backward(plan, need._replace(again=False), gradients)
                    prepared.give_back()
                    return results
            x, reserve, gradients = with_each((x, reserve, tuple(gradients)), self.arrays.array)
            gradients = Given(*gradients)
            if plan is None:
                tape = CheckpointedForward.of_reserve(call, self.stack.schedule, x, reserve)
                work = CheckpointedBackward(tape, gradients, None, need)
            else:
                tape = ForwardCall.of_reserve(call, self._forward_plan, x, reserve)
                work = BackwardCall(tape, plan, gradients, None, need)
            return *work.results, work.dw

    def _prepared(self, call, hx, cx):
        """A `PreparedForward` for a call, to be given back; None if such calls are not prepared."""
        found, kind = self.stack.prepared, (*self._kind, type(hx), type(cx))
        made = found.find(kind, call.weights.parameters)
        return made or found.make(kind, call, self._forward_plan, (hx, cx), self.arrays)

    def _plan(self, need):
        """The plan of a backward call with or without the gradients of x, and of the parameters but frozen ones."""
        key = need.x, need.weights, need.frozen
        plan = self._plans.get(key)
        if plan is None:
            plan = self._schedule.plan_backward(self._problem, need.weights, need.x)
            if need.frozen and not self.stack.space.formed_size:  # of what is made of parameters all are needed
                plan = plan.without_weights(need.frozen)
            self._plans[key] = plan
        return plan

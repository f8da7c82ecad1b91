"""Keep the problem and the plans of calls that have the same shape, so that they are looked up once.

A caller that keeps x, weights, seed and reserve, as PyTorch's modules do, can run backward later:

    calls = PlannedCalls(stack, Shape(steps, batch))
    (y, hy, cy), reserve = calls.forward(weights, x, (hx, cx))
    dx, dhx, dcx, dw = calls.backward(weights, x, reserve, ResultGrads(dy, dhy, dcy))

No array is kept between the two calls. The caller must pass the same x, weights and reserve to both. A layer's `Tape`
keeps them instead.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from numbarnn.layers.calls import BackwardCall, Call, ForwardCall, run_forward
from numbarnn.layers.checkpointed import CheckpointedBackward, CheckpointedForward
from numbarnn.layers.prepared import COPIED, NUMPY, SMALL_WEIGHTS, PreparedForward, is_small, kind_of_call
from numbarnn.layers.sequences import EVERY_STEP, Packing
from numbarnn.programs.backward import ALL, ResultGrads
from numbarnn.programs.checkpoints import checkpoint_buffers, segments_of
from numbarnn.programs.forward import tape_buffers
from numbarnn.programs.program import ReserveLayout
from numbarnn.programs.states import with_each

NEW, LATER = "new", "later"  # in place of a buffer for gradients, see `Stack.backward_data`
NO_KEY = 0, 0  # of random numbers that nobody draws


class Shape(NamedTuple):
    """The settings of a forward call that its backward needs, besides arrays and the key of random numbers.

    Attributes:
        steps, batch: T, B. padded, resets: whether there were lengths, and resets.
        batch_major: whether x, y, dy and dx are (B, T, ...). keeps_states: whether the cell states of all steps are
            results.
        from_zero: whether there is no initial h, see `ForwardSpec`.
    """

    steps: int
    batch: int
    padded: bool = False
    resets: bool = False
    batch_major: bool = False
    keeps_states: bool = False
    from_zero: bool = False

    def fields(self):
        """Return the fields that a `Problem` has too, as a dict: all but `from_zero`."""
        return {name: value for name, value in self._asdict().items() if name != "from_zero"}


class Done(NamedTuple):
    """The results of a call.

    Attributes:
        results: of forward, (y, hy, cy[, cell states of all steps]); of backward, (dx, dhx, dcx).
        tape: of forward, the argument of `PlannedCalls.go_back`. dw: of backward, the gradients of all parameters, or
            None.
        prepared: the `PreparedForward` that ran the call and must be given back; or None.
    """

    results: tuple
    tape: Any = None
    dw: Any = None
    prepared: PreparedForward | None = None


@dataclass
class Tape:
    """What a training forward call keeps for one backward call.

    Attributes:
        stack: the `Stack` that made it. weights, x: the caller's arrays; backward reads the copies in `forward.arrays`,
            so that a change of these changes no gradient.
        calls: the `PlannedCalls`. forward: the `ForwardCall`. backward: the backward call, if it left the parameters'
            gradients to `backward_weights`.
        used: whether backward has overwritten the saved gates. packing: the positions of a packed x's elements, or
            None.
        dw: the gradients of all parameters, after a backward that computes them.
        insides: the `Insides` of a call that recorded values. has_side: whether side inputs were passed by name.
        prepared: the `PreparedForward` that ran forward, or None. It is given back when the tape is freed.
    """

    stack: Any
    weights: Any
    calls: Any
    forward: ForwardCall
    x: Any
    backward: BackwardCall | None = None
    used: bool = False
    packing: Packing | None = None
    dw: Any = None
    prepared: PreparedForward | None = None
    insides: Any = None
    has_side: bool = False

    def __del__(self):
        if self.prepared is not None:
            self.prepared.give_back()

    def __reduce_ex__(self, protocol):
        raise TypeError("a tape cannot be copied or pickled: it is good for one backward of the layer that made it")


class PlannedCalls:
    """Calls of a stack with one `Shape`, for training or for inference.

    Attributes:
        arrays: the `CallersArrays`: the kind of x, states, reserves and gradients.
        has_checkpoints: whether calls run in segments. Backward then always needs x, and the reserve does not contain
            y.
    """

    def __init__(self, stack, shape, training=True, arrays=NUMPY):
        self.shape, self.training, self.arrays, self.engine = shape, training, arrays, stack.engine
        self._weights, self._caller = stack.kernel_weights, stack.caller
        self._stack_schedule = stack.schedule  # not the stack itself, which holds this object
        self.problem = problem = stack.problem(training=training, **shape.fields())
        self.has_checkpoints = problem.has_checkpoints
        for one in segments_of(problem) if self.has_checkpoints else [problem]:
            stack.require_trust(one)
        self.schedule = stack.schedule.pick(problem)[0]
        self._plans, self.forward_plan = {}, None if self.has_checkpoints else self.schedule.plan_forward(problem)
        prepares = is_small(problem) and not self.has_checkpoints and not self.forward_plan.concurrent
        self._pool = stack.prepared if prepares else None

    def call(self, weights, seed=0, number=0, keeps=False):
        read = self._weights.of(weights)
        return Call(self.engine, self.problem, read, seed, number, self._caller, keeps, self.shape.from_zero)

    def run(self, weights, x, state, sequences=EVERY_STEP, key=NO_KEY, keeps=False):
        """Run a forward call and return its `Done`, whose `prepared` must be given back after use.

        Args:
            weights: a flat buffer. x, sequences: see `Stack.forward`. state: (hx, cx), checked. key: seed and number of
                the training call, for random numbers. keeps: see `Call`.
        """
        prepared = self._prepared(weights, state, keeps) if sequences is EVERY_STEP else None
        if prepared is not None:
            return Done(prepared.run(x, *state), prepared.tape, prepared=prepared)
        with self.begun():
            call = self.call(weights, *key, keeps)
            if self.arrays is not NUMPY:
                x, state = with_each((x, state), self.arrays.array)
            if self.has_checkpoints:
                tape = CheckpointedForward(call, self._stack_schedule)
                return Done(tape.run(x, state, sequences), tape)
            ends = sequences.lengths, sequences.resets, sequences.padding_value
            return Done(*run_forward(call, self.forward_plan, x, *state, *ends))

    def forward(self, weights, x, state, sequences=EVERY_STEP, key=NO_KEY):
        """Run the forward pass and return ((y, hy, cy, states), reserve). states: the cell states of all steps, only if
        requested. reserve: uint8 (bytes,), which may contain y; None after inference. For the arguments see `run`."""
        done = self.run(weights, x, state, sequences, key)
        reserve = done.tape.reserve if self.training else None
        if done.prepared is not None:
            reserve = reserve if reserve is None else reserve.copy()
            done.prepared.give_back()
        return done.results, reserve

    def backward(self, weights, x, reserve, gradients, need=ALL, key=NO_KEY):
        """Compute dx, dhx, dcx and the flat dw. What `need` leaves out is None; so is dcx without cell states.

        Args:
            weights, key: of the forward call. gradients: a `ResultGrads`. reserve: overwritten, unless `need.again`.
            x: may be None if there are no gradients of parameters or the reserve has a copy (`Problem.copies_x`), and
                there are no checkpoints.
        """
        prepared = self._prepared(weights, (None, None)) if self._prepares_backward(need) else None
        if prepared is not None:  # which may overwrite its tape, a copy of the reserve
            prepared.remake(x, reserve)
            *results, dw = prepared.run_backward(self.plan(need), need._replace(again=False), gradients)
            prepared.give_back()
            return *results, dw
        with self.begun():
            call = self.call(weights, *key)
            x, reserve, gradients = with_each((x, reserve, tuple(gradients)), self.arrays.array)
            if self.has_checkpoints:
                tape = CheckpointedForward.of_reserve(call, self._stack_schedule, x, reserve)
            else:
                tape = ForwardCall.of_reserve(call, self.forward_plan, x, reserve)
            work = self.go_back(tape, ResultGrads(*gradients), need)
            return *work.results, work.dw

    def go_back(self, tape, gradients, need=ALL, dw=None, prepared=None):
        """Run a tape's backward call within the caller's `begun`; return an object with `results` and `dw`. dw: a
        buffer to which the parameters' gradients are added. prepared: the `PreparedForward` that made the tape, if one
        did."""
        if self.has_checkpoints:
            return CheckpointedBackward(tape, gradients, dw, need)
        if prepared is not None and dw is None and self._prepares_backward(need):
            *results, dw = prepared.run_backward(self.plan(need), need, gradients)
            return Done(results, dw=dw)
        return BackwardCall(tape, self.plan(need), gradients, dw, need)

    def add_weights(self, backward, dw):
        """Add the gradients of parameters to dw, after a `go_back` that left them out."""
        with self.begun():
            backward.add_weights(None if self.has_checkpoints else self.schedule.plan_weights(self.problem), dw)

    def plan(self, need):
        """Return the plan of a backward call for a `Need`."""
        key = need.x, need.weights, need.frozen
        plan = self._plans.get(key)
        if plan is None:
            plan = self.schedule.plan_backward(self.problem, need.weights, need.x)
            if need.frozen and not self.problem.space.derived_size:  # of what is made of parameters all are needed
                plan = plan.without_weights(need.frozen)
            self._plans[key] = plan
        return plan

    def _prepares_backward(self, need):
        return not need.by_sequence and (not need.weights or self.problem.space.size <= SMALL_WEIGHTS)

    def _prepared(self, weights, state, keeps=False):
        """Find or make a `PreparedForward`, which must be given back; None if such calls are not prepared."""
        if self._pool is None:
            return None
        hx, cx = state
        shape = self.problem.x_shape
        kind = kind_of_call(shape, self.training, self.shape.batch_major, self.shape.from_zero, hx, cx, self.engine)
        prepared = self._pool.find(kind, weights)
        if prepared is None and not (keeps and weights.nbytes > COPIED):
            call = self.call(weights, keeps=keeps)
            prepared = PreparedForward(call, self.forward_plan, state, self.arrays, self._pool, kind)
        return prepared

    def begun(self):
        """Return a context for a call's work, in which the engine's device is the current one. Raise RuntimeError if an
        earlier call failed, or if the caller is capturing a CUDA graph."""
        self.engine.raise_if_failed()
        with self.engine.activate():
            self.engine.require_no_capture()
        return self.engine.activate()


def reserve_size(stack, shape, dtype):
    """Return the bytes of the reserve in calls of a dtype (a name). T and B may be symbolic (PyTorch's SymInt)."""
    problem = stack.problem(training=True, dtype=dtype, **shape.fields())
    buffers = checkpoint_buffers if problem.has_checkpoints else tape_buffers
    return ReserveLayout(problem, buffers(problem)).size
